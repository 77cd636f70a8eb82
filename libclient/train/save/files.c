#include "libclient/train/save/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/quote.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

/* A file in the making: its tensors, and where their bytes are. */
struct contents {
	struct weightd_layout *layout;
	const void **data;
	uint32_t n, max;
};

static void contents_deinit(struct contents *c)
{
	weightd_layout_free(c->layout);
	free(c->data);
}

static int contents_init(struct contents *c, uint32_t max)
{
	int r = weightd_layout_new(0, &c->layout);

	c->max = max;
	c->data = calloc(max, sizeof(*c->data));
	return r < 0 || !c->data ? train_out_of_memory() : 0;
}

/* A tensor called PREFIX NAME SUFFIX, of the shape of `t`. */
static int contents_add(struct contents *c, const char *prefix, const struct weightd_train_tensor *t,
			const char *suffix, enum weightd_dtype dtype, const void *data)
{
	char name[WEIGHTD_TENSOR_NAME_MAX + 64];
	struct quote q;
	int r;

	(void)snprintf(name, sizeof(name), "%s%s%s", prefix, t->name, suffix);
	r = weightd_layout_add(c->layout, name, dtype, t->n_dims, t->shape, t->role, NULL);
	if (r < 0)
		return train_fail(r, "%s cannot be a tensor of a checkpoint: %s",
				  quote_name(&q, name),
				  r == -EINVAL ? "its name is too long" : strerror(-r));
	c->data[c->n++] = data;
	return 0;
}

static int contents_write(const struct contents *c, const struct files_to *to, const char *name)
{
	struct weightd_safetensors_contents contents = {
		.size = sizeof(contents),
		.layout = c->layout,
		.data = c->data,
		.progress = to->progress,
		.userdata = to->userdata,
	};
	int r = weightd_safetensors_write(to->w, to->folder, name, &contents);

	return r < 0 ? train_fail(r, "%s", weightd_error(to->w)) : 0;
}

/* --- Parameters ------------------------------------------------------------------------------------ */

static uint64_t place_in(const struct snapshot *s, const struct weightd_plan *p,
			 const struct weightd_train_tensor *t)
{
	return plan_elements(p, t).begin - s->owned.begin;
}

/* A tensor without bytes has no owner by its elements: rank 0 has it. */
static bool writes(const struct weightd_train *t, const struct weightd_train_tensor *tensor)
{
	uint32_t rank = t->arena.rank;

	if (!plan_is_trained(tensor) || !tensor->n_bytes)
		return rank == 0;
	return checkpoint_owner(t->plan, tensor) == rank;
}

static const void *value_of(const struct weightd_train *t, const struct snapshot *s, uint32_t index)
{
	const struct weightd_train_tensor *tensor = &t->plan->tensors[index];

	if (!tensor->n_bytes)
		return NULL;
	if (tensor->role == WEIGHTD_BUFFER)
		return s->ranks[0].buffers + tensor->offset;
	if (tensor->frozen)
		return weightd_train_param(t, index);
	return s->param +
	       place_in(s, t->plan, tensor) * plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
}

/* The file of tensors that this rank owns. */
static int write_owned(const struct contents *c, const struct files_to *to,
		       const struct weightd_train *t, const char *stem)
{
	struct checkpoint_files files;
	char name[CHECKPOINT_NAME_MAX];

	if (!c->n)
		return 0;
	checkpoint_files_find(t->plan, &files);
	checkpoint_file(&files, stem, t->arena.rank, name);
	return contents_write(c, to, name);
}

static int write_model(const struct files_to *to, const struct weightd_train *t,
		       const struct snapshot *s)
{
	cleanup(contents_deinit) struct contents c = {0};
	int r = contents_init(&c, t->plan->n_tensors);

	for (uint32_t i = 0; r == 0 && i < t->plan->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &t->plan->tensors[i];

		if (writes(t, tensor))
			r = contents_add(&c, "", tensor, "", tensor->dtype, value_of(t, s, i));
	}
	if (r < 0)
		return r;
	return write_owned(&c, to, t, CHECKPOINT_MODEL);
}

/* --- The optimizer's state ------------------------------------------------------------------------- */

static int add_states(struct contents *c, const struct weightd_plan *p, const struct snapshot *s,
		      const struct weightd_train_tensor *tensor)
{
	struct checkpoint_state state;
	int r = 0;

	for (uint32_t i = 0; r == 0 && checkpoint_state(p, i, &state); i++)
		r = contents_add(c, "", tensor, state.suffix, WEIGHTD_F32,
				 tensor->n_bytes ? s->states[i] + place_in(s, p, tensor) : NULL);
	return r;
}

static int write_optimizer(const struct files_to *to, const struct weightd_train *t,
			   const struct snapshot *s)
{
	cleanup(contents_deinit) struct contents c = {0};
	int r = contents_init(&c, t->plan->n_tensors * CHECKPOINT_STATES_MAX);

	for (uint32_t i = 0; r == 0 && i < t->plan->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &t->plan->tensors[i];

		if (plan_is_trained(tensor) && writes(t, tensor))
			r = add_states(&c, t->plan, s, tensor);
	}
	if (r < 0)
		return r;
	return write_owned(&c, to, t, CHECKPOINT_OPTIMIZER);
}

/* --- The ranks -------------------------------------------------------------------------------------- */

static int write_rank(const struct files_to *to, const struct weightd_train *t, uint32_t node,
		      const struct snapshot_rank *rank)
{
	cleanup(contents_deinit) struct contents c = {0};
	struct weightd_train_tensor state = {.name = CHECKPOINT_STATE,
					     .n_dims = 1,
					     .shape = &rank->state_size,
					     .role = WEIGHTD_BUFFER};
	char name[CHECKPOINT_NAME_MAX];
	int r = contents_init(&c, t->plan->n_tensors + 1);

	if (r == 0)
		r = contents_add(&c, "", &state, "", WEIGHTD_U8, rank->state);
	for (uint32_t i = 0; r == 0 && i < t->plan->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &t->plan->tensors[i];

		if (tensor->role == WEIGHTD_BUFFER)
			r = contents_add(&c, CHECKPOINT_BUFFER, tensor, "", tensor->dtype,
					 tensor->n_bytes ? rank->buffers + tensor->offset : NULL);
	}
	if (r < 0)
		return r;
	checkpoint_file_name(CHECKPOINT_RANK, checkpoint_rank(t->plan, node, t->arena.rank) + 1,
			     weightd_mesh_n_ranks(t->plan->mesh), name);
	return contents_write(&c, to, name);
}

int files_write(const struct files_to *to, const struct weightd_train *t, const struct snapshot *s)
{
	int r = write_model(to, t, s);

	if (r == 0)
		r = write_optimizer(to, t, s);
	for (uint32_t node = 0; r == 0 && node < t->plan->n_nodes; node++)
		r = write_rank(to, t, node, &s->ranks[node]);
	return r;
}
