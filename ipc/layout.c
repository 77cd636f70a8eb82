/*
 * Nothing here trusts an image: what is read from it is bounded before it is used, also after it was
 * checked, since the checks run in the server and the look-ups in every client.
 */
#include "ipc/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/utf8.h"
#include "ipc/digest.h"

#define HASHED_FROM (offsetof(struct layout_header, hash) + HASH_SIZE)
/*
 * The clock ends a step, not a number of tensors: in a table full of look-ups to the end of LAYOUT_PROBES_MAX a
 * tensor takes 20 times as long as in an honest one.
 */
#define STEP_NS 1000000u
#define CLOCK_EVERY 32

bool layout_image_size(const struct layout_header *h, uint64_t *ret)
{
	uint64_t size = sizeof(*h);

	if (h->n_tensors > LAYOUT_TENSORS_MAX || h->n_units > LAYOUT_UNITS_MAX ||
	    h->strings_size > LAYOUT_SIZE_MAX)
		return false;
	/* No sum overflows: each term is below 2^36. */
	size += (uint64_t)h->n_tensors * sizeof(struct layout_tensor);
	size += (uint64_t)h->n_dims * sizeof(uint64_t);
	size += (uint64_t)h->n_units * sizeof(struct layout_unit);
	size += (uint64_t)h->n_buckets * sizeof(uint32_t);
	size += h->strings_size;
	if (size > LAYOUT_SIZE_MAX)
		return false;
	*ret = size;
	return true;
}

static bool header_ok(const struct layout_header *h, uint64_t size)
{
	uint64_t want;

	if (h->magic != LAYOUT_MAGIC || h->abi != LAYOUT_ABI || h->pad || h->pad2)
		return false;
	if (!layout_image_size(h, &want) || want != size || h->total_size != size)
		return false;
	if (!num_is_power_of_two(h->alignment) || h->alignment < LAYOUT_ALIGNMENT_MIN ||
	    h->alignment > LAYOUT_ALIGNMENT_MAX)
		return false;
	if (h->data_size > DIGEST_DATA_MAX || h->n_tensors == 0)
		return false;
	return num_is_power_of_two(h->n_buckets) && h->n_buckets / 2 >= h->n_tensors;
}

int layout_open(const void *image, uint64_t size, struct layout *ret)
{
	const struct layout_header *h = image;
	struct layout l = {.header = h};

	if (size < sizeof(*h) || !header_ok(h, size))
		return -EBADMSG;
	l.tensors = (const void *)(h + 1);
	l.dims = (const void *)(l.tensors + h->n_tensors);
	l.units = (const void *)(l.dims + h->n_dims);
	l.buckets = (const void *)(l.units + h->n_units);
	l.strings = (const void *)(l.buckets + h->n_buckets);
	*ret = l;
	return 0;
}

/* The string lies inside the section and is terminated there. */
static bool string_ok(const struct layout *l, uint64_t start, uint64_t size)
{
	uint64_t n = l->header->strings_size;

	return start < n && size < n - start && l->strings[start + size] == '\0';
}

uint32_t layout_bucket(const char *name, size_t name_size, uint32_t n_buckets)
{
	return (uint32_t)hash64(name, name_size) & (n_buckets - 1);
}

int layout_find(const struct layout *l, const char *name, size_t name_size, uint32_t *ret)
{
	uint32_t n_buckets = l->header->n_buckets;
	uint32_t bucket = layout_bucket(name, name_size, n_buckets);

	for (unsigned i = 0; i < LAYOUT_PROBES_MAX; i++) {
		uint32_t index = l->buckets[(bucket + i) & (n_buckets - 1)];
		const struct layout_tensor *t;

		if (index >= l->header->n_tensors)
			return -ENOENT;
		t = &l->tensors[index];
		if (t->name_size == name_size && string_ok(l, t->name, t->name_size) &&
		    !memcmp(l->strings + t->name, name, name_size)) {
			*ret = index;
			return 0;
		}
	}
	return -ENOENT;
}

const char *layout_tensor_name(const struct layout *l, const struct layout_tensor *t)
{
	return string_ok(l, t->name, t->name_size) ? l->strings + t->name : "";
}

