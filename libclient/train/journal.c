/*
 * The journal: blocks of an update, each of which happens once
 *
 * A block is PLAN_BLOCK places of those that a rank updates, counted from the first one: parts of one piece, or of several,
 * which are anywhere in the flat range. PARAM is addressed by element, unless it is sharded over nodes, MASTER and MOMENTS are
 * by place. The rank, or another one under its lock, is the only writer of its log and word.
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
	uint8_t *home; /* from the element or place on that the rank's mapping begins with */
	uint64_t log; /* bytes from the start of the log */
	uint64_t element_size;
	bool by_element; /* PARAM, unless it is sharded over nodes */
	bool is_copy; /* PARAM of other ranks */
};

struct journal_home {
	struct journal_values values; /* those that the rank reads */
	uint64_t first_element, first_place; /* of the rank's mappings */
	bool shards_params; /* PARAM is addressed by place */
	struct journal_range ranges[KERNEL_RANKS_MAX + 3];
	uint32_t n;
	bool has_copies;
};

static void home_add_param(struct journal_home *home, const struct arena *a, uint32_t copy,
			   bool is_copy)
{
	home->ranges[home->n++] = (struct journal_range){
		.home = a->params[copy],
		.log = plan_has_master(a->plan) ? a->layout.log_rounded : 0,
		.element_size = plan_element_size(a->plan, WEIGHTD_KIND_PARAM),
		.by_element = !home->shards_params,
		.is_copy = is_copy,
	};
	home->has_copies |= is_copy;
}

static void home_add_state(struct journal_home *home, float *range, uint64_t log)
{
	home->ranges[home->n++] = (struct journal_range){.home = (uint8_t *)range,
							 .log = log,
							 .element_size = sizeof(float)};
}

/* PARAM of this rank, and of others that have copies of their own. */
static void home_add_params(struct journal_home *home, const struct arena *a, uint32_t own)
{
	const struct weightd_plan *p = a->plan;

	home_add_param(home, a, own, false);
	for (uint32_t i = 0; i < p->n_copies && !plan_is_replicated(p); i++)
		if (i != own)
			home_add_param(home, a, i, true);
}

static struct journal_home home_find(const struct arena *a, uint32_t rank)
{
	const struct weightd_plan *p = a->plan;
	uint32_t own = plan_copy(p, rank);
	struct journal_home home = {.first_element = a->updated.begin,
				    .first_place = plan_places(a->updates).begin,
				    .shards_params = plan_shards_params(p)};

