/*
 * Segments: where the bytes of each exchange are. Both ends of a connection walk over the same intervals in the same order.
 */
#include "libclient/train/segments.h"

#include <stdlib.h>

#include "libclient/train/exchange.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/step.h"

/* The search for the segments of one exchange. */
struct search {
	struct segments *s;
	struct weightd_train *t;
	const struct weightd_plan *p;
	const struct arena *a;
	uint64_t position;
	const struct touched *touched; /* NULL: all */
	uint8_t *frozen;
};

static void list_clear(struct segment_list *list)
{
	list->n = 0;
	list->size = 0;
}

static void append_segment(struct search *f, struct segment_list *list, void *data, uint64_t size)
{
	if (list->n == list->room) {
		uint32_t room = list->room ? 2 * list->room : 16;
		void *segments = reallocarray(list->segments, room, sizeof(*list->segments));

		if (!segments) {
			f->s->is_short = true;
			return;
		}
		list->segments = segments;
		list->room = room;
	}
	list->segments[list->n++] = (struct weightd_segment){data, size};
}

static void add_segment(struct search *f, struct segment_list *list, void *data, uint64_t size)
{
	struct weightd_segment *last = list->n ? &list->segments[list->n - 1] : NULL;

	if (!size)
		return;
	list->size += size;
	if (last && (uint8_t *)last->data + last->size == data)
		last->size += size;
	else
		append_segment(f, list, data, size);
}

static void send_segment(struct search *f, uint32_t node, const void *data, uint64_t size)
{
	add_segment(f, &f->s->send[node], (void *)data, size);
}

static void receive_segment(struct search *f, uint32_t node, void *data, uint64_t size)
{
	add_segment(f, &f->s->receive[node], data, size);
}

/* Touched parts of the pieces of a node; of one bucket, or of all: UINT32_MAX. */
static struct touched_parts parts_of(const struct search *f, uint32_t node, uint32_t bucket)
{
	return touched_parts_of(f->touched, plan_pieces(f->p, node, f->a->rank), bucket);
}

static uint64_t length(const struct plan_piece *part)
{
	return part->interval.end - part->interval.begin;
}

/* --- Steps -------------------------------------------------------------------------------------------- */

static void find_agree(struct search *f, const struct plan_op *op, uint32_t node)
{
	uint64_t step = control_exchange_step(f->position), size = f->a->layout.summary_stride;

	(void)op;
	send_segment(f, node, arena_summary(f->a, step, f->a->node), size);
	receive_segment(f, node, arena_summary(f->a, step, node), size);
}

static void find_parts(struct search *f, const struct plan_op *op, uint32_t node,
		       struct touched_parts sent, struct touched_parts received)
{
	uint64_t size = plan_element_size(f->p, op->from);
	struct plan_piece part;

	while (touched_parts_next(&sent, &part))
		send_segment(f, node, step_source(f->a, op, &part), length(&part) * size);
	while (touched_parts_next(&received, &part))
		receive_segment(f, node, step_target(f->a, op, node, &part), length(&part) * size);
}

static void find_scatter(struct search *f, const struct plan_op *op, uint32_t node)
{
	find_parts(f, op, node, parts_of(f, node, op->bucket), parts_of(f, f->a->node, op->bucket));
}

static void find_decide(struct search *f, const struct plan_op *op, uint32_t node)
{
	uint64_t step = control_exchange_step(f->position);
	struct control_summary *ours = arena_summary(f->a, step, f->a->node),
			       *theirs = arena_summary(f->a, step, node);

	(void)op;
	send_segment(f, node, &ours->norm, sizeof(ours->norm));
	receive_segment(f, node, &theirs->norm, sizeof(theirs->norm));
}

static void find_gather(struct search *f, const struct plan_op *op, uint32_t node)
{
	find_parts(f, op, node, parts_of(f, f->a->node, UINT32_MAX), parts_of(f, node, UINT32_MAX));
}

static void find_fetch(struct search *f, const struct plan_op *op, uint32_t node)
{
	find_parts(f, op, node, parts_of(f, f->a->node, op->bucket), parts_of(f, node, op->bucket));
}

/* Nodes with the same piece of the bucket. SCATTER_REPLICAS sends the other one's part of it, GATHER_REPLICAS this one's. */
static void find_replicas(struct search *f, const struct plan_op *op, uint32_t node)
{
	const struct plan_pieces *pieces = plan_pieces(f->p, f->a->node, f->a->rank);
	const struct plan_piece *piece = plan_piece_of(pieces, op->bucket);
	struct plan_piece ours, theirs, *sent, *received;

	if (!piece)
		return;
	ours = plan_replica_part(f->p, piece, f->a->node);
	theirs = plan_replica_part(f->p, piece, node);
	sent = op->type == PLAN_SCATTER_REPLICAS ? &theirs : &ours;
	received = sent == &ours ? &theirs : &ours;
	send_segment(f, node, step_source(f->a, op, sent), length(sent) * sizeof(float));
	receive_segment(f, node, step_target(f->a, op, node, received),
			length(received) * sizeof(float));
}

