/*
 * Publishing: a version with the parameters, and this rank's buffers
 */
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);
CLEANUP_POINTER(struct weightd_writer, weightd_writer_free);

static int layout_make(const struct weightd_plan *p, struct weightd_layout **ret)
{
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	int r = weightd_layout_new(0, &layout);

	for (uint32_t i = 0; !r && i < p->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];

		r = weightd_layout_add(layout, t->name, t->dtype, t->n_dims, t->shape, t->role,
				       NULL);
		if (r < 0)
			return train_fail(r, "'%s' cannot be a tensor of a version: %s", t->name,
					  strerror(-r));
	}
	if (r < 0)
		return train_fail(r, "no memory for a layout of %u tensors", p->n_tensors);
	*ret = take_ptr(layout);
	return 0;
}

/* The values of a tensor; those of a buffer are this rank's. */
static const void *tensor_data(const struct weightd_train *t, uint32_t tensor)
{
	return t->plan->tensors[tensor].role == WEIGHTD_PARAM ? weightd_train_param(t, tensor)
							      : weightd_train_buffer(t, tensor);
}

/* The place of a tensor in the version is the newest version's. */
static int writer_fill(const struct weightd_train *t, struct weightd_writer *writer)
{
	for (uint32_t i = 0; i < t->plan->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &t->plan->tensors[i];
		struct weightd_tensor to = {.size = sizeof(to)};
		int r = weightd_writer_find(writer, tensor->name, &to);

		if (r >= 0)
			r = weightd_writer_write(writer, to.offset, tensor_data(t, i),
						 tensor->n_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

int weightd_train_publish(struct weightd_train *t, const char *name, uint64_t *ret_version)
{
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	cleanup(weightd_writer_freep) struct weightd_writer *writer = NULL;
	int r = trainer_check(t);

	if (!r)
		r = layout_make(t->plan, &layout);
	if (r < 0)
		return r;
	r = weightd_create(t->w, name, layout, NULL, &writer);
	if (r >= 0)
		r = writer_fill(t, writer);
	if (r >= 0)
		r = weightd_writer_publish(writer, ret_version);
	return r < 0 ? train_fail(r, "%s", weightd_error(t->w)) : 0;
}
