/*
 * The journal: blocks of an update, each of which happens once
 *
 * A block is PLAN_BLOCK elements of the range that a rank updates, counted from its start. The rank, or another one under
 * its lock, is the only writer of its log and word.
 */
#include "libclient/train/journal.h"

#include <string.h>

#include "libclient/train/optimizer.h"

/* Elements of each kind that an update computes. Kinds that the plan lacks are NULL. */
struct journal_values {
	float *value; /* MASTER, or PARAM in fp32 */
	float *moments[2];
	uint16_t *rounded; /* PARAM in 16 bits */
};

/* Memory that receives values of the log. */
struct journal_range {
	uint8_t *home; /* from the start of the range that the rank updates on */
	uint64_t log; /* bytes from the start of the log */
	uint64_t element_size;
	bool is_copy; /* PARAM of other ranks */
};

struct journal_home {
	struct journal_values values; /* those that the rank reads */
	struct journal_range ranges[KERNEL_RANKS_MAX + 3];
	uint32_t n;
	bool has_copies;
};

static void home_add(struct journal_home *home, void *range, uint64_t log, uint64_t element_size,
		     bool is_copy)
{
	home->ranges[home->n++] = (struct journal_range){range, log, element_size, is_copy};
	home->has_copies |= is_copy;
}

/* PARAM of this rank, and of others that have copies of their own. */
static void home_add_params(struct journal_home *home, const struct arena *a, uint32_t own)
{
	const struct weightd_plan *p = a->plan;
	uint64_t log = plan_has_master(p) ? a->layout.log_rounded : 0;
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM);

	home_add(home, a->params[own], log, size, false);
	for (uint32_t i = 0; i < p->n_copies && !plan_is_replicated(p); i++)
		if (i != own)
			home_add(home, a->params[i], log, size, true);
}

static struct journal_home home_find(const struct arena *a, uint32_t rank)
{
	const struct weightd_plan *p = a->plan;
	uint32_t own = plan_copy(p, rank);
	struct journal_home home = {.n = 0};

	home_add_params(&home, a, own);
	if (plan_has_master(p)) {
		home.values.value = a->master;
		home.values.rounded = a->params[own];
		home_add(&home, a->master, 0, sizeof(float), false);
	} else {
		home.values.value = a->params[own];
	}
	for (uint32_t i = 0; i < p->n_moments; i++) {
		home.values.moments[i] = a->moments[i];
		home_add(&home, a->moments[i], (1 + i) * PLAN_BLOCK * sizeof(float), sizeof(float),
			 false);
	}
	return home;
}

/* The places of a block's new values. */
static struct journal_values log_values(const struct arena *a, uint8_t *log)
{
	const struct weightd_plan *p = a->plan;
	struct journal_values v = {.value = (float *)(void *)log};

	for (uint32_t i = 0; i < p->n_moments; i++)
		v.moments[i] = v.value + (1 + i) * PLAN_BLOCK;
	if (plan_has_master(p))
		v.rounded = (uint16_t *)(void *)(log + a->layout.log_rounded);
	return v;
}

static struct journal_values values_skip(const struct journal_values *v, uint64_t n)
{
	return (struct journal_values){
		.value = v->value + n,
		.moments = {v->moments[0] ? v->moments[0] + n : NULL,
			    v->moments[1] ? v->moments[1] + n : NULL},
		.rounded = v->rounded ? v->rounded + n : NULL,
	};
}

/* Old values of the elements from `at` on, counted from the start of the home; new ones into `to`. */
static struct kernel_state home_state(const struct arena *a, const struct journal_home *home,
				      uint64_t at, const struct journal_values *to)
{
	struct journal_values from = values_skip(&home->values, at);

	return (struct kernel_state){
		.param = from.value,
		.m = from.moments[0],
		.v = from.moments[1],
		.rounded = from.rounded,
		.new_param = to->value,
		.new_m = to->moments[0],
		.new_v = to->moments[1],
		.new_rounded = to->rounded,
		.rounded_type = optimizer_type(a->plan->param_dtype),
	};
}

