/*
 * The executor: a function for each type of operation
 */
#include "libclient/train/executor.h"

#include "ipc/base/num.h"
#include "libclient/train/finish.h"

/* Gradients of all ranks are handed over: only then all know weights, learning rates, and losses that are no numbers. */
static int compute_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;

	(void)op;
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = s->number,
					     .what = "hand over its gradients",
					     .for_successor = true};
		int r = wait_for(&t->place, &arena_rank(&t->arena, rank)->grad, s->number, &reason);

		if (r < 0)
			return r;
	}
	step_init(s, t, s->number);
	return 0;
}

static int reduce_run(struct step *s, const struct plan_op *op)
{
	step_reduce(s, &s->t->arena, op->bucket);
	return 0;
}

static void finish_sums(struct step *s, const struct arena *theirs)
{
	for (uint32_t bucket = 0; bucket < theirs->plan->n_buckets; bucket++)
		step_reduce(s, theirs, bucket);
	step_measure(s, theirs);
}

static int decide_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;

	(void)op;
	if (s->is_skipped)
		return 0;
	step_measure(s, &t->arena);
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = s->number,
					     .what = "sum its part of the gradients"};
		int r = finish_wait(s, &arena_rank(&t->arena, rank)->norm_step, s->number, &reason,
				    finish_sums);

		if (r < 0)
			return r;
	}
	step_decide(s);
	return 0;
}

static int update_run(struct step *s, const struct plan_op *op)
{
	(void)op;
	step_update(s, &s->t->arena);
	return 0;
}

static void finish_update(struct step *s, const struct arena *theirs)
{
	step_update(s, theirs);
	step_commit(s, theirs);
}

static int commit_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;

	(void)op;
	step_commit(s, &t->arena);
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = s->number,
					     .what = "update its parameters"};
		int r = finish_wait(s, &arena_rank(&t->arena, rank)->param, s->number, &reason,
				    finish_update);

		if (r < 0)
			return r;
	}
	return 0;
}

static int (*const op_run[])(struct step *s, const struct plan_op *op) = {
	[PLAN_COMPUTE] = compute_run, [PLAN_REDUCE] = reduce_run, [PLAN_DECIDE] = decide_run,
	[PLAN_UPDATE] = update_run,   [PLAN_COMMIT] = commit_run,
};

static int step_walk(struct weightd_train *t, uint64_t number)
{
	struct step s = {.t = t, .number = number};

	for (uint32_t i = 0; i < t->plan->n_ops; i++) {
		const struct plan_op *op = &t->plan->ops[i];
		int r = op_run[op->type](&s, op);

		if (r < 0)
			return r;
	}
	return 0;
}

/* The newest version that all ranks have made. */
static uint64_t version_of_all(const struct weightd_train *t)
{
	uint64_t version = UINT64_MAX;

	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		uint64_t theirs = trainer_word(&arena_rank(&t->arena, rank)->param);

		version = theirs < version ? theirs : version;
	}
	return version;
}

/* A hint for lists of jobs: the newest version wins. */
static void head_set_step(struct control_head *head, uint64_t version)
{
	uint64_t old = atomic_load_explicit(&head->step, memory_order_relaxed);

	while (old < version &&
	       !atomic_compare_exchange_weak_explicit(&head->step, &old, version,
						      memory_order_relaxed, memory_order_relaxed))
		;
}

int executor_advance(struct weightd_train *t, uint64_t version)
{
	uint64_t done;

	while ((done = version_of_all(t)) < version) {
		uint64_t own = trainer_word(&trainer_words(t)->param);
		/* This rank may have made the version in vain for others, which died, or did not arrive in time. */
		int r = step_walk(t, own < version ? own + 1 : version);

		if (r < 0)
			return r;
	}
	head_set_step(arena_head(&t->arena), done);
	return 0;
}
