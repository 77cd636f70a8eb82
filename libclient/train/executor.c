/*
 * The executor: a function for each type of operation
 */
#include "libclient/train/executor.h"

#include <math.h>

#include "ipc/base/num.h"
#include "libclient/train/finish.h"

/* This rank has made the version: others have not, or the words of this process are older. */
static bool is_made(const struct step *s)
{
	return trainer_word(&trainer_words(s->t)->param) >= s->number;
}

/* The step changes nothing, on any node. */
static bool changes_nothing(const struct step *s)
{
	return plan_sums_nodes(s->t->plan) && (s->is_skipped || s->has_overflowed);
}

/*
 * Weights, learning rates and NaN flags are complete once all ranks have handed over. Where nodes sum gradients, those of the
 * other nodes follow.
 */
static int compute_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;

	(void)op;
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = s->number,
					     .topic = CONTROL_GRADIENTS,
					     .what = "hand over its gradients",
					     .for_successor = true};
		int r = wait_for(&t->place, &arena_rank(&t->arena, rank)->grad, s->number, &reason);

		if (r < 0)
			return r;
	}
	if (!plan_sums_nodes(t->plan))
		step_init(s, &t->arena, s->number);
	return 0;
}

static int agree_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;
	int r;

	if (!exchange_is_done(t, op, s->number))
		step_summarize(&t->arena, s->number);
	r = exchange_step(t, &t->place, op, s->number);
	if (r < 0)
		return r;
	step_init(s, &t->arena, s->number);
	return 0;
}

static int reduce_run(struct step *s, const struct plan_op *op)
{
	/* Sums that go to other nodes at once went there before the gradients were handed over. */
	if (!s->t->arena.staged[0])
		step_reduce(s, &s->t->arena, op->bucket);
	return 0;
}

/* Sums with equal weights went during backward, bucket by bucket. */
static bool is_scattered(const struct step *s)
{
	return s->t->plan->overlap && !s->t->plan->sync_every && !s->update.is_weighted;
}

static int scatter_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;

	if (t->arena.staged[0])
		return 0;
	if (op->bucket != UINT32_MAX)
		return overlap_scatter(t, &t->place, op, s->number);
	if (changes_nothing(s) || is_scattered(s) || exchange_is_done(t, op, s->number))
		return 0;
	return exchange_step(t, &t->place, op, s->number);
}

static int sum_run(struct step *s, const struct plan_op *op)
{
	if (!s->t->arena.staged[0] && !changes_nothing(s) && !is_made(s))
		step_sum_nodes(s, op);
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

	if (s->is_skipped) {
		t->norm = NAN;
		return 0;
	}
	step_measure(s, &t->arena);
	if (op->exchange) {
		int r = exchange_step(t, &t->place, op, s->number);

		if (r < 0)
			return r;
		step_add_norms(s);
	}
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = s->number,
					     .topic = CONTROL_SUMS,
					     .what = "sum its part of the gradients",
					     .elements = {t->plan->cuts[rank],
							  t->plan->cuts[rank + 1]}};
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

/* REDUCED is read whole: by updates of all elements. */
static int gather_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;
	int r;

	if (changes_nothing(s))
		return 0;
	r = exchange_step(t, &t->place, op, s->number);
	if (r < 0)
		return r;
	if (!is_made(s))
		step_spread(s, op);
	return op->from == WEIGHTD_KIND_REDUCED ? exchange_wait(t, op, s->number) : 0;
}

/*
 * Makes the versions that a dead rank lacks, one after the other: with staleness it may lack several. REDUCED holds the one of
 * this step alone, and all others are made.
 */
static void finish_update(struct step *s, const struct arena *theirs)
{
	struct control_word *param = &arena_rank(theirs, theirs->rank)->param;
	struct step step = *s;
	uint64_t version;

	while ((version = trainer_word(param)) < s->until) {
		if (theirs->plan->form == WEIGHTD_STEP_FUSED)
			step_init(&step, theirs, version + 1);
		step_update(&step, theirs);
		step_commit(&step, theirs);
	}
}

static int commit_run(struct step *s, const struct plan_op *op)
{
	struct weightd_train *t = s->t;

	(void)op;
	if (s->is_skipped && trainer_word(&trainer_words(t)->param) < s->number) {
		t->nan_step = s->number;
		t->nan_rank = s->nan_rank;
	}
	step_commit(s, &t->arena);
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = s->until,
					     .topic = CONTROL_PARAMETERS,
					     .what = "update its parameters",
					     .elements = plan_updated(t->plan, rank)};
		int r = finish_wait(s, &arena_rank(&t->arena, rank)->param, s->until, &reason,
				    finish_update);

		if (r < 0)
			return r;
	}
	return 0;
}

/* The passes of the caller asked for it, and are over. */
static int asked_run(struct step *s, const struct plan_op *op)
{
	(void)s;
	(void)op;
	return 0;
}

static int (*const op_run[])(struct step *s, const struct plan_op *op) = {
	[PLAN_COMPUTE] = compute_run,
	[PLAN_AGREE] = agree_run,
	[PLAN_REDUCE] = reduce_run,
	[PLAN_SCATTER] = scatter_run,
	[PLAN_SUM] = sum_run,
	[PLAN_DECIDE] = decide_run,
	[PLAN_UPDATE] = update_run,
	[PLAN_GATHER] = gather_run,
	[PLAN_COMMIT] = commit_run,
	[PLAN_FETCH] = asked_run,
	[PLAN_SCATTER_REPLICAS] = asked_run,
	[PLAN_GATHER_REPLICAS] = asked_run,
};

static int step_walk(struct weightd_train *t, uint64_t number, uint64_t until)
{
	struct step s = {.t = t, .number = number, .until = until < number ? until : number};

	for (uint32_t i = 0; i < t->plan->n_ops; i++) {
		const struct plan_op *op = &t->plan->ops[i];
		int r = number % op->every == 0 ? op_run[op->type](&s, op) : 0;

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

/* Gradients of that step are handed over by all ranks. */
static bool grads_are_there(const struct weightd_train *t, uint64_t step)
{
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++)
		if (trainer_word(&arena_rank(&t->arena, rank)->grad) < step)
			return false;
	return true;
}

int executor_advance(struct weightd_train *t, uint64_t until, uint64_t newest)
{
	struct control_word *param = &trainer_words(t)->param;
	uint64_t done, own;
	int r;

	while ((done = version_of_all(t)) < until) {
		own = trainer_word(param);
		/* This rank may have made the version before others, which died, or did not arrive in time. */
		r = step_walk(t, own < until ? own + 1 : until, until);
		if (r < 0)
			return r;
	}
	/* Others may be ahead of this rank as far as it has made versions. */
	while ((own = trainer_word(param)) < newest && grads_are_there(t, own + 1)) {
		r = step_walk(t, own + 1, until);
		if (r < 0)
			return r;
	}
	head_set_step(arena_head(&t->arena), done);
	return 0;
}
