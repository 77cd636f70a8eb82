/*
 * Comparison of a header with a layout. The order of the tensors is that of their bytes in both, and a file has no
 * second name for a tensor.
 */
#include <errno.h>
#include <string.h>

#include "libclient/image/gguf.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_TENSOR(t) quote_bytes(&(struct quote){0}, (t)->name, (t)->name_size)

static bool is_same_shape(const struct layout *l, const struct layout_tensor *t,
			  const struct gguf_tensor *g)
{
	const uint64_t *shape = layout_tensor_shape(l, t);

	if (t->n_dims != g->n_dims || (g->n_dims && !shape))
		return false;
	return g->n_dims == 0 || !memcmp(shape, g->shape, g->n_dims * sizeof(*shape));
}

static int check_tensor(const struct layout *l, const struct layout_tensor *t,
			const struct gguf_tensor *g, struct sentence *s)
{
	const char *name = layout_tensor_name(l, t);

	if (strlen(name) != g->name_size || memcmp(name, g->name, g->name_size) != 0)
		return sentence_set(s, -EILSEQ, "has tensor %s where the layout has %s",
				    QUOTE_TENSOR(g), QUOTE(name));
	if (t->dtype != (unsigned)g->dtype || !is_same_shape(l, t, g))
		return sentence_set(s, -EILSEQ,
				    "has another type or shape for tensor %s than the layout",
				    QUOTE_TENSOR(g));
	if (t->offset != g->offset || t->tied_to != LAYOUT_NONE)
		return sentence_set(s, -EILSEQ, "has another place for tensor %s than the layout",
				    QUOTE_TENSOR(g));
	return 0;
}

static int check_tensors(const struct gguf *g, const struct layout *l, struct sentence *s)
{
	if (g->n_tensors != l->header->n_tensors)
		return sentence_set(s, -EILSEQ, "has %zu tensors, the layout %u", g->n_tensors,
				    l->header->n_tensors);
	for (size_t i = 0; i < g->n_tensors; i++) {
		int r = check_tensor(l, &l->tensors[i], &g->tensors[i], s);

		if (r < 0)
			return r;
	}
	return 0;
}

int gguf_check(const void *header, uint64_t data_offset, const struct layout *l, struct sentence *s)
{
	struct gguf g = {0};
	uint64_t file_size;
	struct sentence why = {0};
	int r;

	if (__builtin_add_overflow(data_offset, l->header->data_size, &file_size))
		return sentence_set(s, -EILSEQ, "is too large");
	r = gguf_parse(header, data_offset, file_size, &g, &why);
	if (r == -ENOMEM)
		return sentence_set(s, r, "%s", why.text);
	if (r == GGUF_MORE || (r == 0 && g.data_offset != data_offset))
		r = sentence_set(s, -EILSEQ, "does not end where the data begin");
	else if (r > 0)
		r = sentence_set(s, -EILSEQ, "is not GGUF: %.300s", why.text);
	else
		r = check_tensors(&g, l, s);
	gguf_deinit(&g);
	return r;
}