	home_add_params(&home, a, own);
	if (plan_has_master(p)) {
		home.values.value = a->master;
		home.values.rounded = a->params[own];
		home_add_state(&home, a->master, 0);
	} else {
		home.values.value = a->params[own];
	}
	for (uint32_t i = 0; i < p->n_moments; i++) {
		home.values.moments[i] = a->moments[i];
		home_add_state(&home, a->moments[i], (1 + i) * PLAN_BLOCK * sizeof(float));
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

/* Values at home of an element and its place. */
static struct journal_values home_values(const struct journal_home *home, uint64_t element,
					 uint64_t place)
{
	const struct journal_values *v = &home->values;
	uint64_t by_place = place - home->first_place;
	uint64_t by_element = home->shards_params ? by_place : element - home->first_element;

	return (struct journal_values){
		.value = v->value + (v->rounded ? by_place : by_element),
		.moments = {v->moments[0] ? v->moments[0] + by_place : NULL,
			    v->moments[1] ? v->moments[1] + by_place : NULL},
		.rounded = v->rounded ? v->rounded + by_element : NULL,
	};
}

/* Old values of an element and those behind it; new ones into `to`. */
static struct kernel_state home_state(const struct arena *a, const struct journal_home *home,
				      uint64_t element, uint64_t place,
				      const struct journal_values *to)
{
	struct journal_values from = home_values(home, element, place);

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

/* Computes the elements of a part, run by run. `to` receives them. */
static void part_update(const struct arena *a, const struct journal_home *home,
			const struct plan_piece *part, const struct journal_step *s,
			const struct journal_values *to)
{
	const struct weightd_plan *p = a->plan;
	uint64_t at = part->interval.begin;

	for (uint32_t run = run_find(p, at); at < part->interval.end; run++) {
		uint64_t end = p->runs[run].interval.end, skipped = at - part->interval.begin;
		struct journal_values here = values_skip(to, skipped);
		struct kernel_state state = home_state(a, home, at, part->at + skipped, &here);

		if (end > part->interval.end)
			end = part->interval.end;
		optimizer_run(s, p->runs[run].group, s->by_place ? part->at + skipped : at, &state,
			      end - at);
		at = end;
	}
}

/* --- Blocks --------------------------------------------------------------------------------------- */

static uint64_t journal_blocks(const struct arena *a)
{
	struct plan_interval places = plan_places(a->updates);

	return (places.end - places.begin + PLAN_BLOCK - 1) / PLAN_BLOCK;
}

/* Walks over the touched parts of blocks, from one on. */
static struct touched_parts journal_walk(const struct arena *a, const struct journal_step *s,
					 uint64_t block)
{
	struct touched_parts w = touched_parts(s->touched, a->updates);

	w.places.begin = plan_places(a->updates).begin + block * PLAN_BLOCK;
	w.places.end = w.places.begin + PLAN_BLOCK;
	return w;
}

/* To the next block: pieces that end before it are left behind. */
static void walk_next_block(struct touched_parts *w)
{
	w->places = (struct plan_interval){w->places.end, w->places.end + PLAN_BLOCK};
	while (w->piece < w->end &&
	       w->piece->at + (w->piece->interval.end - w->piece->interval.begin) <= w->places.begin)
		w->piece++;
}

/* Computes a block. `log` receives its values. */
static void block_update(const struct arena *a, const struct journal_home *home,
			 struct touched_parts w, const struct journal_step *s,
			 const struct journal_values *log)
{
	uint64_t first = w.places.begin;
	struct plan_piece part;

	while (touched_parts_next(&w, &part)) {
		struct journal_values here = values_skip(log, part.at - first);

		part_update(a, home, &part, s, &here);
	}
}

/* Element `first` of the log has the first value of the part. */
static void part_copy_home(const struct journal_home *home, const struct plan_piece *part,
			   const struct journal_step *s, const uint8_t *log, uint64_t first)
{
	uint64_t n = part->interval.end - part->interval.begin;

	for (uint32_t i = 0; i < home->n; i++) {
		const struct journal_range *range = &home->ranges[i];
		uint64_t size = range->element_size;
		uint64_t at = range->by_element ? part->interval.begin - home->first_element
						: part->at - home->first_place;

		/* The old values were just read: their lines are in the cache, except those of other copies. */
		s->kernels->copy(range->home + at * size, log + range->log + first * size, n * size,
				 range->is_copy);
	}
}

static void block_copy_home(const struct journal_home *home, struct touched_parts w,
			    const struct journal_step *s, const uint8_t *log)
{
	uint64_t first = w.places.begin;
	struct plan_piece part;

	while (touched_parts_next(&w, &part))
		part_copy_home(home, &part, s, log, part.at - first);
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
	struct touched_parts walk = journal_walk(a, s, block);

	for (; block < n; block++, walk_next_block(&walk)) {
		if (!is_logged) {
			block_update(a, home, walk, s, &to);
			journal_move(words, step, block, CONTROL_LOGGED);
		}
		is_logged = false;
		block_copy_home(home, walk, s, log);
		journal_move(words, step, block + 1, 0);
	}
	if (!n)
		journal_move(words, step, 0, 0);
}

/* Copies new parameters of a part from this rank's PARAM to those of others. */
static void part_copy_params(const struct journal_home *home, struct plan_interval part,
			     const struct journal_step *s)
{
	const struct journal_range *own = &home->ranges[0];
	uint64_t at = (part.begin - home->first_element) * own->element_size;

	for (uint32_t i = 1; i < home->n; i++)
		if (home->ranges[i].is_copy)
			s->kernels->copy(home->ranges[i].home + at, own->home + at,
					 (part.end - part.begin) * own->element_size, true);
}

/* Leaves a torn range if the process dies here. */
static void journal_update_in_place(const struct arena *a, const struct journal_home *home,
				    const struct journal_step *s)
{
	struct touched_parts w = touched_parts(s->touched, a->updates), copied = w;
	struct plan_piece part;

	while (touched_parts_next(&w, &part)) {
		struct journal_values to = home_values(home, part.interval.begin, part.at);

		part_update(a, home, &part, s, &to);
	}
	while (touched_parts_next(&copied, &part))
		part_copy_params(home, part.interval, s);
	kernels_fence();
}

void journal_update(const struct arena *a, uint32_t rank, uint64_t step,
		    const struct journal_step *s)
{
	struct control_rank *words = arena_rank(a, rank);
	struct journal_home home = home_find(a, rank);

	if (!a->plan->without_journal)
		return journal_update_logged(a, words, &home, step, s, arena_log(a, rank));
	/* Behind the update, an exchange may have failed: the call that continues the step comes here again. */
	if (control_journal_step(
		    atomic_load_explicit(&words->journal.value, memory_order_acquire)) >= step)
		return;
	journal_update_in_place(a, &home, s);
	journal_move(words, step, journal_blocks(a), 0);
}

struct plan_interval journal_rest(const struct arena *a, uint32_t rank, uint64_t step)
{
	uint64_t word = atomic_load_explicit(&arena_rank(a, rank)->journal.value,
					     memory_order_acquire);
	struct plan_interval rest = plan_places(a->updates);

	if (control_journal_step(word) >= step)
		rest.begin += control_journal_block(word) * PLAN_BLOCK;
	if (rest.begin > rest.end)
		rest.begin = rest.end;
	return rest;
}
