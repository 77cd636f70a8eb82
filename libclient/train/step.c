/*
 * A step: the work of one rank
 *
 * `a` is the arena of the rank that the work belongs to: this one's, or that of a dead rank whose lock is held.
 */
#include "libclient/train/step.h"

#include <math.h>
#include <string.h>

#include "libclient/train/journal.h"
#include "libclient/train/scale.h"

/* Sums of more bytes than this do not stay in the cache until they are used. */
#define STREAM_BYTES ((uint64_t)16 << 20)

static void count_read(struct weightd_train *t, enum weightd_kind kind, uint64_t n_elements)
{
	atomic_fetch_add_explicit(&t->n_read, n_elements * plan_element_size(t->plan, kind),
				  memory_order_relaxed);
}

static void count_written(struct weightd_train *t, uint64_t n_elements)
{
	atomic_fetch_add_explicit(&t->n_written,
				  n_elements * plan_element_size(t->plan, WEIGHTD_KIND_PARAM),
				  memory_order_relaxed);
}

static uint64_t length(struct plan_interval i)
{
	return i.end - i.begin;
}

static struct plan_interval shard_of(const struct weightd_plan *p, uint32_t rank)
{
	return (struct plan_interval){p->cuts[rank], p->cuts[rank + 1]};
}

/* --- Arguments of all ranks ----------------------------------------------------------------------- */

/* The first rank of this node whose loss was not a number, from 1 on; 0: none. */
static uint32_t find_nan(const struct arena *a, uint64_t number)
{
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++)
		if (arena_saved(a, rank, number)->has_nan)
			return rank + 1;
	return 0;
}

void step_summarize(const struct arena *a, uint64_t number)
{
	struct control_summary *own = arena_summary(a, number, a->node);
	const struct control_saved *first = arena_saved(a, 0, number);

	if (__atomic_load_n(&own->step, __ATOMIC_ACQUIRE) == number)
		return;
	own->max_norm = first->max_norm;
	memcpy(own->lr, first->lr, sizeof(own->lr));
	own->nan_rank = find_nan(a, number);
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++)
		touched_weights(own)[rank] = arena_saved(a, rank, number)->weight;
	own->n_unused = touched_summarize(a, number, touched_summary_bitmap(a->plan, own));
	__atomic_store_n(&own->step, number, __ATOMIC_RELEASE);
}

void step_set_grads(struct journal_step *u, const struct arena *a, uint64_t number)
{
	uint32_t n_slots = a->plan->n_slots;

	u->by_place = false;
	u->grad_type = optimizer_type(a->plan->grad_dtype);
	if (a->plan->has_scaling)
		u->scale *= 1 / scale_at(a, number - 1).scale;
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++)
		u->grads[rank] = a->grads[rank * n_slots + number % n_slots];
}

void step_weigh_equally(struct journal_step *u, const struct weightd_plan *p)
{
	uint32_t n_nodes = plan_sums_nodes(p) ? p->n_nodes : 1;

	optimizer_weigh(u, (const double[WEIGHTD_RANKS_MAX]){0}, n_nodes * p->n_ranks, 0,
			p->n_ranks);
}

static void set_nan(struct step *s, const struct arena *a, uint32_t node, uint32_t nan_rank)
{
	s->is_skipped = nan_rank != 0;
	if (nan_rank)
		s->nan_rank = node * a->plan->n_ranks + nan_rank - 1;
}

/* The learning rates, and what else the ranks of this node gave. */
static const double *init_from_ranks(struct step *s, const struct arena *a)
{
	const struct control_saved *first = arena_saved(a, 0, s->number);
	double weights[WEIGHTD_RANKS_MAX];
	uint32_t n = a->plan->n_ranks;

	for (uint32_t rank = 0; rank < n; rank++)
		weights[rank] = arena_saved(a, rank, s->number)->weight;
	optimizer_weigh(&s->update, weights, n, 0, n);
	set_nan(s, a, a->node, find_nan(a, s->number));
	s->max_norm = first->max_norm;
	return first->lr;
}

