/*
 * Reads plans in their binary form. The bytes may be of another process, of another release: all that they can cause is a
 * refusal with a sentence.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/plan/build.h"
#include "libclient/train/plan/plan_image.h"
#include "libclient/train/plan/sentence.h"

#define TENSOR_SIZE 32 /* the least that a tensor takes */

/* Reads zeros behind the end. */
struct reader {
	const uint8_t *from;
	uint64_t left;
	bool is_short;
};

static const uint8_t *get_bytes(struct reader *r, uint64_t size)
{
	const uint8_t *bytes = r->from;

	if (r->is_short || size > r->left) {
		r->is_short = true;
		return NULL;
	}
	r->from += size;
	r->left -= size;
	return bytes;
}

static uint64_t get_number(struct reader *r, unsigned size)
{
	const uint8_t *bytes = get_bytes(r, size);
	uint64_t n = 0;

	for (unsigned i = 0; bytes && i < size; i++)
		n |= (uint64_t)bytes[i] << 8 * i;
	return n;
}

static uint32_t get_u32(struct reader *r)
{
	return (uint32_t)get_number(r, 4);
}

static double get_double(struct reader *r)
{
	uint64_t bits = get_number(r, 8);
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

/* Always ends with a zero: names have one byte less than their field. */
static void get_name(struct reader *r, char ret[IMAGE_NAME_SIZE])
{
	const uint8_t *bytes = get_bytes(r, IMAGE_NAME_SIZE);

	memset(ret, 0, IMAGE_NAME_SIZE);
	if (bytes)
		memcpy(ret, bytes, IMAGE_NAME_SIZE - 1);
}

/* Options and tensors of an image, before a plan is made of them. */
struct draft {
	char release[IMAGE_NAME_SIZE], strategy[IMAGE_NAME_SIZE];
	char dim_names[WEIGHTD_MESH_DIMS_MAX][IMAGE_NAME_SIZE];
	struct weightd_mesh_dim dims[WEIGHTD_MESH_DIMS_MAX];
	struct weightd_group groups[PLAN_GROUPS_MAX];
	struct weightd_scaling scaling;
	struct weightd_plan_options options;
	struct weightd_mesh *mesh;
	struct weightd_train_tensor *tensors;
	uint32_t n_tensors;
};

static void draft_deinit(struct draft *d)
{
	for (uint32_t i = 0; d->tensors && i < d->n_tensors; i++) {
		free((void *)d->tensors[i].name);
		free((void *)d->tensors[i].shape);
	}
	free(d->tensors);
	weightd_mesh_free(d->mesh);
}

static int cut_short(void)
{
	return train_fail(-EBADMSG, "the plan ends before its last tensor");
}

static int get_head(struct reader *r, struct draft *d)
{
	const uint8_t *magic = get_bytes(r, IMAGE_MAGIC_SIZE);
	uint32_t version = get_u32(r);

	if (!magic || memcmp(magic, IMAGE_MAGIC, IMAGE_MAGIC_SIZE))
		return train_fail(-EBADMSG, "these bytes are no plan of weightd");
	get_name(r, d->release);
	if (version != IMAGE_VERSION)
		return train_fail(
			-EBADMSG,
			"the plan has format %u, and this release reads format %d; all ranks must have one release",
			version, IMAGE_VERSION);
	return 0;
}

static int get_mesh(struct reader *r, struct draft *d)
{
	uint32_t n = get_u32(r);

	for (uint32_t i = 0; i < n && i < WEIGHTD_MESH_DIMS_MAX; i++) {
		get_name(r, d->dim_names[i]);
		d->dims[i] = (struct weightd_mesh_dim){d->dim_names[i], get_u32(r)};
	}
	if (r->is_short)
		return cut_short();
	return weightd_mesh_new(d->dims, n, &d->mesh);
}

static int get_options(struct reader *r, struct draft *d)
{
	struct weightd_plan_options *o = &d->options;
	uint32_t flags;

	o->size = sizeof(*o);
	o->mesh = d->mesh;
	get_name(r, d->strategy);
	o->strategy = d->strategy;
	o->optimizer = get_u32(r);
	o->form = get_u32(r);
	flags = get_u32(r);
	o->overlap = flags & IMAGE_OVERLAP;
	o->without_journal = flags & IMAGE_WITHOUT_JOURNAL;
	o->keeps_units = flags & IMAGE_KEEPS_UNITS;
	o->without_prefetch = flags & IMAGE_WITHOUT_PREFETCH;
	o->staleness = get_u32(r);
	o->n_copies = get_u32(r);
	o->n_nodes = get_u32(r);
	o->sync_every = get_u32(r);
	o->state_size = get_u32(r);
	o->bucket_bytes = get_number(r, 8);
	o->grad_dtype = get_u32(r);
	d->scaling = (struct weightd_scaling){.size = sizeof(d->scaling)};
	d->scaling.init = get_double(r);
	d->scaling.growth = get_double(r);
	d->scaling.backoff = get_double(r);
	d->scaling.interval = get_u32(r);
	o->scaling = flags & IMAGE_SCALING ? &d->scaling : NULL;
	o->n_groups = get_u32(r);
	o->groups = d->groups;
	for (uint32_t i = 0; i < o->n_groups && i < PLAN_GROUPS_MAX; i++) {
		struct weightd_group *g = &d->groups[i];

		g->size = sizeof(*g);
		g->weight_decay = get_double(r);
		g->beta1 = get_double(r);
		g->beta2 = get_double(r);
		g->eps = get_double(r);
		g->momentum = get_double(r);
		g->nesterov = get_u32(r) != 0;
	}
	return r->is_short ? cut_short() : 0;
}

static int get_tensor(struct reader *r, struct weightd_train_tensor *t)
{
	uint32_t name_size = get_u32(r);
	const uint8_t *name;
	uint64_t *shape;

	t->size = sizeof(*t);
	t->dtype = get_u32(r);
	t->role = get_u32(r);
	t->frozen = get_u32(r) != 0;
	t->group = get_u32(r);
	t->unit = get_u32(r);
	t->level = get_u32(r);
	t->n_dims = get_u32(r);
	if (name_size > WEIGHTD_TENSOR_NAME_MAX || t->n_dims > WEIGHTD_DIMS_MAX)
		return train_fail(-EBADMSG, "a tensor has a name of %u bytes and %u dimensions",
				  name_size, t->n_dims);
	shape = calloc(t->n_dims + 1ull, sizeof(*shape));
	if (!shape)
		return train_out_of_memory();
	for (uint32_t i = 0; i < t->n_dims; i++)
		shape[i] = get_number(r, 8);
	t->shape = shape;
	name = get_bytes(r, name_size);
	if (!name)
		return cut_short();
	t->name = strndup((const char *)name, name_size);
	return t->name ? 0 : train_out_of_memory();
}

static int get_tensors(struct reader *r, struct draft *d)
{
	uint32_t n = get_u32(r);

	if (r->is_short || n > r->left / TENSOR_SIZE)
		return cut_short();
	d->tensors = calloc(n + 1ull, sizeof(*d->tensors));
	if (!d->tensors)
		return train_out_of_memory();
	d->n_tensors = n;
	for (uint32_t i = 0; i < n; i++) {
		int err = get_tensor(r, &d->tensors[i]);

		if (err < 0)
			return err;
	}
	if (r->left)
		return train_fail(-EBADMSG, "the plan has %llu bytes behind its last tensor",
				  (unsigned long long)r->left);
	return 0;
}

static int get_draft(struct reader *r, struct draft *d)
{
	int err = get_head(r, d);

	if (err >= 0)
		err = get_mesh(r, d);
	if (err >= 0)
		err = get_options(r, d);
	if (err >= 0)
		err = get_tensors(r, d);
	return err;
}

int weightd_plan_parse(const void *image, uint64_t size, struct weightd_plan **ret)
{
	struct reader from = {image, size, false};
	struct weightd_plan *p = NULL;
	struct draft d = {0};
	int r;

	if (size > WEIGHTD_DESCRIPTION_MAX)
		return train_fail(-EBADMSG, "a plan of %llu bytes is too large; %d are the most",
				  (unsigned long long)size, WEIGHTD_DESCRIPTION_MAX);
	r = get_draft(&from, &d);
	if (r >= 0)
		r = build_plan(d.tensors, d.n_tensors, &d.options, d.release, &p);
	draft_deinit(&d);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		return train_fail(-EBADMSG, "%s", weightd_train_error());
	/* Zeros that stand for defaults, junk behind names, unknown flags. */
	if (p->image_size != size || memcmp(p->image, image, size)) {
		weightd_plan_free(p);
		return train_fail(-EBADMSG, "the plan is not in the form that weightd writes");
	}
	*ret = p;
	return 0;
}