const char *layout_tensor_unit(const struct layout *l, const struct layout_tensor *t)
{
	const struct layout_unit *u;

	if (t->unit >= l->header->n_units)
		return "";
	u = &l->units[t->unit];
	return string_ok(l, u->name, u->name_size) ? l->strings + u->name : "";
}

const uint64_t *layout_tensor_shape(const struct layout *l, const struct layout_tensor *t)
{
	if (t->n_dims == 0 || t->dims > l->header->n_dims || t->n_dims > l->header->n_dims - t->dims)
		return NULL;
	return l->dims + t->dims;
}

uint32_t layout_untied(const struct layout *l, uint32_t index)
{
	uint32_t to = l->tensors[index].tied_to;

	return to < l->header->n_tensors ? to : index;
}

bool layout_name_ok(const char *name, size_t size)
{
	const unsigned char *p = (const unsigned char *)name;
	uint32_t character;

	if (size == 0 || size > LAYOUT_NAME_MAX)
		return false;
	for (size_t i = 0; i < size;) {
		size_t n = p[i] ? utf8_decode(p + i, size - i, &character) : 0;

		if (n == 0)
			return false;
		i += n;
	}
	return true;
}

void layout_hash(const void *image, uint64_t size, uint8_t ret_hash[HASH_SIZE])
{
	const char *data = (const char *)image + HASHED_FROM;
	uint64_t data_size = size - HASHED_FROM;
	uint8_t leaves[LAYOUT_SIZE_MAX / DIGEST_LEAF_SIZE][HASH_SIZE];
	uint64_t n = digest_n_leaves(data_size);

	assert(size > HASHED_FROM && n <= ARRAY_LEN(leaves));
	for (uint64_t i = 0; i < n; i++)
		digest_leaf(data, data_size, i, leaves[i]);
	digest_root(leaves, n, ret_hash);
}

static int layout_check_wrong(struct layout_check *c, uint32_t at, const char *why)
{
	c->at = at;
	c->why = why;
	return -EBADMSG;
}

int layout_check_init(struct layout_check *c, const void *image, uint64_t size)
{
	int r;

	*c = (struct layout_check){0};
	r = layout_open(image, size, &c->layout);
	if (r < 0)
		return layout_check_wrong(c, 0, "its header is not that of a layout of this size");
	c->n_leaves = digest_n_leaves(size - HASHED_FROM);
	c->leaves = calloc(c->n_leaves, sizeof(*c->leaves));
	return c->leaves ? 0 : -ENOMEM;
}

void layout_check_deinit(struct layout_check *c)
{
	free(c->leaves);
	c->leaves = NULL;
}

static int check_hash(struct layout_check *c)
{
	const struct layout_header *h = c->layout.header;
	const char *data = (const char *)h + HASHED_FROM;
	uint8_t hash[HASH_SIZE];

	digest_leaf(data, h->total_size - HASHED_FROM, c->next_leaf, c->leaves[c->next_leaf]);
	if (++c->next_leaf < c->n_leaves)
		return 0;
	digest_root(c->leaves, c->n_leaves, hash);
	if (memcmp(hash, h->hash, HASH_SIZE))
		return layout_check_wrong(c, 0, "its hash does not match its bytes");
	return 0;
}

static int check_name(struct layout_check *c, uint32_t at, const struct layout_tensor *t)
{
	const struct layout *l = &c->layout;
	uint32_t found;

	if (!string_ok(l, t->name, t->name_size) ||
	    !layout_name_ok(l->strings + t->name, t->name_size))
		return layout_check_wrong(c, at,
					  "its name is not 1 to 1024 bytes of UTF-8 without NUL");
	/* Every tensor is found under its own name: so no name stands twice, and the index is whole. */
	if (layout_find(l, l->strings + t->name, t->name_size, &found) < 0 || found != at)
		return layout_check_wrong(c, at,
					  "its name is used twice, or the name index is broken");
	return 0;
}