/* Likewise of all nodes. */
static const double *init_from_nodes(struct step *s, const struct arena *a)
{
	const struct control_summary *first = arena_summary(a, s->number, 0);
	double weights[WEIGHTD_RANKS_MAX];
	uint32_t n = a->plan->n_ranks, n_nodes = a->plan->n_nodes;

	set_nan(s, a, 0, 0);
	for (uint32_t node = n_nodes; node-- > 0;) {
		struct control_summary *summary = arena_summary(a, s->number, node);

		memcpy(&weights[node * n], touched_weights(summary), n * sizeof(*weights));
		if (summary->nan_rank)
			set_nan(s, a, node, summary->nan_rank);
	}
	optimizer_weigh(&s->update, weights, n_nodes * n, a->node * n, n);
	s->max_norm = first->max_norm;
	return first->lr;
}

void step_init(struct step *s, const struct arena *a, uint64_t number)
{
	const struct control_rank *words = arena_rank(a, a->rank);
	const double *lr;

	s->number = number;
	lr = plan_sums_nodes(a->plan) ? init_from_nodes(s, a) : init_from_ranks(s, a);
	optimizer_begin(&s->update, a->plan, lr, number - words->n_skipped[(number - 1) % 2]);
	step_set_grads(&s->update, a, number);
	s->update.touched = touched_find(&s->t->touched, a, number);
}

/* --- Sums ----------------------------------------------------------------------------------------- */

void step_sum_bucket(struct weightd_train *t, const struct journal_step *u, const struct arena *a,
		     uint32_t bucket)
{
	const struct weightd_plan *p = t->plan;
	struct plan_interval owned = plan_owned(p, a->rank, p->buckets[bucket]);
	const void *grads[KERNEL_RANKS_MAX];
	struct kernel_grads g = {
		.grads = grads,
		.weights = u->is_weighted ? u->weights : NULL,
		.n = u->n_grads,
		.scale = u->scale,
		.type = u->grad_type,
	};

	for (struct plan_interval part = touched_first(u->touched, owned); part.begin < part.end;
	     part = touched_next(u->touched, owned, part)) {
		for (uint32_t rank = 0; rank < u->n_grads; rank++)
			grads[rank] = kernel_element(u->grads[rank], u->grad_type,
						     part.begin - plan_grad_first(p, bucket));
		kernels_get()->sum(&(float *){arena_node_sum(a, bucket, part.begin)}, 1, &g,
				   length(part), p->n_elements * sizeof(float) > STREAM_BYTES);
		count_read(t, WEIGHTD_KIND_GRAD, length(part) * (u->n_grads - 1));
	}
	kernels_fence();
}

void step_reduce(struct step *s, const struct arena *a, uint32_t bucket)
{
	struct control_word *reduced = &arena_bucket(a, a->rank, bucket)->reduced;
	uint64_t done = trainer_word(reduced);

	if (s->is_skipped || done >= 2 * s->number)
		return;
	if (done < 2 * s->number - 1 || s->update.is_weighted)
		step_sum_bucket(s->t, &s->update, a, bucket);
	wait_publish(reduced, 2 * s->number);
}

const struct touched *step_touched(const struct step *s)
{
	return plan_sums_nodes(s->t->plan) ? s->update.touched : NULL;
}

/*
 * GATHER sends what must stay until the next exchange, while REDUCED changes during the next backward, and PARAM of nodes that
 * average it with their next steps: a sum stays in the node's own range of RECEIVED.
 */
static bool gathers_sums(const struct weightd_plan *p, const struct plan_op *op)
{
	return op->type == PLAN_GATHER && (p->sync_every || op->from == WEIGHTD_KIND_REDUCED);
}

/* The address, among the rooms, of an element of a unit. */
static void *room_address(const struct arena *a, const struct plan_op *op, uint64_t element)
{
	const struct weightd_plan *p = a->plan;
	const struct plan_unit *u = &p->units[plan_unit_of_bucket(p, op->bucket)];

	return a->gathered + p->rooms[u->room].offset +
	       (element - u->interval.begin) * plan_element_size(p, WEIGHTD_KIND_GATHERED);
}

