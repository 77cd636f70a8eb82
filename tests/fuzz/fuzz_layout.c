/*
 * Any bytes as a layout. Whatever opens can be used without a check: nothing is read outside. What passes
 * the check keeps every promise that readers rely on, and it alone is parsed into a layout, which is the same
 * again. And what the library builds, from any calls, passes.
 *
 * The first byte is not a part of the image. Its bits make right what a fuzzer rarely gets right, so that
 * it comes to what stands behind: the sizes in the header, the name index, the hash. With BUILD the rest
 * are calls of the builder.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/digest.h"
#include "ipc/layout.h"
#include "ipc/layout_check.h"
#include "libclient/version/tensor.h"
#include "tests/fuzz/fuzz.h"
#include "weightd.h"

#define FIX_SIZES 1
#define FIX_INDEX 2
#define FIX_HASH 4
#define BUILD 8

/* --- Making right --------------------------------------------------------------------------------- */

static void fix_sizes(void *image, uint64_t size)
{
	struct layout_header *h = image;
	uint64_t without_strings;

	h->total_size = size;
	h->strings_size = 0;
	if (layout_image_size(h, &without_strings) && without_strings <= size)
		h->strings_size = size - without_strings;
}

static void fix_index(const struct layout *l)
{
	uint32_t *buckets = (uint32_t *)l->buckets, n = l->header->n_buckets;

	memset(buckets, 0xff, n * sizeof(*buckets));
	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const char *name = layout_tensor_name(l, &l->tensors[i]);
		uint32_t at = layout_bucket(name, strlen(name), n);

		while (buckets[at] != LAYOUT_NONE)
			at = (at + 1) & (n - 1);
		buckets[at] = i;
	}
}

/* --- Using and checking --------------------------------------------------------------------------- */

static volatile uint64_t sink;

static void use_unchecked(const struct layout *l)
{
	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];
		const uint64_t *shape = layout_tensor_shape(l, t);
		struct weightd_tensor tensor = {.size = sizeof(tensor)};
		uint32_t found;

		MUST(tensor_get(l, NULL, i, &tensor) == 0);
		sink += strlen(tensor.name) + strlen(tensor.unit);
		for (unsigned k = 0; shape && k < t->n_dims; k++)
			sink += shape[k];
		if (layout_find(l, tensor.name, strlen(tensor.name), &found) == 0)
			MUST(found < l->header->n_tensors);
	}
}

static bool passes(const void *image, uint64_t size)
{
	struct layout_check c;
	int r = layout_check_init(&c, image, size);

	if (r == 0)
		do
			r = layout_check_step(&c);
		while (r == 1);
	MUST(r == 0 || (r == -EBADMSG && c.why && c.why[0]));
	layout_check_deinit(&c);
	return r == 0;
}

static void check_tensor(const struct layout *l, uint32_t i, uint64_t *end)
{
	const struct layout_tensor *t = &l->tensors[i];
	const char *name = layout_tensor_name(l, t);
	uint64_t size;
	uint32_t found;

	MUST(t->name_size > 0 && t->name_size <= LAYOUT_NAME_MAX && strlen(name) == t->name_size);
	MUST(layout_find(l, name, t->name_size, &found) == 0 && found == i);
	MUST(t->n_dims <= LAYOUT_DIMS_MAX && !t->n_dims == !layout_tensor_shape(l, t));
	MUST(dtype_tensor_size(t->dtype, t->n_dims, layout_tensor_shape(l, t), &size) == 0);
	MUST(size == t->n_bytes && t->role >= LAYOUT_PARAM && t->role < LAYOUT_ROLE_END);
	MUST(t->unit == LAYOUT_NONE || layout_tensor_unit(l, t)[0]);
	if (t->tied_to != LAYOUT_NONE) {
		const struct layout_tensor *to = &l->tensors[t->tied_to];

		MUST(t->tied_to < i && to->tied_to == LAYOUT_NONE);
		MUST(to->offset == t->offset && to->n_bytes == t->n_bytes && to->dtype == t->dtype);
		return;
	}
	MUST(t->offset % l->header->alignment == 0 && t->offset >= *end);
	MUST(t->offset <= l->header->data_size && t->n_bytes <= l->header->data_size - t->offset);
	*end = t->offset + t->n_bytes;
}

static void check_passed(const struct layout *l)
{
	uint64_t end = 0;
	uint8_t hash[HASH_SIZE];

	for (uint32_t i = 0; i < l->header->n_tensors; i++)
		check_tensor(l, i, &end);
	MUST(l->header->data_size <= DIGEST_DATA_MAX && l->header->data_size >= end);
	MUST(l->header->data_size - end < l->header->alignment);
	layout_hash(l->header, l->header->total_size, hash);
	MUST(!memcmp(hash, l->header->hash, HASH_SIZE));
}