/* Two nodes have something for each other. */
static bool are_partners(const struct search *f, const struct plan_op *op, uint32_t node)
{
	switch (op->type) {
	case PLAN_SCATTER:
	case PLAN_GATHER:
	case PLAN_FETCH:
		return plan_share(f->p, f->a->node, node);
	case PLAN_SCATTER_REPLICAS:
	case PLAN_GATHER_REPLICAS:
		return plan_mirror(f->p, f->a->node, node);
	default:
		return true;
	}
}

static void (*const find_op[])(struct search *f, const struct plan_op *op, uint32_t node) = {
	[PLAN_AGREE] = find_agree,
	[PLAN_SCATTER] = find_scatter,
	[PLAN_DECIDE] = find_decide,
	[PLAN_GATHER] = find_gather,
	[PLAN_FETCH] = find_fetch,
	[PLAN_SCATTER_REPLICAS] = find_replicas,
	[PLAN_GATHER_REPLICAS] = find_replicas,
};

/* Units of equal size could be taken for each other. */
static void find_asked(struct search *f, const struct plan_op *op)
{
	struct segments *s = f->s;

	s->asked = op && op->exchange <= f->p->n_asked ? exchange_asked_code(op) : 0;
	for (uint32_t node = 0; s->asked && node < f->p->n_nodes; node++) {
		append_segment(f, &s->send[node], &s->asked, sizeof(s->asked));
		append_segment(f, &s->receive[node], &s->asked_of[node], sizeof(s->asked));
	}
}

static void find_step(struct search *f)
{
	const struct plan_op *op = exchange_op(f->t, f->position);
	bool is_early = op && op->type != PLAN_AGREE && op->type != PLAN_DECIDE &&
			op->type != PLAN_GATHER && op->bucket != UINT32_MAX;

	/* Sums during backward have whole buckets: gradients that are missing are not known yet. */
	if (plan_sums_nodes(f->p) && !is_early)
		f->touched = touched_find(&f->t->exchange.touched, f->a,
					  control_exchange_step(f->position));
	find_asked(f, op);
	for (uint32_t node = 0; op && node < f->p->n_nodes; node++)
		if (node != f->a->node && are_partners(f, op, node))
			find_op[op->type](f, op, node);
}

/* --- Values ------------------------------------------------------------------------------------------- */

/* MASTER of other nodes' pieces is in RECEIVED of node 0 in the meantime. */
static bool shards_masters(const struct weightd_plan *p)
{
	return plan_has_master(p) && plan_shards_state(p);
}

static float *master_at(const struct arena *a, uint64_t place)
{
	return a->master + (place - plan_places(a->updates).begin);
}

static void find_fetched(struct search *f)
{
	const struct arena *a = f->a;
	struct plan_piece part;

	if (!shards_masters(f->p))
		return;
	for (uint32_t node = 1; node < f->p->n_nodes; node++) {
		struct touched_parts parts = parts_of(f, node, UINT32_MAX);

		while (touched_parts_next(&parts, &part))
			if (a->node == 0)
				receive_segment(f, node, a->received[node] + part.at,
						length(&part) * sizeof(float));
			else if (a->node == node)
				send_segment(f, 0, master_at(a, part.at),
					     length(&part) * sizeof(float));
	}
}

static void find_masters(struct search *f, uint32_t node)
{
	const struct plan_pieces *pieces = plan_updates(f->p, node, f->a->rank);
	struct touched_parts parts = touched_parts(NULL, pieces);
	struct plan_piece part;

	while (plan_has_master(f->p) && touched_parts_next(&parts, &part)) {
		uint64_t size = length(&part) * sizeof(float);

		if (f->a->node == node)
			receive_segment(f, 0, master_at(f->a, part.at), size);
		else if (shards_masters(f->p))
			send_segment(f, node, f->a->received[node] + part.at, size);
		else
			send_segment(f, node, master_at(f->a, part.at), size);
	}
}

static void find_params(struct search *f, uint32_t node)
{
	struct plan_interval updated = f->a->updated;
	uint64_t element_size = plan_element_size(f->p, WEIGHTD_KIND_PARAM);
	uint64_t size = (updated.end - updated.begin) * element_size;

	if (f->a->node == 0)
		send_segment(f, node, (const uint8_t *)f->a->param + updated.begin * element_size,
			     size);
	else if (size)
		receive_segment(f, 0, arena_element(f->a, WEIGHTD_KIND_PARAM, updated.begin), size);
}

/* Each rank has a part of them. */
static void find_frozen(struct search *f, uint32_t node)
{
	uint64_t cuts[WEIGHTD_RANKS_MAX + 1], begin, size;

	if (!f->p->frozen_size)
		return;
	(void)weightd_cuts(f->p->frozen_size, PLAN_ALIGN, f->p->n_ranks, cuts);
	begin = cuts[f->a->rank];
	size = cuts[f->a->rank + 1] - begin;
	if (f->a->node == 0)
		send_segment(f, node, f->a->frozen + begin, size);
	else
		receive_segment(f, 0, f->frozen + begin, size);
}