void *step_source(const struct arena *a, const struct plan_op *op, const struct plan_piece *part)
{
	if (op->type == PLAN_FETCH)
		return arena_param_at(a, part->at);
	if (op->type == PLAN_SCATTER_REPLICAS)
		return a->reduced + part->at;
	if (op->from == WEIGHTD_KIND_STAGED)
		return arena_node_sum(a, op->bucket, part->interval.begin);
	if (gathers_sums(a->plan, op))
		return a->received[a->node] + part->at;
	return arena_element(a, op->from, part->interval.begin);
}

void *step_target(const struct arena *a, const struct plan_op *op, uint32_t node,
		  const struct plan_piece *part)
{
	if (op->type == PLAN_FETCH)
		return room_address(a, op, part->interval.begin);
	if (op->type == PLAN_SCATTER || op->type == PLAN_SCATTER_REPLICAS)
		return a->received[node] + part->received;
	if (op->type == PLAN_GATHER_REPLICAS)
		return a->reduced + part->at;
	return arena_element(a, op->to, part->interval.begin);
}

/* The exchange behind an operation is complete. */
static bool is_passed(const struct arena *a, const struct plan_op *op, uint64_t number)
{
	for (op++; !op->exchange; op++)
		;
	return trainer_word(&arena_rank(a, a->rank)->line) >= control_exchange(number, op->exchange);
}

void step_sum_nodes(struct step *s, const struct plan_op *op)
{
	const struct arena *a = &s->t->arena;
	const struct plan_pieces *own = plan_pieces(a->plan, a->node, a->rank);
	struct touched_parts w = touched_parts(step_touched(s), own);
	const void *summands[KERNEL_RANKS_MAX];
	struct kernel_grads g = {
		.grads = summands,
		.n = a->plan->n_nodes,
		.scale = a->plan->sync_every ? 1 / (float)a->plan->n_nodes : 1,
		.type = KERNEL_F32,
	};
	struct plan_piece part;

	/* Behind it, the sum may be in the place of this node's summand. */
	if ((s->is_skipped && plan_sums_nodes(a->plan)) || is_passed(a, op, s->number))
		return;
	while (touched_parts_next(&w, &part)) {
		float *to = a->received[a->node] + part.at;

		for (uint32_t node = 0; node < g.n; node++)
			summands[node] = a->received[node] + part.at;
		summands[a->node] = arena_element(a, op->to, part.interval.begin);
		kernels_get()->sum(&to, 1, &g, length(part.interval),
				   own->n_elements * sizeof(float) > STREAM_BYTES);
	}
	kernels_fence();
}

void step_sum_bucket_nodes(const struct arena *a, uint32_t bucket)
{
	const struct weightd_plan *p = a->plan;
	const struct plan_piece *own = plan_piece_of(plan_pieces(p, a->node, a->rank), bucket);
	const void *summands[KERNEL_RANKS_MAX];
	struct kernel_grads g = {
		.grads = summands, .n = p->n_sharing, .scale = 1, .type = KERNEL_F32};
	uint32_t first = a->node / p->n_sharing * p->n_sharing;

	if (!own || own->interval.begin == own->interval.end)
		return;
	for (uint32_t i = 0; i < p->n_sharing; i++)
		summands[i] = a->received[first + i] + own->received;
	summands[a->node - first] = arena_node_sum(a, bucket, own->interval.begin);
	kernels_get()->sum(&(float *){a->reduced + own->at}, 1, &g, length(own->interval),
			   p->n_state * sizeof(float) > STREAM_BYTES);
	kernels_fence();
}

/* The part of the rank's piece of a bucket that its replica adds up; empty: there is none. */
static struct plan_piece replica_part(const struct arena *a, uint32_t bucket)
{
	const struct plan_piece *own = plan_piece_of(plan_pieces(a->plan, a->node, a->rank), bucket);

	return own ? plan_replica_part(a->plan, own, a->node) : (struct plan_piece){0};
}

void step_sum_replicas(const struct arena *a, uint32_t bucket)
{
	const struct weightd_plan *p = a->plan;
	const struct plan_piece part = replica_part(a, bucket);
	const void *summands[KERNEL_RANKS_MAX];
	struct kernel_grads g = {
		.grads = summands, .n = plan_n_replicas(p), .scale = 1, .type = KERNEL_F32};
	float *to;

	if (part.interval.begin == part.interval.end)
		return;
	for (uint32_t i = 0; i < g.n; i++)
		summands[i] = a->received[a->node % p->n_sharing + i * p->n_sharing] + part.received;
	summands[a->node / p->n_sharing] = a->reduced + part.at;
	to = arena_node_sum(a, bucket, part.interval.begin);
	kernels_get()->sum(&to, 1, &g, length(part.interval), false);
	kernels_fence();
}

