/*
 * Publishing: a version with the parameters, and this rank's buffers
 *
 * Where parameters are sharded over nodes, all ranks gather one unit after the other, and those that publish copy it. A rank
 * that cannot write, or publishes nothing, gathers all the same: the others need it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);
CLEANUP_POINTER(struct weightd_writer, weightd_writer_free);

struct publishing {
	struct weightd_train *t;
	struct weightd_writer *writer; /* NULL: nothing is written, or not any more */
	uint32_t next; /* the next tensor */
	int r; /* of making and writing the version */
	char *error; /* its sentence; NULL: no memory for it */
};

static void publishing_fail(struct publishing *p, int r)
{
	p->r = r;
	p->error = strdup(weightd_train_error());
}

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

static int writer_make(struct weightd_train *t, const char *name, const uint32_t *owner,
		       struct weightd_writer **ret)
{
	const struct weightd_create_options options = {.size = sizeof(options), .owner = owner};
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	int r = layout_make(t->plan, &layout);

	if (r < 0)
		return r;
	r = weightd_create(t->w, name, layout, &options, ret);
	return r < 0 ? train_fail(r, "%s", weightd_error(t->w)) : 0;
}

/* The values of a tensor; those of a buffer are this rank's. */
static const void *tensor_data(const struct weightd_train *t, uint32_t tensor)
{
	return t->plan->tensors[tensor].role == WEIGHTD_PARAM ? weightd_train_param(t, tensor)
							      : weightd_train_buffer(t, tensor);
}

/* The place of a tensor in the version is the newest version's. */
static int tensor_write(struct publishing *p, uint32_t tensor)
{
	const struct weightd_train_tensor *from = &p->t->plan->tensors[tensor];
	struct weightd_tensor to = {.size = sizeof(to)};
	int r = weightd_writer_find(p->writer, from->name, &to);

	if (r >= 0)
		r = weightd_writer_write(p->writer, to.offset, tensor_data(p->t, tensor),
					 from->n_bytes);
	return r < 0 ? train_fail(r, "%s", weightd_error(p->t->w)) : 0;
}

/* Those of units up to this one, and what is between them and in none. */
static void tensors_write(struct publishing *p, uint32_t unit)
{
	const struct weightd_plan *plan = p->t->plan;

	for (; p->next < plan->n_tensors; p->next++) {
		const struct weightd_train_tensor *next = &plan->tensors[p->next];
		int r;

		if (plan_is_trained(next) && next->n_bytes && next->unit > unit)
			return;
		r = p->writer && !p->r ? tensor_write(p, p->next) : 0;
		if (r < 0)
			publishing_fail(p, r);
	}
}

/* Nothing but a failure of the ranks ends it. */
static int units_walk(struct publishing *p)
{
	struct weightd_train *t = p->t;
	int r = units_check(t);

	for (uint32_t unit = 0; !r && unit < t->plan->n_units; unit++) {
		r = weightd_train_unit_open(t, unit, WEIGHTD_PASS_EVALUATION);
		if (!r)
			tensors_write(p, unit);
		if (!r)
			r = weightd_train_unit_close(t, unit);
	}
	return r;
}

/* A signal does not end the waits for the others: the call cannot be repeated from where it was. */
static int publish_units(struct publishing *p)
{
	struct wait_place *place = &p->t->place;
	bool is_interruptible = place->is_interruptible;
	int r;

	place->is_interruptible = false;
	r = units_walk(p);
	place->is_interruptible = is_interruptible;
	return r;
}

static int check_publish(const struct weightd_train *t, const char *name)
{
	int r = trainer_check(t);

	if (r < 0 || name || t->plan->n_units)
		return r;
	return train_fail(-EINVAL,
			  "name is missing: without one a rank takes part in a version of others, "
			  "which the strategy '%s' does not need",
			  t->plan->strategy);
}

/* The process before this one had done all, up to weightd_train_close(): the ranks of other nodes may be gone. */
static bool has_ended(const struct weightd_train *t)
{
	uint64_t line = trainer_word(&trainer_words(t)->line);

	return plan_shards_params(t->plan) && control_exchange_index(line) >= CONTROL_ENDS;
}

static int end_again(const char *name)
{
	if (!name)
		return 0;
	return train_fail(
		-EALREADY,
		"the process that was this rank before has published '%s', and was closing the "
		"job; the other nodes may have ended, and do not gather parameters again",
		name);
}

int weightd_train_publish_owned(struct weightd_train *t, const char *name, const uint32_t *owner,
				uint64_t *ret_version)
{
	cleanup(weightd_writer_freep) struct weightd_writer *writer = NULL;
	struct publishing p = {.t = t};
	cleanup(freep) char *error = NULL;
	int r = check_publish(t, name);

	if (r < 0)
		return r;
	if (has_ended(t))
		return end_again(name);
	r = name ? writer_make(t, name, owner, &writer) : 0;
	if (r < 0)
		publishing_fail(&p, r);
	p.writer = writer;
	r = plan_shards_params(t->plan) ? publish_units(&p) : 0;
	if (!r)
		tensors_write(&p, UINT32_MAX);
	error = p.error;
	if (r < 0)
		return r;
	if (p.r < 0)
		return train_fail(p.r, "%s", error ? error : "out of memory");
	if (!writer)
		return 0;
	r = weightd_writer_publish(writer, ret_version);
	return r < 0 ? train_fail(r, "%s", weightd_error(t->w)) : 0;
}

int weightd_train_publish(struct weightd_train *t, const char *name, uint64_t *ret_version)
{
	return weightd_train_publish_owned(t, name, NULL, ret_version);
}