/* An accepted image passes the check, and is written again as it was. */
static void parse(const void *image, uint64_t size, bool is_right)
{
	struct weightd_layout *l = NULL;
	uint64_t again_size;
	void *again;
	int r = weightd_layout_parse(image, size, &l);

	MUST(is_right ? r == 0 : r == -EBADMSG && !l);
	if (!is_right)
		return;
	MUST(weightd_layout_image(l, &again, &again_size) == 0);
	MUST(again_size == size && !memcmp(again, image, size));
	free(again);
	/* A name that is new, one that is not, and whatever the image had in its empty buckets. */
	for (char name[] = "a"; name[0] <= 'z'; name[0]++) {
		r = weightd_layout_tie(l, name, 0, name);
		MUST(r == 0 || r == -EEXIST || r == -EINVAL || r == -EOVERFLOW);
	}
	MUST(weightd_layout_image(l, &again, &again_size) == 0);
	MUST(passes(again, again_size));
	free(again);
	weightd_layout_free(l);
}

static void judge(uint8_t how, uint8_t *image, uint64_t size)
{
	struct layout l;
	bool opens;

	if (how & FIX_SIZES && size >= sizeof(struct layout_header))
		fix_sizes(image, size);
	opens = layout_open(image, size, &l) == 0;
	if (opens) {
		use_unchecked(&l);
		if (how & FIX_INDEX)
			fix_index(&l);
		use_unchecked(&l);
		if (how & FIX_HASH)
			layout_hash(image, size, ((struct layout_header *)image)->hash);
	}
	parse(image, size, passes(image, size));
	if (!passes(image, size))
		return;
	MUST(opens);
	check_passed(&l);
}

/* --- Building ------------------------------------------------------------------------------------- */

struct input {
	const uint8_t *data;
	size_t left;
};

static uint64_t take(struct input *in, size_t n)
{
	uint64_t v = 0;

	for (; n > 0 && in->left > 0; n--, in->left--)
		v = v << 8 | *in->data++;
	return v;
}

/* A length and as many bytes; NULL for no length. */
static const char *take_text(struct input *in, char text[256])
{
	size_t n = take(in, 1);

	for (size_t i = 0; i < n; i++)
		text[i] = (char)take(in, 1);
	text[n] = '\0';
	return n ? text : NULL;
}

/* One call with any arguments; the layout must have its result if it succeeds. */
static void call(struct input *in, struct weightd_layout *l)
{
	uint32_t n = weightd_layout_n_tensors(l);
	char name_text[256], unit_text[256];
	const char *name = take_text(in, name_text), *unit = take_text(in, unit_text);
	uint64_t shape[LAYOUT_DIMS_MAX + 1];
	uint8_t how = (uint8_t)take(in, 1);
	uint32_t n_dims = (uint32_t)take(in, 1) % (LAYOUT_DIMS_MAX + 2);
	unsigned dtype = (unsigned)take(in, 1), role = how >> 1 & 3;
	struct weightd_tensor t = {.size = sizeof(t)};
	int r;

	for (uint32_t i = 0; i < n_dims; i++)
		shape[i] = take(in, how & 8 ? 8 : 1);
	if (how & 1)
		r = weightd_layout_tie(l, name ? name : "", dtype, unit);
	else
		r = weightd_layout_add(l, name ? name : "", dtype, n_dims, shape, role, unit);
	MUST(weightd_layout_n_tensors(l) == n + (r == 0));
	if (r < 0)
		return;
	MUST(weightd_layout_tensor(l, n, &t) == 0);
	MUST(!strcmp(t.name, name) && !strcmp(t.unit, unit ? unit : ""));
	if (how & 1)
		return;
	MUST(t.dtype == dtype && t.role == role && t.n_dims == n_dims);
	MUST(n_dims == 0 || !memcmp(t.shape, shape, n_dims * sizeof(*shape)));
}

static void build(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	struct weightd_layout *l;
	uint64_t image_size;
	void *image;

	if (weightd_layout_new((uint64_t)1 << take(&in, 1) % 32, &l) < 0)
		return;
	while (in.left > 0)
		call(&in, l);
	if (weightd_layout_image(l, &image, &image_size) == 0) {
		struct layout view;

		MUST(passes(image, image_size) && layout_open(image, image_size, &view) == 0);
		check_passed(&view);
		free(image);
	} else {
		MUST(weightd_layout_n_tensors(l) == 0);
	}
	weightd_layout_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *image;

	if (size == 0)
		return 0;
	if (data[0] & BUILD) {
		build(data + 1, size - 1);
		return 0;
	}
	image = malloc(size > 1 ? size - 1 : 1); /* ASan sees a read past the end */
	MUST(image);
	memcpy(image, data + 1, size - 1);
	judge(data[0], image, size - 1);
	free(image);
	return 0;
}