void step_place_replicas(const struct arena *a, uint32_t bucket)
{
	const struct plan_piece part = replica_part(a, bucket);

	if (part.interval.begin < part.interval.end)
		kernels_get()->copy(a->reduced + part.at,
				    arena_node_sum(a, bucket, part.interval.begin),
				    length(part.interval) * sizeof(float), false);
}

void step_copy_unit(const struct arena *a, const struct plan_op *op)
{
	const struct plan_piece *own = plan_piece_of(plan_pieces(a->plan, a->node, a->rank),
						     op->bucket);

	if (own && own->interval.begin < own->interval.end)
		kernels_get()->copy(room_address(a, op, own->interval.begin),
				    arena_param_at(a, own->at),
				    length(own->interval) * plan_element_size(a->plan, op->from),
				    false);
	kernels_fence();
}

/* Copies the sums of the rank's own pieces to where the others' are. */
static void place_sums(const struct step *s, const struct arena *a, enum weightd_kind kind)
{
	struct touched_parts w = touched_parts(step_touched(s),
					       plan_pieces(a->plan, a->node, a->rank));
	struct plan_piece part;

	while (touched_parts_next(&w, &part))
		kernels_get()->copy(arena_element(a, kind, part.interval.begin),
				    a->received[a->node] + part.at,
				    length(part.interval) * sizeof(float), false);
}

/* --- The decision ---------------------------------------------------------------------------------- */

/* `memory` begins with place 0. */
static double squares(const struct step *s, struct touched_parts w, const float *memory)
{
	struct plan_piece part;
	double sum = 0;

	while (touched_parts_next(&w, &part))
		sum += s->update.kernels->squares(memory + part.at, length(part.interval));
	return sum;
}

void step_measure(struct step *s, const struct arena *a)
{
	const struct plan_piece shard = {.interval = shard_of(a->plan, a->rank)};
	const struct plan_pieces of_node = {.pieces = &shard, .n = 1};
	struct control_rank *words = arena_rank(a, a->rank);

	if (s->is_skipped || trainer_word(&words->norm_step) >= s->number)
		return;
	if (plan_sums_nodes(a->plan)) {
		const struct plan_pieces *own = plan_pieces(a->plan, a->node, a->rank);

		arena_summary(a, s->number, a->node)->norm =
			squares(s, touched_parts(s->update.touched, own), arena_sums(a));
		return;
	}
	words->norm = squares(s, touched_parts(s->update.touched, &of_node),
			      a->reduced + shard.interval.begin);
	wait_publish(&words->norm_step, s->number);
}

void step_add_norms(struct step *s)
{
	const struct arena *a = &s->t->arena;
	struct control_rank *words = arena_rank(a, a->rank);

	if (s->is_skipped || trainer_word(&words->norm_step) >= s->number)
		return;
	words->norm = 0;
	/* Each replica has all sums. */
	for (uint32_t node = 0; node < a->plan->n_nodes; node++)
		if (plan_share(a->plan, node, a->node))
			words->norm += arena_summary(a, s->number, node)->norm;
	/* The other ranks of the node read all sums, and wait for this word first. */
	if (plan_is_replicated(a->plan))
		place_sums(s, a, WEIGHTD_KIND_REDUCED);
	wait_publish(&words->norm_step, s->number);
}

/* torch's clip_grad_norm_, in its arithmetic: fp32. */
static float clip_coefficient(double norm, double max_norm)
{
	float coefficient = (float)max_norm / ((float)norm + 1e-6f);

	return coefficient > 1 ? 1 : coefficient;
}

