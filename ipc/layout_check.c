#include "ipc/layout_check.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/digest.h"

/*
 * The clock ends a step, not a number of tensors: in a table full of look-ups to the end of
 * LAYOUT_PROBES_MAX a tensor takes 20 times as long as in an honest one, and more where each of them
 * is at another end of an image that is not in memory.
 */
#define STEP_NS 1000000u
#define EFFORT_TENSOR 2
#define EFFORT_TOUCH 16
#define EFFORT_COPY 4
#define EFFORT_MAX 64 /* between looks at the clock */

static int layout_check_wrong(struct layout_check *c, uint32_t at, const char *why)
{
	c->at = at;
	c->why = why;
	return -EBADMSG;
}

int layout_check_init(struct layout_check *c, const void *image, uint64_t size)
{
	int r;

	*c = (struct layout_check){.size = size};
	r = layout_open(image, size, &c->layout);
	if (r < 0)
		return layout_check_wrong(c, 0, "its header is not that of a layout of this size");
	c->n_leaves = digest_n_leaves(size - LAYOUT_HASHED_FROM);
	c->leaves = calloc(c->n_leaves, sizeof(*c->leaves));
	return c->leaves ? 0 : -ENOMEM;
}

void layout_check_deinit(struct layout_check *c)
{
	free(c->leaves);
	c->leaves = NULL;
}

void layout_check_move(struct layout_check *c, const void *image)
{
	int r = layout_open(image, c->size, &c->layout);

	assert(r == 0); /* as when it was opened first */
}

static void touch(struct layout_check *c, const void *p, size_t size)
{
	if (c->touch && c->touch(c->touch_arg, p, size))
		c->effort += EFFORT_TOUCH;
}

/* Copies scattered bytes. */
static void copy(struct layout_check *c, const void *p, size_t size, void *ret)
{
	if (c->copy) {
		c->effort += EFFORT_COPY;
		if (c->copy(c->touch_arg, p, size, ret))
			return;
	}
	touch(c, p, size);
	memcpy(ret, p, size);
}

static bool step_is_over(struct layout_check *c)
{
	if (c->effort >= EFFORT_MAX) {
		c->effort = 0;
		c->is_over |= num_now_ns() >= c->deadline_ns;
	}
	return c->is_over;
}

static int check_leaf(struct layout_check *c)
{
	const struct layout_header *h = c->layout.header;
	const char *data = (const char *)h + LAYOUT_HASHED_FROM;
	uint64_t size = c->size - LAYOUT_HASHED_FROM, at = c->next_leaf * DIGEST_LEAF_SIZE;
	uint8_t hash[HASH_SIZE];

	touch(c, data + at, size - at < DIGEST_LEAF_SIZE ? size - at : DIGEST_LEAF_SIZE);
	digest_leaf(data, size, c->next_leaf, c->leaves[c->next_leaf]);
	c->effort += EFFORT_MAX;
	if (++c->next_leaf < c->n_leaves)
		return 1;
	digest_root(c->leaves, c->n_leaves, hash);
	if (memcmp(hash, h->hash, HASH_SIZE))
		return layout_check_wrong(c, 0, "its hash does not match its bytes");
	return 1;
}

/* The string lies inside the section, is terminated there, and is a name. */
static bool name_ok(struct layout_check *c, uint64_t start, uint64_t size)
{
	const struct layout *l = &c->layout;
	uint64_t n = l->header->strings_size;

	if (size > LAYOUT_NAME_MAX || start >= n || size >= n - start)
		return false;
	touch(c, l->strings + start, size + 1);
	return l->strings[start + size] == '\0' && layout_name_ok(l->strings + start, size);
}

/* For a name that is one: whether the tensor with this index has the same. */
static bool is_called_so(struct layout_check *c, uint32_t index, const char *name,
			 uint32_t name_size)
{
	const struct layout *l = &c->layout;
	uint64_t n = l->header->strings_size;
	char other[LAYOUT_NAME_MAX + 1];
	struct layout_tensor t;

	copy(c, &l->tensors[index], sizeof(t), &t);
	if (t.name_size != name_size || t.name >= n || name_size >= n - t.name)
		return false;
	copy(c, l->strings + t.name, name_size + 1, other);
	return !other[name_size] && !memcmp(other, name, name_size);
}

/*
 * Every tensor is found under its own name: so no name stands twice, and the index is whole. As
 * layout_find() looks, which may take more than a step.
 */
