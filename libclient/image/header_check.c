/*
 * Comparison of the header and the layout of an image. Readers of the file use the one and readers of the mapping the
 * other, and the server parses neither.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/image/header.h"
#include "libclient/image/safetensors.h"

#define QUOTE(name, size) quote_bytes(&(struct quote){0}, name, size)

static int parse(const void *header, uint64_t data_offset, uint64_t data_size,
		 struct safetensors *ret, struct sentence *s)
{
	struct sentence why;
	uint64_t size = 0;
	int r;

	if (data_offset < SAFETENSORS_PREFIX_SIZE || data_size > UINT64_MAX - data_offset)
		return sentence_set(s, -EILSEQ, "has %" PRIu64 " bytes", data_offset);
	r = safetensors_parse_prefix(header, data_offset + data_size, &size, &why);
	if (r == 0 && size + SAFETENSORS_PREFIX_SIZE != data_offset)
		return sentence_set(s, -EILSEQ,
				    "has %" PRIu64 " bytes, and the data begin at %" PRIu64,
				    size + SAFETENSORS_PREFIX_SIZE, data_offset);
	if (r == 0)
		r = safetensors_parse((const char *)header + SAFETENSORS_PREFIX_SIZE, size,
				      data_size, ret, &why);
	if (r < 0)
		return sentence_set(s, r, "cannot be read: %s", why.text);
	return r > 0 ? sentence_set(s, -EILSEQ, "breaks the format: %s", why.text) : 0;
}

static bool same_shape(const struct safetensors *st, const struct safetensors_tensor *a,
		       const struct layout *l, const struct layout_tensor *b)
{
	return a->n_dims == b->n_dims &&
	       (a->n_dims == 0 || !memcmp(safetensors_shape(st, a), layout_tensor_shape(l, b),
					  a->n_dims * sizeof(uint64_t)));
}

static int compare_tensor(const struct safetensors *st, const struct safetensors_tensor *a,
			  const struct layout *l, const struct layout_tensor *b, struct sentence *s)
{
	const char *name = layout_tensor_name(l, b);

	if (a->name_size != b->name_size || memcmp(a->name, name, b->name_size) != 0)
		return sentence_set(s, -EILSEQ, "has tensor %s where the layout has %s",
				    QUOTE(a->name, a->name_size), QUOTE(name, b->name_size));
	if ((uint8_t)a->dtype != b->dtype || !same_shape(st, a, l, b))
		return sentence_set(s, -EILSEQ, "has another type or shape of tensor %s",
				    QUOTE(name, b->name_size));
	if (a->begin != b->offset || a->end - a->begin != b->n_bytes)
		return sentence_set(s, -EILSEQ, "has another place for tensor %s",
				    QUOTE(name, b->name_size));
	if ((uint8_t)a->role != b->role)
		return sentence_set(s, -EILSEQ, "has another role of tensor %s",
				    QUOTE(name, b->name_size));
	return 0;
}

static int compare_tie(const struct safetensors_tie *a, const struct layout *l,
		       const struct layout_tensor *b, struct sentence *s)
{
	const char *alias = layout_tensor_name(l, b);
	const struct layout_tensor *to = &l->tensors[layout_untied(l, (uint32_t)(b - l->tensors))];

	if (a->alias_size != b->name_size || memcmp(a->alias, alias, b->name_size) != 0)
		return sentence_set(s, -EILSEQ, "ties %s where the layout ties %s",
				    QUOTE(a->alias, a->alias_size), QUOTE(alias, b->name_size));
	if (a->name_size != to->name_size ||
	    memcmp(a->name, layout_tensor_name(l, to), to->name_size) != 0)
		return sentence_set(s, -EILSEQ, "ties %s to another tensor",
				    QUOTE(alias, b->name_size));
	return 0;
}

static int compare_next(const struct safetensors *st, size_t n_tensors, size_t n_ties,
			const struct layout *l, const struct layout_tensor *t, struct sentence *s)
{
	const char *name = layout_tensor_name(l, t);

	if (t->tied_to == LAYOUT_NONE) {
		if (n_tensors < st->n_tensors)
			return compare_tensor(st, &st->tensors[n_tensors], l, t, s);
	} else if (n_ties < st->n_ties) {
		return compare_tie(&st->ties[n_ties], l, t, s);
	}
	return sentence_set(s, -EILSEQ, "lacks %s", QUOTE(name, t->name_size));
}

static int compare(const struct safetensors *st, const struct layout *l, struct sentence *s)
{
	size_t n_tensors = 0, n_ties = 0;

	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];
		int r = compare_next(st, n_tensors, n_ties, l, t, s);

		if (r < 0)
			return r;
		n_tensors += t->tied_to == LAYOUT_NONE;
		n_ties += t->tied_to != LAYOUT_NONE;
	}
	if (n_tensors < st->n_tensors)
		return sentence_set(s, -EILSEQ, "has tensor %s, which the layout lacks",
				    QUOTE(st->tensors[n_tensors].name,
					  st->tensors[n_tensors].name_size));
	if (n_ties < st->n_ties)
		return sentence_set(s, -EILSEQ, "ties %s, which the layout lacks",
				    QUOTE(st->ties[n_ties].alias, st->ties[n_ties].alias_size));
	return 0;
}

int image_header_check(const void *header, uint64_t data_offset, const struct layout *l,
		       struct sentence *s)
{
	struct safetensors st = {0};
	int r = parse(header, data_offset, l->header->data_size, &st, s);

	if (r == 0)
		r = compare(&st, l, s);
	safetensors_deinit(&st);
	return r;
}
