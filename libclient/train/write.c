/*
 * Values written between steps
 *
 * A barrier before and after the writes of rank 0. The words of the ranks are of the step and the number of the write in it,
 * so that a rank that was started anew repeats its calls: what is complete is not done again, since others may have
 * computed with the values since.
 *
 * With several nodes, node 0's values count. It lacks the originals of parameters that other nodes update: they are in
 * RECEIVED, at their places, from the exchange behind the first barrier on to the one behind the second, which sends all
 * values to all nodes. RECEIVED is free between steps, and outlives a rank that is killed there.
 *
 * With plan_pools_grads() it is too small: the values are in the process of rank 0 of node 0 (values.h), which asks for the
 * originals, and writes, again if it is killed before all nodes have the values.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libclient/train/exchange.h"
#include "libclient/train/fill.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/saved.h"
#include "libclient/train/trainer.h"

/* The word of this write at a point. */
static uint64_t write_word(const struct weightd_train *t, uint64_t point)
{
	return control_write(t->write.step, t->write.n_ended + 1, point);
}

static bool has_passed(const struct weightd_train *t, uint64_t point)
{
	return trainer_word(&trainer_words(t)->write) >= write_word(t, point);
}

/* No process writes again. */
static bool is_complete(const struct weightd_train *t)
{
	uint64_t sent = control_values(t->write.n_ended + 1, CONTROL_SENT);

	if (!values_are_pooled(t->plan))
		return has_passed(t, CONTROL_WRITE_ENDED);
	return trainer_word(&trainer_words(t)->line) >= control_exchange(t->write.step, sent);
}

static void pass(struct weightd_train *t, uint64_t point)
{
	if (!has_passed(t, point))
		wait_publish(&trainer_words(t)->write, write_word(t, point));
}

static int wait_for_rank(struct weightd_train *t, uint32_t rank, uint64_t point, const char *what)
{
	struct wait_reason reason = {.rank = rank,
				     .step = t->step,
				     .what = what,
				     .topic = CONTROL_WRITTEN_VALUES,
				     .for_successor = true};

	return wait_for(&t->place, &arena_rank(&t->arena, rank)->write, write_word(t, point),
			&reason);
}

static int check_begin(const struct weightd_train *t)
{
	int r = trainer_check(t);

	if (r < 0)
		return r;
	if (!t->is_begun)
		return train_fail(-EINVAL, "before weightd_train_begin() there is nothing to change; "
					   "give first values with weightd_train_fill()");
	if (t->plan->staleness)
		return train_fail(-EINVAL, "a plan with staleness has no time between two steps of "
					   "all ranks in which values can be written");
	if (trainer_word(&trainer_words(t)->grad) > t->step)
		return train_fail(-EINVAL,
				  "step %" PRIu64
				  " is not complete; repeat it (weightd_train_update(), "
				  "step()) before values are written",
				  t->step + 1);
	if (t->plan->overlap && plan_sums_nodes(t->plan) && t->handover.step == t->step + 1)
		return train_fail(-EINVAL,
				  "gradients of step %" PRIu64 " were handed over by "
				  "weightd_train_ready(), and go to other nodes now; write values "
				  "before that, or after weightd_train_update()",
				  t->step + 1);
	if (units_were_opened(t))
		return train_fail(-EINVAL,
				  "units were opened after step %" PRIu64
				  ", for an evaluation, weightd_train_publish() or the next step; write "
				  "values before that, or after the next weightd_train_update()",
				  t->step);
	if (t->write.is_open)
		return train_fail(-EINVAL, "weightd_train_write_begin() was called before, without "
					   "weightd_train_write_end()");
	if (t->write.step == t->step && t->write.n_ended == CONTROL_WRITES_MAX)
		return train_fail(-EINVAL,
				  "values were written %u times after step %" PRIu64
				  "; write them at once",
				  t->write.n_ended, t->step);
	return 0;
}

int weightd_train_write_begin(struct weightd_train *t)
{
	int r = check_begin(t);

	if (r < 0)
		return r;
	if (t->write.step != t->step)
		t->write = (struct write){.step = t->step};
	pass(t, CONTROL_WRITE_BEGUN);
	for (uint32_t rank = 0; !r && rank < t->plan->n_ranks; rank++)
		r = wait_for_rank(t, rank, CONTROL_WRITE_BEGUN,
				  "begin to write values (weightd_train_write_begin(), writable())");
	if (!r)
		r = exchange_fetch(t, t->step, t->write.n_ended + 1);
	t->write.is_open = !r;
	return r;
}

static int check_open(const struct weightd_train *t, const char *call)
{
	int r = trainer_check(t);

	if (r < 0 || t->write.is_open)
		return r;
	return train_fail(-EINVAL, "call weightd_train_write_begin() before %s", call);
}

const float *weightd_train_written(const struct weightd_train *t, uint32_t tensor)
{
	const struct weightd_plan *p = t->plan;

	if (trainer_check(t) < 0 || !t->write.is_open || !t->values.flat ||
	    tensor >= p->n_tensors || !plan_is_trained(&p->tensors[tensor]))
		return NULL;
	return t->values.flat + plan_elements(p, &p->tensors[tensor]).begin;
}

static int check_write(const struct weightd_train *t, uint32_t tensor)
{
	int r = check_open(t, "weightd_train_write()");

	if (r < 0)
		return r;
	if (tensor >= t->plan->n_tensors)
		return train_fail(-ENOENT, "the plan has %u tensors, and no tensor %u",
				  t->plan->n_tensors, tensor);
	if (t->plan->tensors[tensor].role == WEIGHTD_PARAM && t->arena.rank != 0)
		return train_fail(-EINVAL, "rank %u cannot write '%s': rank 0 does, for all",
				  t->arena.rank, t->plan->tensors[tensor].name);
	return 0;
}

/* A save has copies of all else, and is of node 0's. */
static int check_frozen(struct weightd_train *t, const struct weightd_train_tensor *tensor)
{
	if (t->arena.node || !tensor->frozen || !t->saving.state || !t->saving.is_running(t))
		return 0;
	return train_fail(-EBUSY,
			  "'%s' is frozen, and a save writes it to the disk now; wait for its "
			  "end (weightd_train_save_wait(), save(wait=True)) before values are "
			  "written",
			  tensor->name);
}

int weightd_train_write(struct weightd_train *t, uint32_t tensor, const void *data)
{
	int r = check_write(t, tensor);

	if (r < 0)
		return r;
	if (t->plan->tensors[tensor].role != WEIGHTD_PARAM)
		return fill_own_buffer(t, tensor, data);
	if (is_complete(t))
		return 0;
	r = check_frozen(t, &t->plan->tensors[tensor]);
	return r < 0 ? r : fill_param(t, tensor, data);
}

int weightd_train_write_end(struct weightd_train *t)
{
	int r = check_open(t, "weightd_train_write_end()");

	if (!r && t->arena.rank == 0)
		fill_end(t);
	else if (!r)
		r = wait_for_rank(t, 0, CONTROL_WRITE_ENDED,
				  "end its writes of values (weightd_train_write_end(), writable())");
	if (r < 0)
		return r;
	/* As with the parameters, a restart and a save find those that were written. Step 0 has no slot. */
	if (t->step)
		saved_write_buffers(t, t->step);
	pass(t, CONTROL_WRITE_ENDED);
	r = exchange_values(t, t->step, t->write.n_ended + 1);
	if (r < 0)
		return r;
	t->write.n_ended++;
	t->write.is_open = false;
	return 0;
}