static int check_index(struct layout_check *c, uint32_t at, const struct layout_tensor *t)
{
	const struct layout *l = &c->layout;
	const char *name = l->strings + t->name;
	uint32_t mask = l->header->n_buckets - 1;
	uint32_t bucket = layout_bucket(name, t->name_size, mask + 1);

	while (c->next_probe < LAYOUT_PROBES_MAX) {
		uint32_t index;

		copy(c, &l->buckets[(bucket + c->next_probe++) & mask], sizeof(index), &index);
		if (index == at) {
			c->next_probe = 0;
			return 0;
		}
		if (index >= l->header->n_tensors || is_called_so(c, index, name, t->name_size))
			break;
		c->effort++;
		if (step_is_over(c))
			return 1;
	}
	return layout_check_wrong(c, at, "its name is used twice, or the name index is broken");
}

static int check_place(struct layout_check *c, uint32_t at, const struct layout_tensor *t)
{
	const struct layout_header *h = c->layout.header;
	uint64_t end;

	if (t->tied_to != LAYOUT_NONE) {
		struct layout_tensor to = {.tied_to = at};

		if (t->tied_to < at)
			copy(c, &c->layout.tensors[t->tied_to], sizeof(to), &to);
		if (to.tied_to != LAYOUT_NONE)
			return layout_check_wrong(
				c, at, "it is tied to a tensor that is not an earlier, untied one");
		if (t->offset != to.offset || t->n_bytes != to.n_bytes || t->dtype != to.dtype)
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

static int check_shape(struct layout_check *c, uint32_t at, const struct layout_tensor *t)
{
	const uint64_t *shape = layout_tensor_shape(&c->layout, t);
	uint64_t n_bytes;

	if (t->n_dims > LAYOUT_DIMS_MAX || (t->n_dims && !shape))
		return layout_check_wrong(c, at, "its shape lies outside the layout");
	if (shape)
		touch(c, shape, t->n_dims * sizeof(*shape));
	if (dtype_tensor_size(t->dtype, t->n_dims, shape, &n_bytes) < 0)
		return layout_check_wrong(c, at, "its dtype and shape give no number of bytes");
	if (n_bytes != t->n_bytes)
		return layout_check_wrong(c, at, "its size is not that of its dtype and shape");
	return 0;
}

/* All but the name index. */
static int check_entry(struct layout_check *c, uint32_t at, const struct layout_tensor *t)
{
	int r;

	for (size_t i = 0; i < sizeof(t->pad); i++)
		if (t->pad[i])
			return layout_check_wrong(c, at, "its padding is not zero");
	r = check_shape(c, at, t);
	if (r < 0)
		return r;
	if (t->role < LAYOUT_PARAM || t->role >= LAYOUT_ROLE_END)
		return layout_check_wrong(c, at, "its role is unknown");
	if (t->unit != LAYOUT_NONE && t->unit >= c->layout.header->n_units)
		return layout_check_wrong(c, at, "its unit lies outside the layout");
	r = check_place(c, at, t);
	if (r < 0)
		return r;
	if (!name_ok(c, t->name, t->name_size))
		return layout_check_wrong(c, at,
					  "its name is not 1 to 1024 bytes of UTF-8 without NUL");
	return 0;
}

static int check_tensor(struct layout_check *c)
{
	uint32_t at = c->next_tensor;
	const struct layout_tensor *t = &c->layout.tensors[at];
	int r;

	touch(c, t, sizeof(*t));
	c->effort += EFFORT_TENSOR;
	r = c->next_probe ? 0 : check_entry(c, at, t);
	if (r == 0)
		r = check_index(c, at, t);
	if (r == 0)
		c->next_tensor++;
	return r < 0 ? r : 1;
}

static int check_unit(struct layout_check *c)
{
	uint32_t at = c->next_unit++;
	const struct layout_unit *u = &c->layout.units[at];

	touch(c, u, sizeof(*u));
	c->effort += EFFORT_TENSOR;
	if (u->pad || !name_ok(c, u->name, u->name_size))
		return layout_check_wrong(
			c, at, "a unit's name is not 1 to 1024 bytes of UTF-8 without NUL");
	return 1;
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

static int check_next(struct layout_check *c)
{
	if (c->next_leaf < c->n_leaves)
		return check_leaf(c);
	if (c->next_tensor < c->layout.header->n_tensors)
		return check_tensor(c);
	if (c->next_unit < c->layout.header->n_units)
		return check_unit(c);
	return check_end(c);
}

int layout_check_step(struct layout_check *c)
{
	int r;

	c->effort = 0;
	c->is_over = false;
	c->deadline_ns = num_now_ns() + STEP_NS;
	do
		r = check_next(c);
	while (r > 0 && !step_is_over(c));
	return r;
}
