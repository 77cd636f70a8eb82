/*
 * The journal: blocks of an update, each of which happens once
 *
 * A block is PLAN_BLOCK elements of the range that a rank updates, counted from its start. The rank, or another one under
 * its lock, is the only writer of its log and word.
 */
#include "libclient/train/journal.h"

#include <string.h>

#include "libclient/train/optimizer.h"

/* Addresses of a rank's values, from the start of the range that it updates on. The rank's own copy is the first. */
struct journal_home {
	float *copies[KERNEL_RANKS_MAX + 2]; /* of PARAM, then the moments */
	uint32_t n_params, n;
};

static struct journal_home home_find(const struct arena *a, uint32_t rank)
{
	const struct weightd_plan *p = a->plan;
	uint32_t own = plan_copy(p, rank);
	struct journal_home home = {.n = 0};

	home.copies[home.n++] = a->params[own];
	for (uint32_t i = 0; i < p->n_copies && !plan_is_replicated(p); i++)
		if (i != own)
			home.copies[home.n++] = a->params[i];
	home.n_params = home.n;
	for (uint32_t i = 0; i < p->n_moments; i++)
		home.copies[home.n++] = a->moments[i];
	return home;
}

/* Old values of the elements from `at` on, counted from the start of the home; new ones into PARAM and moments `to`. */
static struct kernel_state home_state(const struct journal_home *home, uint64_t at,
				      float *const to[3])
{
	uint32_t n_moments = home->n - home->n_params;

	return (struct kernel_state){
		.param = home->copies[0] + at,
		.m = n_moments > 0 ? home->copies[home->n_params] + at : NULL,
		.v = n_moments > 1 ? home->copies[home->n_params + 1] + at : NULL,
		.new_param = to[0],
		.new_m = n_moments > 0 ? to[1] : NULL,
		.new_v = n_moments > 1 ? to[2] : NULL,
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
			float *const to[3])
{
	const struct weightd_plan *p = a->plan;
	uint64_t at = interval.begin;

	for (uint32_t run = run_find(p, at); at < interval.end; run++) {
		uint64_t end = p->runs[run].interval.end, done = at - interval.begin;
		float *const here[3] = {to[0] + done, to[1] ? to[1] + done : NULL,
					to[2] ? to[2] + done : NULL};
		struct kernel_state state = home_state(home, at - a->updated.begin, here);

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
			    float *const to[3])
{
	for (struct plan_interval part = touched_first(s->touched, interval); part.begin < part.end;
	     part = touched_next(s->touched, interval, part)) {
		uint64_t at = part.begin - interval.begin;
		float *const here[3] = {to[0] + at, to[1] ? to[1] + at : NULL,
					to[2] ? to[2] + at : NULL};

		part_update(a, home, part, s, here);
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

/* `log` has the values of the part. */
static void part_copy_home(const struct arena *a, const struct journal_home *home,
			   struct plan_interval part, const struct journal_step *s, const float *log)
{
	uint64_t at = part.begin - a->updated.begin;
	size_t size = (part.end - part.begin) * sizeof(float);

	for (uint32_t i = 0; i < home->n; i++) {
		uint32_t range = i < home->n_params ? 0 : i - home->n_params + 1;

		/* The old values were just read: their lines are in the cache, except those of other copies. */
		s->kernels->copy(home->copies[i] + at, log + range * PLAN_BLOCK, size,
				 i > 0 && i < home->n_params);
	}
}

static void block_copy_home(const struct arena *a, const struct journal_home *home, uint64_t block,
			    const struct journal_step *s, const float *log)
{
	struct plan_interval interval = block_interval(a, block);

	for (struct plan_interval part = touched_first(s->touched, interval); part.begin < part.end;
	     part = touched_next(s->touched, interval, part))
		part_copy_home(a, home, part, s, log + (part.begin - interval.begin));
	if (home->n_params > 1)
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
				  const struct journal_step *s, float *log)
{
	uint64_t word = atomic_load_explicit(&words->journal.value, memory_order_acquire);
	bool is_begun = control_journal_step(word) == step;
	uint64_t block = is_begun ? control_journal_block(word) : 0, n = journal_blocks(a);
	bool is_logged = is_begun && (word & CONTROL_LOGGED);

	for (; block < n; block++) {
		if (!is_logged) {
			float *const to[3] = {log, log + PLAN_BLOCK,
					      log + 2 * PLAN_BLOCK}; /* as many as there are moments */

			interval_update(a, home, block_interval(a, block), s, to);
			journal_move(words, step, block, CONTROL_LOGGED);
		}
		is_logged = false;
		block_copy_home(a, home, block, s, log);
		journal_move(words, step, block + 1, 0);
	}
	if (!n)
		journal_move(words, step, 0, 0);
}

/* Leaves a torn range if the process dies here. */
static void journal_update_in_place(const struct arena *a, const struct journal_home *home,
				    const struct journal_step *s)
{
	uint64_t n = a->updated.end - a->updated.begin;
	float *const to[3] = {home->copies[0], home->n > home->n_params ? a->moments[0] : NULL,
			      home->n > home->n_params + 1 ? a->moments[1] : NULL};

	if (!n)
		return;
	interval_update(a, home, a->updated, s, to);
	for (struct plan_interval part = touched_first(s->touched, a->updated);
	     part.begin < part.end; part = touched_next(s->touched, a->updated, part))
		for (uint32_t i = 1; i < home->n_params; i++) {
			uint64_t at = part.begin - a->updated.begin;

			s->kernels->copy(home->copies[i] + at, home->copies[0] + at,
					 (part.end - part.begin) * sizeof(float), true);
		}
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
