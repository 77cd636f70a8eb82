/*
 * Any bytes as a GGUF file, or as the beginning of one. What is accepted has to keep every promise that the loader
 * relies on; what is refused needs a sentence that can be printed.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/dtype.h"
#include "libclient/image/gguf.h"
#include "libclient/version/layout_builder.h"
#include "tests/fuzz/fuzz.h"

static void check_sentence(const struct sentence *s)
{
	MUST(s->text[0] && memchr(s->text, '\0', sizeof(s->text)));
	for (const char *p = s->text; *p; p++)
		MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
}

/* Returns the end of the tensor. */
static uint64_t check_tensor(const struct gguf *g, const struct gguf_tensor *t, uint64_t end)
{
	uint64_t size;

	MUST(t->name_size > 0 && t->name_size <= WEIGHTD_TENSOR_NAME_MAX);
	MUST(t->n_dims <= GGUF_DIMS_MAX);
	MUST(dtype_tensor_size(t->dtype, t->n_dims, t->shape, &size) == 0 && size == t->n_bytes);
	MUST(t->offset >= end && t->offset - end < g->alignment && t->offset % g->alignment == 0);
	MUST(t->offset <= g->data_size && size <= g->data_size - t->offset);
	return t->offset + size;
}

static void add_tensor(struct weightd_layout *l, const struct gguf_tensor *t)
{
	struct weightd_tensor added = {.size = sizeof(added)};
	char *name = strndup(t->name, t->name_size);

	MUST(name);
	MUST(weightd_layout_add(l, name, t->dtype, t->n_dims, t->shape, WEIGHTD_PARAM, NULL) == 0);
	MUST(weightd_layout_tensor(l, weightd_layout_n_tensors(l) - 1, &added) == 0);
	MUST(added.offset == t->offset && added.n_bytes == t->n_bytes);
	free(name);
}

/* A layout with the same tensors has the same places, and fits the header. */
static void check_layout(const struct gguf *g, const void *header)
{
	struct weightd_layout *l = NULL;
	struct sentence s = {0};
	struct layout view;
	void *image = NULL;
	uint64_t size;

	MUST(layout_builder_new(g->alignment, &l) == 0);
	for (size_t i = 0; i < g->n_tensors; i++)
		add_tensor(l, &g->tensors[i]);
	if (weightd_layout_n_bytes(l) != g->data_size)
		layout_builder_end_tight(l);
	MUST(weightd_layout_n_bytes(l) == g->data_size);
	if (g->n_tensors > 0) {
		MUST(weightd_layout_image(l, &image, &size) == 0 &&
		     layout_open(image, size, &view) == 0);
		MUST(gguf_check(header, g->data_offset, &view, &s) == 0);
	}
	free(image);
	weightd_layout_free(l);
}

static void check_accepted(const struct gguf *g, const uint8_t *data, size_t size)
{
	uint64_t end = 0;

	MUST(g->data_offset <= size && g->data_offset + g->data_size == size);
	MUST(g->data_offset % g->alignment == 0);
	for (size_t i = 0; i < g->n_tensors; i++)
		end = check_tensor(g, &g->tensors[i], end);
	MUST(end <= g->data_size && g->data_size - end < g->alignment);
	if (g->n_tensors < 100)
		check_layout(g, data);
}

/* With fewer bytes at hand the outcome is the same, or a request for more. */
static void check_prefix(const uint8_t *data, size_t n, size_t size, int whole)
{
	struct gguf g = {0};
	struct sentence s = {0};
	uint8_t *copy = malloc(n ? n : 1);
	int r;

	MUST(copy);
	memcpy(copy, data, n);
	r = gguf_parse(copy, n, size, &g, &s);
	MUST(r == GGUF_MORE || r == whole);
	gguf_deinit(&g);
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf g = {0};
	struct sentence s = {0};
	int r = gguf_parse(data, size, size, &g, &s);

	MUST(r >= 0 && r != GGUF_MORE);
	if (r)
		check_sentence(&s);
	else
		check_accepted(&g, data, size);
	check_prefix(data, size / 2, size, r);
	check_prefix(data, size - size / 16, size, r);
	gguf_deinit(&g);
	return 0;
}
