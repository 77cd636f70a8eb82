#include "libclient/train/plan/plan_image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/plan/build.h"
#include "libclient/train/plan/sentence.h"

/* Counts where there is no buffer yet. */
struct writer {
	uint8_t *to;
	uint64_t size;
};

static void put_bytes(struct writer *w, const void *bytes, size_t size)
{
	if (w->to && size)
		memcpy(w->to + w->size, bytes, size);
	w->size += size;
}

static void put_number(struct writer *w, uint64_t n, unsigned size)
{
	uint8_t bytes[8];

	for (unsigned i = 0; i < size; i++)
		bytes[i] = (uint8_t)(n >> 8 * i);
	put_bytes(w, bytes, size);
}

static void put_u32(struct writer *w, uint32_t n)
{
	put_number(w, n, 4);
}

static void put_double(struct writer *w, double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof(bits));
	put_number(w, bits, 8);
}

static void put_name(struct writer *w, const char *name)
{
	char field[IMAGE_NAME_SIZE] = {0};

	memcpy(field, name, strlen(name));
	put_bytes(w, field, sizeof(field));
}

static void put_mesh(struct writer *w, const struct weightd_mesh *m)
{
	struct weightd_mesh_dim dim;

	put_u32(w, weightd_mesh_n_dims(m));
	for (uint32_t i = 0; i < weightd_mesh_n_dims(m); i++) {
		(void)weightd_mesh_dim(m, i, &dim);
		put_name(w, dim.name);
		put_u32(w, dim.size);
	}
}

static void put_group(struct writer *w, const struct weightd_group *g)
{
	put_double(w, g->weight_decay);
	put_double(w, g->beta1);
	put_double(w, g->beta2);
	put_double(w, g->eps);
	put_double(w, g->momentum);
	put_u32(w, g->nesterov);
}

static void put_tensor(struct writer *w, const struct weightd_train_tensor *t)
{
	uint32_t name_size = (uint32_t)strlen(t->name);

	put_u32(w, name_size);
	put_u32(w, t->dtype);
	put_u32(w, t->role);
	put_u32(w, t->frozen);
	put_u32(w, t->group);
	put_u32(w, t->unit);
	put_u32(w, t->level);
	put_u32(w, t->n_dims);
	for (uint32_t i = 0; i < t->n_dims; i++)
		put_number(w, t->shape[i], 8);
	put_bytes(w, t->name, name_size);
}

static void put_plan(struct writer *w, const struct weightd_plan *p)
{
	put_bytes(w, IMAGE_MAGIC, IMAGE_MAGIC_SIZE);
	put_u32(w, IMAGE_VERSION);
	put_name(w, p->release);
	put_mesh(w, p->mesh);
	put_name(w, p->strategy);
	put_u32(w, p->optimizer);
	put_u32(w, p->form);
	put_u32(w, (p->overlap ? IMAGE_OVERLAP : 0) |
			   (p->without_journal ? IMAGE_WITHOUT_JOURNAL : 0) |
			   (p->has_scaling ? IMAGE_SCALING : 0) |
			   (p->keeps_units ? IMAGE_KEEPS_UNITS : 0) |
			   (p->without_prefetch ? IMAGE_WITHOUT_PREFETCH : 0));
	put_u32(w, p->staleness);
	put_u32(w, p->n_copies);
	put_u32(w, p->n_nodes);
	put_u32(w, p->sync_every);
	put_u32(w, p->state_size);
	put_number(w, p->bucket_bytes, 8);
	put_u32(w, p->grad_dtype);
	put_double(w, p->scaling.init);
	put_double(w, p->scaling.growth);
	put_double(w, p->scaling.backoff);
	put_u32(w, p->scaling.interval);
	put_u32(w, p->n_groups);
	for (uint32_t i = 0; i < p->n_groups; i++)
		put_group(w, &p->groups[i]);
	put_u32(w, p->n_tensors);
	for (uint32_t i = 0; i < p->n_tensors; i++)
		put_tensor(w, &p->tensors[i]);
}

int build_image(struct weightd_plan *p)
{
	struct writer w = {0};

	put_plan(&w, p);
	if (w.size > WEIGHTD_DESCRIPTION_MAX)
		return train_fail(
			-EINVAL,
			"the names and shapes of %u tensors take %llu bytes; a job has room for %d",
			p->n_tensors, (unsigned long long)w.size, WEIGHTD_DESCRIPTION_MAX);
	w.to = malloc(w.size);
	if (!w.to)
		return train_out_of_memory();
	w.size = 0;
	put_plan(&w, p);
	p->image = w.to;
	p->image_size = w.size;
	return 0;
}