/* The run with an element; runs cover the flat range in order. */
static uint32_t run_find(const struct weightd_plan *p, uint64_t element)
{
	uint32_t low = 0, high = p->n_runs;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (p->runs[middle].interval.begin <= element)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Computes the elements of an interval, run by run. `to` receives them. */
static void part_update(const struct arena *a, const struct journal_home *home,
			struct plan_interval interval, const struct journal_step *s,
			const struct journal_values *to)
{
	const struct weightd_plan *p = a->plan;
	uint64_t at = interval.begin;

	for (uint32_t run = run_find(p, at); at < interval.end; run++) {
		uint64_t end = p->runs[run].interval.end;
		struct journal_values here = values_skip(to, at - interval.begin);
		struct kernel_state state = home_state(a, home, at - a->updated.begin, &here);

		if (end > interval.end)
			end = interval.end;
		optimizer_run(s, p->runs[run].group, at, &state, end - at);
		at = end;
	}
}

/*
 * Computes the touched elements of an interval. `to` receives those from the start of the interval on: it is the log, or
 * the home itself.
 */
static void interval_update(const struct arena *a, const struct journal_home *home,
			    struct plan_interval interval, const struct journal_step *s,
			    const struct journal_values *to)
{
	for (struct plan_interval part = touched_first(s->touched, interval); part.begin < part.end;
	     part = touched_next(s->touched, interval, part)) {
		struct journal_values here = values_skip(to, part.begin - interval.begin);

		part_update(a, home, part, s, &here);
	}
}

/* Blocks of the range that the rank of this arena updates. */
static uint64_t journal_blocks(const struct arena *a)
{
	return (a->updated.end - a->updated.begin + PLAN_BLOCK - 1) / PLAN_BLOCK;
}

/* The block, shorter at the end of the range. */
static struct plan_interval block_interval(const struct arena *a, uint64_t block)
{
	uint64_t begin = a->updated.begin + block * PLAN_BLOCK;
	uint64_t left = a->updated.end - begin;

	return (struct plan_interval){begin, begin + (left < PLAN_BLOCK ? left : PLAN_BLOCK)};
}

/* Element `first` of the log has the first value of the part. */
static void part_copy_home(const struct arena *a, const struct journal_home *home,
			   struct plan_interval part, const struct journal_step *s,
			   const uint8_t *log, uint64_t first)
{
	uint64_t at = part.begin - a->updated.begin, n = part.end - part.begin;

	for (uint32_t i = 0; i < home->n; i++) {
		const struct journal_range *range = &home->ranges[i];
		uint64_t size = range->element_size;

		/* The old values were just read: their lines are in the cache, except those of other copies. */
		s->kernels->copy(range->home + at * size, log + range->log + first * size, n * size,
				 range->is_copy);
	}
}

static void block_copy_home(const struct arena *a, const struct journal_home *home, uint64_t block,
			    const struct journal_step *s, const uint8_t *log)
{
	struct plan_interval interval = block_interval(a, block);

	for (struct plan_interval part = touched_first(s->touched, interval); part.begin < part.end;
	     part = touched_next(s->touched, interval, part))
		part_copy_home(a, home, part, s, log, part.begin - interval.begin);
	if (home->has_copies)
		kernels_fence();
}

/* No rank waits for this word, so a store is enough. The compiler and the processor keep the order of stores. */
static void journal_move(struct control_rank *words, uint64_t step, uint64_t block, uint64_t phase)
{
	atomic_store_explicit(&words->journal.value, control_journal(step, block, phase),
			      memory_order_release);
}

static void journal_update_logged(const struct arena *a, struct control_rank *words,
				  const struct journal_home *home, uint64_t step,
				  const struct journal_step *s, uint8_t *log)
{
	struct journal_values to = log_values(a, log);
	uint64_t word = atomic_load_explicit(&words->journal.value, memory_order_acquire);
	bool is_begun = control_journal_step(word) == step;
	uint64_t block = is_begun ? control_journal_block(word) : 0, n = journal_blocks(a);
	bool is_logged = is_begun && (word & CONTROL_LOGGED);

	for (; block < n; block++) {
		if (!is_logged) {
			interval_update(a, home, block_interval(a, block), s, &to);
			journal_move(words, step, block, CONTROL_LOGGED);
		}
		is_logged = false;
		block_copy_home(a, home, block, s, log);
		journal_move(words, step, block + 1, 0);
	}
	if (!n)
		journal_move(words, step, 0, 0);
}

/* Copies new parameters of a part from this rank's PARAM to those of others. */
static void part_copy_params(const struct arena *a, const struct journal_home *home,
			     struct plan_interval part, const struct journal_step *s)
{
	const struct journal_range *own = &home->ranges[0];
	uint64_t at = (part.begin - a->updated.begin) * own->element_size;

	for (uint32_t i = 1; i < home->n; i++)
		if (home->ranges[i].is_copy)
			s->kernels->copy(home->ranges[i].home + at, own->home + at,
					 (part.end - part.begin) * own->element_size, true);
}

/* Leaves a torn range if the process dies here. */
static void journal_update_in_place(const struct arena *a, const struct journal_home *home,
				    const struct journal_step *s)
{
	if (a->updated.begin == a->updated.end)
		return;
	interval_update(a, home, a->updated, s, &home->values);
	for (struct plan_interval part = touched_first(s->touched, a->updated);
	     part.begin < part.end; part = touched_next(s->touched, a->updated, part))
		part_copy_params(a, home, part, s);
	kernels_fence();
}

void journal_update(const struct arena *a, uint32_t rank, uint64_t step,
		    const struct journal_step *s)
{
	struct control_rank *words = arena_rank(a, rank);
	struct journal_home home = home_find(a, rank);

	if (!a->plan->without_journal)
		return journal_update_logged(a, words, &home, step, s, arena_log(a, rank));
	journal_update_in_place(a, &home, s);
	journal_move(words, step, journal_blocks(a), 0);
}

uint64_t journal_left(const struct arena *a, uint32_t rank, uint64_t step)
{
	uint64_t word = atomic_load_explicit(&arena_rank(a, rank)->journal.value,
					     memory_order_acquire);
	uint64_t n = a->updated.end - a->updated.begin, done = 0;

	if (control_journal_step(word) >= step)
		done = control_journal_block(word) * PLAN_BLOCK;
	return done < n ? n - done : 0;
}