static int check_place(struct layout_check *c, uint32_t at, const struct layout_tensor *t)
{
	const struct layout_header *h = c->layout.header;
	uint64_t end;

	if (t->tied_to != LAYOUT_NONE) {
		const struct layout_tensor *to = &c->layout.tensors[t->tied_to];

		if (t->tied_to >= at || to->tied_to != LAYOUT_NONE)
			return layout_check_wrong(
				c, at, "it is tied to a tensor that is not an earlier, untied one");
		if (t->offset != to->offset || t->n_bytes != to->n_bytes || t->dtype != to->dtype)
			return layout_check_wrong(c, at, "it differs from the tensor it is tied to");
		return 0;
	}
	if (t->offset % h->alignment)
		return layout_check_wrong(c, at, "its offset is not aligned");
	if (t->offset < c->end)
		return layout_check_wrong(c, at,
					  "it overlaps the tensor before it, or is out of order");
	if (__builtin_add_overflow(t->offset, t->n_bytes, &end) || end > h->data_size)
		return layout_check_wrong(c, at, "it ends outside the buffer");
	c->end = end;
	return 0;
}

static int check_tensor(struct layout_check *c, uint32_t at)
{
	const struct layout *l = &c->layout;
	const struct layout_tensor *t = &l->tensors[at];
	uint64_t n_bytes;
	int r;

	for (size_t i = 0; i < sizeof(t->pad); i++)
		if (t->pad[i])
			return layout_check_wrong(c, at, "its padding is not zero");
	if (t->n_dims > LAYOUT_DIMS_MAX || (t->n_dims && !layout_tensor_shape(l, t)))
		return layout_check_wrong(c, at, "its shape lies outside the layout");
	if (dtype_tensor_size(t->dtype, t->n_dims, layout_tensor_shape(l, t), &n_bytes) < 0)
		return layout_check_wrong(c, at, "its dtype and shape give no number of bytes");
	if (n_bytes != t->n_bytes)
		return layout_check_wrong(c, at, "its size is not that of its dtype and shape");
	if (t->role < LAYOUT_PARAM || t->role >= LAYOUT_ROLE_END)
		return layout_check_wrong(c, at, "its role is unknown");
	if (t->unit != LAYOUT_NONE && t->unit >= l->header->n_units)
		return layout_check_wrong(c, at, "its unit lies outside the layout");
	r = check_place(c, at, t);
	if (r < 0)
		return r;
	return check_name(c, at, t);
}

static bool step_is_over(uint32_t n_done, uint64_t deadline_ns)
{
	return n_done % CLOCK_EVERY == 0 && num_now_ns() >= deadline_ns;
}

static int check_tensors(struct layout_check *c)
{
	uint64_t deadline_ns = num_now_ns() + STEP_NS;

	do {
		int r = check_tensor(c, c->next_tensor++);

		if (r < 0)
			return r;
	} while (c->next_tensor < c->layout.header->n_tensors &&
		 !step_is_over(c->next_tensor, deadline_ns));
	return 0;
}

static int check_unit(struct layout_check *c, uint32_t at)
{
	const struct layout_unit *u = &c->layout.units[at];

	if (u->pad || !string_ok(&c->layout, u->name, u->name_size) ||
	    !layout_name_ok(c->layout.strings + u->name, u->name_size))
		return layout_check_wrong(
			c, at, "a unit's name is not 1 to 1024 bytes of UTF-8 without NUL");
	return 0;
}

static int check_units(struct layout_check *c)
{
	uint64_t deadline_ns = num_now_ns() + STEP_NS;

	do {
		int r = check_unit(c, c->next_unit++);

		if (r < 0)
			return r;
	} while (c->next_unit < c->layout.header->n_units &&
		 !step_is_over(c->next_unit, deadline_ns));
	return 0;
}

static int check_end(struct layout_check *c)
{
	const struct layout_header *h = c->layout.header;
	uint64_t end;

	/* A file of another program may end with its last tensor. */
	if (!num_align_up(c->end, h->alignment, &end) ||
	    (h->data_size != end && h->data_size != c->end))
		return layout_check_wrong(c, 0, "its size is not where its last tensor ends");
	return 0;
}

int layout_check_step(struct layout_check *c)
{
	int r;

	if (c->next_leaf < c->n_leaves)
		r = check_hash(c);
	else if (c->next_tensor < c->layout.header->n_tensors)
		r = check_tensors(c);
	else if (c->next_unit < c->layout.header->n_units)
		r = check_units(c);
	else
		return check_end(c);
	return r < 0 ? r : 1;
}
