#include "server/sync/tally.h"

#include <stdbool.h>

#include "server/sync/base/fields.h"

static void add(uint64_t *sum, uint64_t n)
{
	if (__builtin_add_overflow(*sum, n, sum) || *sum > INT64_MAX)
		*sum = TALLY_UNKNOWN; /* as it is once one of them was */
}

/* Others said so: nonsense is as good as nothing. */
static uint64_t said(const json_t *in, const char *key)
{
	uint64_t n;

	if (json_is_null(in))
		return 0;
	return field_number(in, key, INT64_MAX, &n) < 0 ? TALLY_UNKNOWN : n;
}

void tally_add(struct tally *t, uint64_t planned, const json_t *in)
{
	/* Without TLS nobody says it twice. */
	const char *payload = json_object_get(in, "payload") ? "payload" : "bytes";

	add(&t->planned, planned);
	add(&t->payload, said(in, payload));
	add(&t->bytes, said(in, "bytes"));
	add(&t->kernel, said(in, "kernel"));
}

void tally_add_broken(struct tally *t)
{
	t->n_broken++;
}

static void show(json_t *row, const char *key, uint64_t n)
{
	json_object_set_new(row, key,
			    n == TALLY_UNKNOWN ? json_null() : json_integer((json_int_t)n));
}

void tally_show(const struct tally *t, json_t *row)
{
	const bool is_lost = t->n_broken && !t->bytes;

	show(row, "planned", is_lost ? TALLY_UNKNOWN : t->planned);
	show(row, "payload", is_lost ? TALLY_UNKNOWN : t->payload);
	show(row, "bytes", is_lost ? TALLY_UNKNOWN : t->bytes);
	show(row, "kernel", is_lost ? TALLY_UNKNOWN : t->kernel);
	show(row, "broken", t->n_broken);
}
