#include "server/sync/state/byte_count.h"

#include <stdbool.h>

#include "server/sync/base/json_fields.h"

static void byte_count_add_number(uint64_t *sum, uint64_t n)
{
	if (__builtin_add_overflow(*sum, n, sum) || *sum > INT64_MAX)
		*sum = BYTE_COUNT_UNKNOWN; /* an unknown addend makes the sum unknown */
}

/* An invalid value of another node counts as unknown. */
static uint64_t said(const json_t *in, const char *key)
{
	uint64_t n;

	if (json_is_null(in))
		return 0;
	return field_number(in, key, INT64_MAX, &n) < 0 ? BYTE_COUNT_UNKNOWN : n;
}

void byte_count_add(struct byte_count *t, uint64_t planned, const json_t *in)
{
	/* Without TLS an engine sends only one of them. */
	const char *payload = json_object_get(in, "payload") ? "payload" : "bytes";

	byte_count_add_number(&t->planned, planned);
	byte_count_add_number(&t->payload, said(in, payload));
	byte_count_add_number(&t->bytes, said(in, "bytes"));
	byte_count_add_number(&t->kernel, said(in, "kernel"));
	t->n_untraced += json_is_object(in);
}

void byte_count_add_traced(struct byte_count *t, uint64_t n_bytes)
{
	if (!t->n_untraced)
		return; /* only a faulty node reports it twice */
	t->n_untraced--;
	t->n_traced++;
	byte_count_add_number(&t->traced, n_bytes);
}

void byte_count_add_broken(struct byte_count *t)
{
	t->n_broken++;
}

static void byte_count_put(json_t *row, const char *key, uint64_t n)
{
	json_object_set_new(row, key,
			    n == BYTE_COUNT_UNKNOWN ? json_null() : json_integer((json_int_t)n));
}

void byte_count_show(const struct byte_count *t, json_t *row)
{
	const bool is_lost = t->n_broken && !t->bytes;

	byte_count_put(row, "planned", is_lost ? BYTE_COUNT_UNKNOWN : t->planned);
	byte_count_put(row, "payload", is_lost ? BYTE_COUNT_UNKNOWN : t->payload);
	byte_count_put(row, "bytes", is_lost ? BYTE_COUNT_UNKNOWN : t->bytes);
	byte_count_put(row, "kernel", is_lost ? BYTE_COUNT_UNKNOWN : t->kernel);
	byte_count_put(row, "broken", t->n_broken);
	byte_count_put(row, "traced", t->n_traced ? t->traced : BYTE_COUNT_UNKNOWN);
	byte_count_put(row, "untraced", t->n_untraced);
}

void byte_count_amend(json_t *row, uint64_t n_bytes)
{
	json_int_t before = json_integer_value(json_object_get(row, "traced"));
	struct byte_count t = {
		.traced = (uint64_t)before,
		.n_untraced = (uint64_t)json_integer_value(json_object_get(row, "untraced")),
	};

	if (!t.n_untraced)
		return;
	byte_count_add_traced(&t, n_bytes);
	byte_count_put(row, "traced", t.traced);
	byte_count_put(row, "untraced", t.n_untraced);
}
