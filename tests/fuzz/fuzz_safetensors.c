/*
 * Any bytes as a safetensors file. What is accepted has to keep every promise that the loader relies
 * on; what is refused needs a sentence that can be printed, also where it is named as another format.
 */
#include <stdbool.h>
#include <string.h>

#include "ipc/dtype.h"
#include "libclient/image/magic.h"
#include "libclient/image/members.h"
#include "libclient/image/plain.h"
#include "libclient/image/safetensors.h"
#include "tests/fuzz/fuzz.h"

static void check_tensor(const struct safetensors *st, const struct safetensors_tensor *t)
{
	uint64_t size;

	MUST(t->name_size > 0 && t->name_size <= WEIGHTD_TENSOR_NAME_MAX);
	MUST(strlen(t->name) == t->name_size);
	MUST(t->n_dims <= WEIGHTD_DIMS_MAX && t->first_dim + t->n_dims <= st->n_dims);
	MUST(dtype_tensor_size(t->dtype, t->n_dims, safetensors_shape(st, t), &size) == 0);
	MUST(size == t->end - t->begin);
	MUST(t->role == WEIGHTD_PARAM || t->role == WEIGHTD_BUFFER);
	MUST(!t->unit || strlen(t->unit) <= WEIGHTD_TENSOR_NAME_MAX);
}

static void check_tie(const struct safetensors *st, const struct safetensors_tie *t)
{
	MUST(t->alias_size > 0 && t->alias_size <= WEIGHTD_TENSOR_NAME_MAX);
	MUST(strlen(t->alias) == t->alias_size && strlen(t->name) == t->name_size);
	MUST(!t->unit || strlen(t->unit) <= WEIGHTD_TENSOR_NAME_MAX);
	for (size_t i = 0; i < st->n_tensors && st->n_tensors < 100; i++)
		MUST(strcmp(st->tensors[i].name, t->alias) != 0);
}

static void check_accepted(const struct safetensors *st, uint64_t data_size)
{
	uint64_t end = 0;

	for (size_t i = 0; i < st->n_tensors; i++) {
		MUST(st->tensors[i].begin == end);
		check_tensor(st, &st->tensors[i]);
		end = st->tensors[i].end;
		for (size_t k = 0; k < i && st->n_tensors < 100; k++)
			MUST(strcmp(st->tensors[k].name, st->tensors[i].name) != 0);
	}
	MUST(end == data_size);
	for (size_t i = 0; i < st->n_ties; i++)
		check_tie(st, &st->ties[i]);
}

static void check_number(const json_t *value, uint64_t n)
{
	MUST(json_is_integer(value) && (uint64_t)json_integer_value(value) == n);
}

/* Compares both readings of an entry. */
static void check_entry(const struct plain_entry *e, const json_t *value)
{
	const json_t *shape = json_object_get(value, "shape");
	const json_t *offsets = json_object_get(value, "data_offsets");

	MUST(json_object_size(value) == 3);
	MUST(dtype_parse(json_string_value(json_object_get(value, "dtype"))) == (int)e->dtype);
	MUST(json_array_size(shape) == e->n_dims && json_array_size(offsets) == 2);
	for (uint32_t i = 0; i < e->n_dims; i++)
		check_number(json_array_get(shape, i), e->shape[i]);
	check_number(json_array_get(offsets, 0), e->begin);
	check_number(json_array_get(offsets, 1), e->end);
}

static void check_plain_string(struct members *m, struct span text)
{
	struct span plain;
	json_t *value;

	if (!plain_string(text, &plain))
		return;
	MUST(members_parse(m, text, &value) == 0);
	MUST(json_string_length(value) == plain.n);
	MUST(!memcmp(json_string_value(value), plain.p, plain.n));
	json_decref(value);
}

static void check_plain(const char *header, uint64_t n)
{
	struct members m, ahead;
	struct plain_entry entry;
	struct span key, text;
	json_t *value;

	members_init(&m, header, n);
	while (members_key(&m, &key) > 0) {
		bool is_plain;

		ahead = m;
		is_plain = plain_entry(&ahead, &entry);
		if (members_value(&m, &text) < 0) {
			MUST(!is_plain);
			return;
		}
		check_plain_string(&m, key);
		check_plain_string(&m, text);
		if (!is_plain)
			continue;
		MUST(ahead.at == m.at && members_parse(&m, text, &value) == 0);
		check_entry(&entry, value);
		json_decref(value);
	}
}

static void check_sentence(const struct sentence *s)
{
	MUST(s->text[0] && memchr(s->text, '\0', sizeof(s->text)));
	for (const char *p = s->text; *p; p++)
		MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void parse(const char *header, uint64_t n, uint64_t data_size)
{
	struct safetensors st;
	struct sentence s = {0};
	int r;

	check_plain(header, n);
	r = safetensors_parse(header, n, data_size, &st, &s);
	if (r) {
		check_sentence(&s);
		return;
	}
	check_accepted(&st, data_size);
	safetensors_deinit(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t prefix[SAFETENSORS_PREFIX_SIZE] = {0};
	struct sentence s = {0};
	uint64_t n;

	if (magic_explain((const char *)data, size < MAGIC_SIZE ? size : MAGIC_SIZE, &s))
		check_sentence(&s);
	memcpy(prefix, data, size < sizeof(prefix) ? size : sizeof(prefix));
	if (safetensors_parse_prefix(prefix, size, &n, &s) == 0) {
		parse((const char *)data + sizeof(prefix), n, size - sizeof(prefix) - n);
		return 0;
	}
	/* A fuzzer rarely gets the eight bytes right: what stands behind them is tried all the same. */
	check_sentence(&s);
	if (size >= sizeof(prefix))
		parse((const char *)data + sizeof(prefix), size - sizeof(prefix), prefix[0]);
	return 0;
}