static void find_values(struct search *f)
{
	for (uint32_t node = 1; node < f->p->n_nodes; node++)
		if (f->a->node == 0 || f->a->node == node) {
			find_params(f, node);
			find_masters(f, node);
			find_frozen(f, node);
		}
}

/* --- Values of strategies that pool gradients: rank 0 has those of all ranks of its node ---------------- */

/* Between node 0, where they are by element, and another node, where they are by place. */
static void find_originals(struct search *f, uint32_t node, bool is_fetch)
{
	const struct plan_interval all = {0, f->p->n_elements};
	struct spread parts = spread_of_node(f->p, node, all);
	bool is_here = f->a->node == node;
	struct plan_piece part;

	while (values_original(f->t, 0) && spread_next(&parts, &part)) {
		float *data = is_here ? values_original(f->t, part.at)
				      : f->t->values.flat + part.interval.begin;
		uint64_t size = length(&part) * sizeof(float);

		if (is_here == is_fetch)
			send_segment(f, is_here ? 0 : node, data, size);
		else
			receive_segment(f, is_here ? 0 : node, data, size);
	}
}

static void find_whole(struct search *f, uint32_t node, uint8_t *data, uint64_t size)
{
	if (f->a->node == 0)
		send_segment(f, node, data, size);
	else
		receive_segment(f, 0, data, size);
}

static void find_pooled(struct search *f, bool is_fetch)
{
	const struct values *v = &f->t->values;
	uint64_t param_size = f->p->n_elements * plan_element_size(f->p, WEIGHTD_KIND_PARAM);

	for (uint32_t node = 1; node < f->p->n_nodes; node++) {
		if (f->a->node != 0 && f->a->node != node)
			continue;
		/* One replica has all originals. */
		if (!is_fetch || node < f->p->n_sharing)
			find_originals(f, node, is_fetch);
		if (is_fetch)
			continue;
		if (!plan_shards_params(f->p))
			find_whole(f, node, v->param, param_size);
		find_whole(f, node, v->frozen, f->p->frozen_size);
	}
}

static void find_at_point(struct search *f, enum control_point point)
{
	bool is_pooled = values_are_pooled(f->p);

	if (point == CONTROL_FETCH && is_pooled)
		find_pooled(f, true);
	else if (point == CONTROL_FETCH)
		find_fetched(f);
	else if (point == CONTROL_SEND && is_pooled)
		find_pooled(f, false);
	else if (point == CONTROL_SEND)
		find_values(f);
}

/* --- All ---------------------------------------------------------------------------------------------- */

static void clear(struct segments *s, uint32_t n_nodes)
{
	for (uint32_t node = 0; node < n_nodes; node++) {
		list_clear(&s->send[node]);
		list_clear(&s->receive[node]);
	}
	s->is_short = false;
}

/* PARAM of a node, of all its ranks: sent from where it is, received by element. */
static void find_param_part(struct search *f, uint32_t from, uint32_t to)
{
	uint64_t size = plan_element_size(f->p, WEIGHTD_KIND_PARAM);

	for (uint32_t rank = 0; rank < f->p->n_ranks; rank++) {
		struct touched_parts parts = touched_parts(NULL, plan_pieces(f->p, from, rank));
		struct plan_piece part;

		while (touched_parts_next(&parts, &part))
			if (from == f->a->node)
				send_segment(f, to, (const uint8_t *)f->a->param + part.at * size,
					     length(&part) * size);
			else
				receive_segment(f, from,
						f->t->units.caught_up + part.interval.begin * size,
						length(&part) * size);
	}
}

int segments_find_params(struct segments *s, struct weightd_train *t, const bool *lacks)
{
	uint32_t own = t->arena.node;
	struct search f = {.s = s, .t = t, .p = t->plan, .a = &t->arena};

	clear(s, t->plan->n_nodes);
	for (uint32_t node = 0; node < t->plan->n_nodes; node++) {
		if (node == own || !plan_share(f.p, own, node))
			continue;
		if (lacks[node])
			find_param_part(&f, own, node);
		if (lacks[own])
			find_param_part(&f, node, own);
	}
	return s->is_short ? train_out_of_memory() : 0;
}

int segments_find(struct segments *s, struct weightd_train *t, uint64_t position, uint8_t *frozen)
{
	uint64_t index = control_exchange_index(position);
	struct search f = {
		.s = s, .t = t, .p = t->plan, .a = &t->arena, .position = position, .frozen = frozen};

	clear(s, t->plan->n_nodes);
	s->asked = 0;
	if (index < CONTROL_VALUES)
		find_step(&f);
	else if (index > CONTROL_VALUES && index < CONTROL_ENDS)
		find_at_point(&f, control_values_point(index));
	return s->is_short ? train_out_of_memory() : 0;
}

void segments_deinit(struct segments *s)
{
	for (uint32_t node = 0; node < WEIGHTD_NODES_MAX; node++) {
		free(s->send[node].segments);
		free(s->receive[node].segments);
	}
}
