/*
 * The update: the caller's call for each step
 *
 * The arguments are saved, and the gradients handed over, once: a call after a failure continues the step.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libclient/train/executor.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/saved.h"
#include "libclient/train/step.h"

static int check_rates(const struct weightd_plan *p, const struct weightd_update *u)
{
	if (!u->lr)
		return train_fail(-EINVAL,
				  "lr is missing: give the learning rate of each of the %u groups",
				  p->n_groups);
	for (uint32_t i = 0; i < p->n_groups; i++)
		if (!isfinite(u->lr[i]))
			return train_fail(-EINVAL, "the learning rate of group %u is %g", i,
					  u->lr[i]);
	return 0;
}

static int check_update(const struct weightd_plan *p, const struct weightd_update *u)
{
	int r = check_rates(p, u);

	if (r < 0)
		return r;
	/* The sum of all ranks must be a number, too. */
	if (!(u->weight >= 0 && u->weight <= WEIGHTD_WEIGHT_MAX))
		return train_fail(-EINVAL,
				  "weight is %g; give a number from 0 to %g, such as the number of "
				  "samples of this rank",
				  u->weight, WEIGHTD_WEIGHT_MAX);
	if (u->weight > 0 && plan_pools_grads(p))
		return train_fail(-EINVAL,
				  "weight is %g, and the strategy '%s' sums gradients before weights "
				  "are known; leave it 0, and multiply the loss of this rank instead",
				  u->weight, p->strategy);
	if (isnan(u->max_norm) || u->max_norm < 0)
		return train_fail(-EINVAL, "max_norm is %g; give a positive norm, or 0 for none",
				  u->max_norm);
	if (u->max_norm > 0 && p->form != WEIGHTD_STEP_TWO_PHASE)
		return train_fail(-EINVAL,
				  "max_norm needs the norm of the whole gradient before the "
				  "update, which a fused step does not know; make the plan with "
				  "the form 'two-phase'");
	if (u->state_size > p->state_size)
		return train_fail(-EINVAL,
				  "the state has %" PRIu64 " bytes and the plan has room for %u; "
				  "raise state_size of the plan",
				  u->state_size, p->state_size);
	if (u->state_size && !u->state)
		return train_fail(-EINVAL, "state is missing, and state_size is %" PRIu64,
				  u->state_size);
	return 0;
}

static int check_unused(const struct weightd_train *t, const struct weightd_update *u)
{
	for (uint32_t i = 0; u->unused && i < t->plan->n_tensors; i++)
		if (u->unused[i] && !plan_pools_grads(t->plan) && t->handover.step == t->step + 1 &&
		    t->handover.is_ready[i])
			return train_fail(-EINVAL,
					  "'%s' is unused in this step, but its gradient was handed "
					  "over by weightd_train_ready(); do one of the two",
					  t->plan->tensors[i].name);
	return 0;
}

/* From here on the step happens, with these arguments. */
static int update_hand_over(struct weightd_train *t, const struct weightd_update *u, uint64_t step)
{
	struct control_rank *words = trainer_words(t);
	char what[64];
	int r;

	if (trainer_word(&words->grad) >= step)
		return 0;
	(void)snprintf(what, sizeof(what), "hand over its gradients of step %" PRIu64, step);
	r = t->write.is_open ? train_fail(-EINVAL, "call weightd_train_write_end() before the step")
			     : 0;
	if (!r)
		r = wait_check_removed(&t->place, what);
	if (!r)
		r = check_update(t->plan, u);
	if (!r)
		r = check_unused(t, u);
	if (!r)
		r = handover_check(t);
	if (!r)
		r = units_check(t);
	if (!r && plan_pools_grads(t->plan))
		r = queue_finish(t, step);
	if (r < 0)
		return r;
	saved_write(t, u, step);
	if (u->has_loss)
		status_set_loss(&t->status, u->loss);
	kernels_fence(); /* the caller may have written GRAD with non-temporal stores */
	handover_complete(t, step);
	if (step == 1) /* a load may have been given up */
		wait_publish(&words->loaded, 0);
	wait_publish(&words->grad, step);
	return 0;
}

/* Counts sums during backward as well, and first values. */
static void count_traffic(struct weightd_train *t)
{
	struct control_rank *words = trainer_words(t);

	words->traffic_read = t->before.read + t->n_read;
	words->traffic_written = t->before.written + t->n_written;
	words->traffic_sent = t->before.sent + t->exchange.n_sent;
	words->traffic_replicas = t->before.sent_replicas + t->exchange.n_sent_replicas;
}

static int update_advance(struct weightd_train *t, uint64_t step)
{
	int r = overlap_end(t, step);

	if (!r)
		r = executor_advance(t, trainer_version(t, step), step);
	count_traffic(t);
	return r;
}

static int update_result(struct weightd_train *t)
{
	uint64_t step = t->nan_step;

	t->nan_step = 0;
	if (!step)
		return 0;
	return train_fail(-EDOM,
			  "the loss of rank %u in step %" PRIu64
			  " is not a number: the step changed nothing on any rank",
			  t->nan_rank, step);
}

int weightd_train_update(struct weightd_train *t, const struct weightd_update *u)
{
	uint64_t step = t->step + 1;
	struct weightd_update own;
	int r = trainer_check(t);

	if (!r)
		r = given_copy(u, GIVEN_UPDATE_MIN, &own, sizeof(own), "struct weightd_update");
	if (!r && !t->is_begun)
		r = train_fail(-EINVAL, "call weightd_train_begin() before the first step");
	if (r < 0)
		return r;
	status_enter(&t->status.main, CONTROL_UPDATING);
	r = update_hand_over(t, &own, step);
	if (!r)
		r = update_advance(t, step);
	if (r < 0) {
		status_enter(&t->status.main, CONTROL_COMPUTING);
		return r;
	}
	trainer_complete(t, step);
	return update_result(t);
}

double weightd_train_norm(const struct weightd_train *t)
{
	return t->norm;
}

int weightd_train_traffic(const struct weightd_train *t, struct weightd_traffic *ret)
{
	struct weightd_traffic traffic = {.read = t->n_read,
					  .written = t->n_written,
					  .sent = t->exchange.n_sent,
					  .sent_replicas = t->exchange.n_sent_replicas};

	return given_return(ret, GIVEN_TRAFFIC_MIN, &traffic, sizeof(traffic),
			    "struct weightd_traffic");
}