void step_decide(struct step *s)
{
	struct weightd_train *t = s->t;
	double sum = 0;

	if (s->is_skipped)
		return;
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++)
		sum += arena_rank(&t->arena, rank)->norm;
	t->norm = sqrt(sum);
	s->has_overflowed = t->plan->has_scaling && !isfinite(sum);
	s->update.by_place = plan_shards_state(t->plan);
	s->update.grads[0] = s->update.by_place ? arena_sums(&t->arena) : t->arena.reduced;
	s->update.grad_type = KERNEL_F32;
	s->update.n_grads = 1;
	s->update.is_weighted = false;
	s->update.scale = s->max_norm > 0 ? clip_coefficient(t->norm, s->max_norm) : 1;
}

/* --- The update ------------------------------------------------------------------------------------ */

/* Counts the bytes that the update has left to read from other ranks, and to write for them. */
static void count_update(struct step *s, const struct arena *a)
{
	const struct weightd_plan *p = a->plan;
	const struct touched *touched = s->update.touched;
	struct plan_interval rest = journal_rest(a, a->rank, s->number);
	struct touched_parts w = touched_parts(touched, a->updates);
	struct plan_piece part;
	uint64_t left = 0;

	w.places = rest;
	while (touched_parts_next(&w, &part))
		left += length(part.interval);
	/* Places are elements where one rank updates all of them. */
	if (plan_is_replicated(p))
		count_read(s->t, WEIGHTD_KIND_REDUCED,
			   left - touched_count(touched, plan_owned(p, a->rank, rest)));
	else
		count_written(s->t, left * (p->n_copies - 1));
	if (p->form == WEIGHTD_STEP_FUSED)
		count_read(s->t, WEIGHTD_KIND_GRAD, left * (p->n_ranks - 1));
}

void step_update(struct step *s, const struct arena *a)
{
	if (s->is_skipped || s->has_overflowed ||
	    trainer_word(&arena_rank(a, a->rank)->param) >= s->number)
		return;
	count_update(s, a);
	journal_update(a, a->rank, s->number, &s->update);
}

/* Elements of the shard that came from other nodes, or with sync_every all of them: nothing has copied those. */
static void spread_interval(const struct step *s, const struct arena *a, const struct plan_op *op,
			    struct plan_interval interval)
{
	const struct weightd_plan *p = a->plan;
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM), n = length(interval);
	uint32_t own = plan_copy(p, a->rank);
	uint8_t *from = arena_element(a, WEIGHTD_KIND_PARAM, interval.begin);
	uint64_t at = (interval.begin - a->updated.begin) * size;

	if (op->to == WEIGHTD_KIND_MASTER)
		kernels_get()->round(from, optimizer_type(p->param_dtype),
				     arena_element(a, op->to, interval.begin), n);
	for (uint32_t i = 0; i < p->n_copies; i++)
		if (i != own)
			kernels_get()->copy((uint8_t *)a->params[i] + at, from, n * size, true);
	count_written(s->t, n * (p->n_copies - 1));
}

void step_spread(struct step *s, const struct plan_op *op)
{
	const struct arena *a = &s->t->arena;
	const struct weightd_plan *p = a->plan;

	if (op->to == WEIGHTD_KIND_REDUCED ||
	    trainer_word(&arena_rank(a, a->rank)->param) >= s->number)
		return;
	if (plan_sums_nodes(p) && (s->is_skipped || s->has_overflowed))
		return;
	if (p->sync_every)
		place_sums(s, a, op->to);
	for (uint32_t node = 0; node < p->n_nodes; node++) {
		struct touched_parts w = touched_parts(step_touched(s),
						       plan_pieces(p, node, a->rank));
		struct plan_piece part;

		if (!plan_share(p, node, a->node))
			continue;
		while ((p->sync_every || node != a->node) && touched_parts_next(&w, &part))
			spread_interval(s, a, op, part.interval);
	}
	kernels_fence();
}

/* --- The end --------------------------------------------------------------------------------------- */

void step_commit(struct step *s, const struct arena *a)
{
	struct control_rank *words = arena_rank(a, a->rank);

	if (trainer_word(&words->param) >= s->number)
		return;
	words->n_skipped[s->number % 2] = words->n_skipped[(s->number - 1) % 2] +
					  (s->is_skipped || s->has_overflowed);
	if (a->plan->has_scaling)
		scale_commit(a, s->number, s->is_skipped, s->has_overflowed);
	wait_publish(&words->param, s->number);
}
