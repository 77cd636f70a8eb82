/*
 * Exchanges: connecting, replaying, and the positions of each kind
 */
#include "libclient/train/exchange.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

#define PATIENT_MS 2000 /* for the last exchange, which nobody may be in any more */

/* A call that completes one exchange. */
struct call {
	struct weightd_train *t;
	struct exchange *x;
	struct wait_place *place;
	uint64_t position;
	struct wait_beat beat;
	uint8_t *frozen; /* of segments_find() */
	uint32_t shown; /* the node that the status has */
	uint64_t moved; /* link_moved(), at most: the others have arrived while it grows */
	/* NULL; or the call serves others, and ends without a sentence when it is, when a signal comes, or for another call. */
	bool (*is_over)(void *over);
	void *over;
	bool was_interrupted;
	bool lacks; /* parameters, and is for them alone: see exchange_catch_up() */
};

static struct control_word *line_word(const struct weightd_train *t)
{
	return &trainer_words(t)->line;
}

/* --- Sentences ---------------------------------------------------------------------------------------- */

struct phrase {
	char text[192];
};

/* "step 17" */
static const char *position_phrase(struct phrase *ret, uint64_t position)
{
	uint64_t step = control_exchange_step(position), index = control_exchange_index(position);

	if (index < CONTROL_VALUES)
		(void)snprintf(ret->text, sizeof(ret->text), "step %" PRIu64, step);
	else if (index >= CONTROL_ENDS)
		(void)snprintf(ret->text, sizeof(ret->text), "the end after step %" PRIu64, step);
	else if (index < control_values(0, CONTROL_SENT))
		(void)snprintf(ret->text, sizeof(ret->text), "the first values");
	else if (index <= control_values(0, CONTROL_KEPT))
		(void)snprintf(ret->text, sizeof(ret->text), "the end of the first values");
	else
		(void)snprintf(ret->text, sizeof(ret->text), "values written after step %" PRIu64,
			       step);
	return ret->text;
}

/* "node 1 (its rank 2)" */
static const char *node_phrase(struct phrase *ret, const struct link *l, uint32_t node)
{
	if (node == l->node)
		(void)snprintf(ret->text, sizeof(ret->text), "another node (its rank %u)", l->line);
	else
		(void)snprintf(ret->text, sizeof(ret->text), "node %u (its rank %u)", node, l->line);
	return ret->text;
}

/* A node that does not come may look elsewhere for the others. */
static int fail_absent(const struct call *c, const struct phrase *who, const struct phrase *where)
{
	const struct link *l = &c->x->link;

	return train_fail(
		-ETIMEDOUT,
		"%s did not take part in %s within %g s: it did not meet the others at %s, "
		"port %u; look why its processes are stopped, stuck or gone, and if all nodes "
		"have this address (MASTER_ADDR, MASTER_PORT) and a number of their own, or "
		"ask for a longer deadline",
		who->text, where->text, (double)c->beat.deadline_ms / 1000, l->address, l->port);
}

static int fail_late(const struct call *c, uint32_t node)
{
	const char *cause = plan_shards_params(c->t->plan) ? ", or open units in another order" : "";
	struct phrase who, where;

	(void)node_phrase(&who, &c->x->link, node);
	(void)position_phrase(&where, c->position);
	if (c->x->link.meet)
		return fail_absent(c, &who, &where);
	return train_fail(-ETIMEDOUT,
			  "%s did not take part in %s within %g s; look why its processes are "
			  "stopped, stuck or gone%s, or ask for a longer deadline",
			  who.text, where.text, (double)c->beat.deadline_ms / 1000, cause);
}

static int fail_interrupted(const struct call *c, uint32_t node)
{
	struct phrase who, where;

	(void)node_phrase(&who, &c->x->link, node);
	(void)position_phrase(&where, c->position);
	return train_fail(-EINTR,
			  "a signal interrupted rank %u, which waited for %s to take part in %s; call "
			  "again to continue",
			  c->x->link.line, who.text, where.text);
}

/* The sentence of the engine begins with the node. */
static int fail_lost(const struct call *c)
{
	struct phrase where;
	char why[ENGINE_WHY_SIZE];

	(void)snprintf(why, sizeof(why), "%s", weightd_train_error());
	(void)position_phrase(&where, c->position);
	return train_fail(-EOWNERDEAD,
			  "rank %u lost its connection to another node in %s: %s; start the ranks of "
			  "that node again, or end the others",
			  c->x->link.line, where.text, why);
}

static int fail_apart(const struct call *c, uint32_t behind, uint32_t ahead)
{
	const struct link *l = &c->x->link;
	struct phrase first, last;

	(void)position_phrase(&first, l->peers[behind].doing);
	(void)position_phrase(&last, l->peers[ahead].doing);
	return train_fail(
		-EUCLEAN,
		"node %u (its rank %u) is in %s and node %u in %s: the job of one of them is "
		"new or older, or their programs do not make the same calls; load a checkpoint "
		"into new jobs on all nodes",
		behind, l->line, first.text, ahead, last.text);
}

/* The type of an exchange that passes ask for; those of a bucket follow each other. */
#define ASKED_SCATTER 0u
#define ASKED_FETCH 3u
#define ASKED_MARK (1ull << 63) /* no other message begins with it */

/* "gathered the parameters of unit 2, those of 'h.1.weight'" */
static const char *asked_phrase(struct phrase *ret, const struct weightd_plan *p, uint64_t code)
{
	const char *what = code % 4 == ASKED_FETCH ? "gathered the parameters"
						   : "summed the gradients";
	uint64_t bucket = (code & ~ASKED_MARK) / 4;

	if (!(code & ASKED_MARK) || bucket >= p->n_buckets)
		(void)snprintf(ret->text, sizeof(ret->text), "did something else");
	else if (plan_shards_params(p))
		(void)snprintf(ret->text, sizeof(ret->text), "%s of unit %u, that of '%s'", what,
			       plan_unit_of_bucket(p, (uint32_t)bucket),
			       plan_unit_name(p, plan_unit_of_bucket(p, (uint32_t)bucket)));
	else
		(void)snprintf(ret->text, sizeof(ret->text), "%s of bucket %" PRIu64, what, bucket);
	return ret->text;
}

static int fail_order(const struct call *c, uint32_t node, uint64_t position)
{
	const struct segments *s = &c->x->segments;
	struct phrase who, where, theirs, ours;

	return train_fail(
		-ENOTRECOVERABLE,
		"%s %s in %s, and this rank %s: all ranks open the same units in the same order, "
		"in evaluations, too, and with as many micro-batches; start all ranks again",
		node_phrase(&who, &c->x->link, node),
		asked_phrase(&theirs, c->t->plan, s->asked_of[node]),
		position_phrase(&where, position), asked_phrase(&ours, c->t->plan, s->asked));
}

/*
 * Node `behind` gathers for what comes before the passes of a step, and node `ahead` has begun these. The latter waits until
 * the ranks of the former were started again.
 */
static int fail_skipped(const struct call *c, uint32_t behind, uint32_t ahead, uint64_t step)
{
	const struct link *l = &c->x->link;

	return train_fail(l->node == ahead ? -EPIPE : -ENOTRECOVERABLE,
			  "node %u (its rank %u) was started again and is in the passes of step %" PRIu64
			  ", while node %u " UNITS_SKIPPED,
			  ahead, l->line, step, behind);
}

/* --- Progress ----------------------------------------------------------------------------------------- */

/* Until SENT, values of strategies that pool gradients are in the process of rank 0 of node 0 alone. */
static bool is_before_sent(const struct weightd_train *t, uint64_t position)
{
	uint64_t index = control_exchange_index(position);

	return values_are_pooled(t->plan) && t->arena.rank == 0 && control_is_values(index) &&
	       control_values_point(index) < CONTROL_SENT;
}

/* The last exchange that this process has completed. */
static uint64_t line_reached(const struct weightd_train *t)
{
	uint64_t line = trainer_word(line_word(t));

	if (control_exchange_index(line) == CONTROL_PASSES)
		line = units_gathered(t, line);
	return t->exchange.reached > line ? t->exchange.reached : line;
}

/* The one that it does next, before `position`: it may have been taken back. */
static uint64_t line_next(const struct weightd_train *t, uint64_t position)
{
	uint64_t index = control_exchange_index(position), next = line_reached(t) + 1;

	if (!values_are_pooled(t->plan) || !control_is_values(index))
		return position;
	return next >= position - control_values_point(index) ? next : position;
}

static void line_complete(struct weightd_train *t, uint64_t position)
{
	if (t->arena.node == 0 && is_before_sent(t, position))
		t->exchange.reached = position;
	else
		wait_publish(line_word(t), position);
}

/* --- One exchange ------------------------------------------------------------------------------------- */

static void show(struct call *c, uint32_t node)
{
	if (node == c->shown)
		return;
	(void)status_wait(c->place->lane, CONTROL_NODES, node);
	c->shown = node;
}

/* A broken connection is a death on other nodes where they ask for errors: signals do not break it. */
static bool is_interruptible(const struct call *c)
{
	return c->place->is_interruptible &&
	       !(c->x->link.is_connected && c->place->on_death == WEIGHTD_DEATH_FAIL);
}

static int serve_check(struct call *c, bool is_interrupted)
{
	c->was_interrupted |= is_interrupted && c->place->is_interruptible;
	return c->was_interrupted || link_is_wanted(&c->x->link) || c->is_over(c->over) ? -ECANCELED
											: 0;
}

static int call_check(void *data, bool is_interrupted)
{
	struct call *c = data;
	uint32_t node;
	uint64_t moved;
	int r;

	if (c->is_over)
		return serve_check(c, is_interrupted);
	node = link_missing(&c->x->link);
	moved = link_moved(&c->x->link);
	/* Another connection begins at 0, and a node that is lost again and again is late in the end. */
	if (moved > c->moved) {
		c->beat.waited_ns = 0;
		c->moved = moved;
	}
	r = wait_beat(&c->beat, "exchange values with other nodes");
	show(c, node);
	if (r == WAIT_LATE)
		return fail_late(c, node);
	if (r == 0 && is_interrupted && is_interruptible(c))
		return fail_interrupted(c, node);
	return r;
}

/* The bytes of a pair, or a token: all that this rank completes has a message of each other one. */
static void token_or(const struct segment_list *list, const struct weightd_segment *token,
		     const struct weightd_segment **ret, uint32_t *ret_n)
{
	*ret = list->n ? list->segments : token;
	*ret_n = list->n ? list->n : 1;
}

/* Sends the segments to nodes that receive them, and receives if this one is one. `receives` is by node. */
static int call_move(struct call *c, const bool *receives)
{
	struct link *l = &c->x->link;
	struct weightd_transfer transfers[WEIGHTD_NODES_MAX];
	struct weightd_segment tokens[WEIGHTD_NODES_MAX],
		token = {&c->x->token, sizeof(c->x->token)};
	uint64_t sent = 0, sent_replicas = 0;
	uint32_t n = 0;
	int r;

	for (uint32_t node = 0; node < l->n_nodes; node++) {
		struct weightd_transfer *transfer = &transfers[n];

		if (node == l->node || (!receives[node] && !receives[l->node]))
			continue;
		*transfer = (struct weightd_transfer){.node = node};
		n++;
		tokens[node] = (struct weightd_segment){&c->x->tokens[node], sizeof(uint64_t)};
		if (receives[l->node])
			token_or(&c->x->segments.receive[node], &tokens[node], &transfer->receive,
				 &transfer->n_receive);
		if (receives[node]) {
			token_or(&c->x->segments.send[node], &token, &transfer->send,
				 &transfer->n_send);
			sent += c->x->segments.send[node].size;
			if (!plan_share(c->t->plan, l->node, node))
				sent_replicas += c->x->segments.send[node].size;
		}
	}
	r = link_exchange(l, transfers, n, call_check, c, c->beat.deadline_ms);
	if (r)
		return r;
	atomic_fetch_add_explicit(&c->x->n_sent, sent, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->x->n_sent_replicas, sent_replicas, memory_order_relaxed);
	return 0;
}

/* The others of the line do what this rank does. */
static int check_asked(const struct call *c, uint64_t position)
{
	const struct segments *s = &c->x->segments;

	for (uint32_t node = 0; s->asked && node < c->x->link.n_nodes; node++)
		if (node != c->x->link.node && s->asked_of[node] != s->asked)
			return fail_order(c, node, position);
	return 0;
}

/* The passes of the step have begun in one, and not in the other, whose exchange it has not completed. */
static bool is_skipped(uint64_t behind, const struct link_peer *ahead)
{
	return control_exchange_step(behind) == control_exchange_step(ahead->doing) &&
	       control_exchange_index(behind) < CONTROL_PASSES &&
	       control_exchange_index(ahead->doing) > CONTROL_PASSES &&
	       control_exchange_index(ahead->doing) < CONTROL_VALUES && ahead->done != behind;
}

/* Sends to those that have not completed it, and receives unless this rank has. */
static int call_transfer(struct call *c, uint64_t position)
{
	struct link *l = &c->x->link;
	bool receives[WEIGHTD_NODES_MAX];
	int r = segments_find(&c->x->segments, c->t, position, c->frozen);

	for (uint32_t node = 0; node < l->n_nodes; node++) {
		/* This rank served when they met. */
		if (is_skipped(position, &l->peers[node]))
			return fail_skipped(c, l->node, node, control_exchange_step(position));
		receives[node] = l->peers[node].done < position;
	}
	if (!r)
		r = call_move(c, receives);
	if (!r && receives[l->node])
		r = check_asked(c, position);
	if (r < 0)
		return r;
	for (uint32_t node = 0; node < l->n_nodes; node++)
		if (l->peers[node].done < position)
			l->peers[node].done = position;
	return 0;
}

/* Node 0 is in an exchange of values that it may have lost, or gives others for: it makes it with all of them. */
static bool is_taken_back(const struct call *c, uint64_t behind)
{
	return is_before_sent(c->t, behind) && c->x->link.peers[0].doing == behind;
}

/* All are in the exchanges of the same values. */
static bool are_close(uint64_t behind, uint64_t ahead)
{
	uint64_t point = control_values_point(control_exchange_index(behind));

	return ahead <= behind - point + CONTROL_KEPT;
}

static int check_apart(const struct call *c, uint32_t behind, uint32_t ahead)
{
	const struct link *l = &c->x->link;
	uint64_t first = l->peers[behind].doing, last = l->peers[ahead].doing;

	if (is_taken_back(c, first))
		return are_close(first, last) ? 0 : fail_apart(c, behind, ahead);
	for (uint32_t node = 0; node < l->n_nodes; node++)
		if (is_skipped(l->peers[node].doing, &l->peers[ahead]))
			return fail_skipped(c, node, ahead, control_exchange_step(last));
	for (uint32_t node = 0; node < l->n_nodes; node++) {
		const struct link_peer *peer = &l->peers[node];

		if (peer->doing != first && (peer->doing != last || peer->done != first))
			return fail_apart(c, behind, ahead);
	}
	return 0;
}

/*
 * The exchange that the ranks which are behind are in; all others have completed it last. -EUCLEAN: there is no such one.
 */
static int find_behind(const struct call *c, uint64_t *ret)
{
	const struct link *l = &c->x->link;
	uint32_t behind = 0, ahead = 0;

	for (uint32_t node = 1; node < l->n_nodes; node++) {
		if (l->peers[node].doing < l->peers[behind].doing)
			behind = node;
		if (l->peers[node].doing > l->peers[ahead].doing)
			ahead = node;
	}
	*ret = l->peers[behind].doing;
	return check_apart(c, behind, ahead);
}

/* All nodes do the exchanges from there on again. None has used what it has received in them. */
static void take_back(const struct call *c, uint64_t behind)
{
	struct link *l = &c->x->link;

	for (uint32_t node = 0; node < l->n_nodes; node++)
		if (l->peers[node].done >= behind)
			l->peers[node].done = behind - 1;
	if (trainer_word(line_word(c->t)) >= behind)
		wait_publish(line_word(c->t), behind - 1);
}

/* Continues with the first exchange that another node has not completed. */
static int call_repeat(struct call *c)
{
	uint64_t next = line_next(c->t, c->position), behind;
	int r = find_behind(c, &behind);

	if (r < 0)
		return r;
	if (is_taken_back(c, behind)) {
		take_back(c, behind);
		next = behind;
	} else if (behind < next) {
		r = call_transfer(c, behind);
	}
	for (; !r && next < c->position; next++) {
		r = call_transfer(c, next);
		if (!r)
			line_complete(c->t, next);
	}
	return r;
}

/*
 * A rank that serves may be at the end of what is numbered one by one. It does next what others do that have completed as much as
 * it has, or what others have completed since.
 */
static void find_doing(struct link *l, struct link_peer *serving)
{
	for (uint32_t node = 0; node < l->n_nodes; node++) {
		const struct link_peer *peer = &l->peers[node];

		if (!peer->serves && peer->done == serving->done)
			serving->doing = peer->doing;
		else if (!peer->serves && peer->done > serving->done)
			serving->doing = peer->done;
	}
}

static void find_doings(struct link *l)
{
	for (uint32_t node = 0; node < l->n_nodes; node++)
		if (l->peers[node].serves)
			find_doing(l, &l->peers[node]);
}

static bool some_lack(const struct link *l)
{
	for (uint32_t node = 0; node < l->n_nodes; node++)
		if (l->peers[node].lacks)
			return true;
	return false;
}

/* The connection was for this: those that lack parameters come again, and say where they are, once they are in an exchange. */
static int call_catch_up(struct call *c)
{
	struct link *l = &c->x->link;
	bool receives[WEIGHTD_NODES_MAX];
	int r;

	for (uint32_t node = 0; node < l->n_nodes; node++)
		receives[node] = l->peers[node].lacks;
	r = segments_find_params(&c->x->segments, c->t, receives);
	if (!r)
		r = call_move(c, receives);
	if (!r)
		c->lacks = false;
	link_close(l);
	return r < 0 ? r : 1;
}

/* 1: there was another connection, for those that lack parameters. */
static int call_connect(struct call *c)
{
	struct link *l = &c->x->link;
	bool skips = control_exchange_index(trainer_word(line_word(c->t))) == CONTROL_PASSES;
	struct link_peer own = {line_reached(c->t), line_next(c->t, c->position), c->lacks,
				c->is_over != NULL && !skips};
	int r;

	if (l->is_connected)
		return 0;
	r = link_connect(l, &own, call_check, c, c->beat.deadline_ms);
	if (!r && some_lack(l))
		return call_catch_up(c);
	if (!r) {
		find_doings(l);
		r = call_repeat(c);
	}
	if (r < 0)
		link_close(l);
	return r;
}

/* 1: the connection was lost, and another one can be made. */
static int call_end(struct call *c, int r)
{
	if (r != -EPIPE || !link_can_reconnect(&c->x->link))
		return r;
	if (c->place->on_death == WEIGHTD_DEATH_FAIL)
		return fail_lost(c);
	r = call_check(c, false);
	return r ? r : 1;
}

static int call_once(struct call *c)
{
	int r = link_check(&c->x->link);

	if (!r)
		r = call_connect(c);
	if (!r)
		r = call_transfer(c, c->position);
	return call_end(c, r);
}

/* Until it has all parameters: others come here in their exchanges, or serve. */
static int call_lacking(struct call *c)
{
	int r = link_check(&c->x->link);

	while (!r && c->lacks) {
		r = call_connect(c);
		r = r > 0 ? 0 : r;
	}
	return call_end(c, r);
}

/* `deadline_ms` 0: that of the place. */
static int call_run(struct call *c, int deadline_ms)
{
	struct link *l = &c->x->link;
	int (*once)(struct call * c) = c->lacks ? call_lacking : call_once;
	enum control_phase before;
	int r;

	if (!link_take(l))
		return train_fail(-EBUSY,
				  "the next step has begun: its gradients are exchanged now; complete "
				  "it first (weightd_train_update(), step())");
	/* Others learn what it lacks where they meet. This process may have served them before it was asked for parameters. */
	if (c->lacks)
		link_close(l);
	wait_beat_begin(&c->beat, c->place);
	if (deadline_ms)
		c->beat.deadline_ms = deadline_ms;
	c->shown = link_missing(l);
	before = status_wait(c->place->lane, CONTROL_NODES, c->shown);
	do
		r = once(c);
	while (r > 0);
	status_enter(c->place->lane, before);
	link_give(l);
	return r;
}

static int exchange_run(struct weightd_train *t, struct wait_place *place, uint64_t position,
			uint8_t *frozen, int deadline_ms)
{
	struct call c = {
		.t = t, .x = &t->exchange, .place = place, .position = position, .frozen = frozen};

	return call_run(&c, deadline_ms);
}

/* --- Steps -------------------------------------------------------------------------------------------- */

static uint32_t asked_code(const struct plan_op *op)
{
	switch (op->type) {
	case PLAN_SCATTER_REPLICAS:
		return ASKED_SCATTER + 1;
	case PLAN_GATHER_REPLICAS:
		return ASKED_SCATTER + 2;
	case PLAN_FETCH:
		return ASKED_FETCH;
	default:
		return ASKED_SCATTER;
	}
}

uint64_t exchange_asked_code(const struct plan_op *op)
{
	return ASKED_MARK | (4ull * op->bucket + asked_code(op));
}

/* NULL: another process has written the words. */
static const struct plan_op *asked_op(const struct weightd_plan *p, uint64_t code, uint32_t bucket)
{
	if (bucket >= p->n_buckets)
		return NULL;
	if (code == ASKED_FETCH)
		return plan_fetch(p, plan_unit_of_bucket(p, bucket));
	if (code == ASKED_SCATTER)
		return plan_scatter(p, bucket);
	return plan_replicas(p, bucket,
			     code == ASKED_SCATTER + 1 ? PLAN_SCATTER_REPLICAS
						       : PLAN_GATHER_REPLICAS);
}

/* Passes may ask for more exchanges than the plan has, and each has the number that it was given. */
static uint64_t position_of(const struct weightd_train *t, const struct plan_op *op, uint64_t step)
{
	const struct arena *a = &t->arena;
	uint64_t n_asked = a->plan->n_asked;

	if (!n_asked)
		return control_exchange(step, op->exchange);
	if (op->exchange <= n_asked)
		return control_exchange(step, arena_bucket(a, a->rank, op->bucket)->scatter +
						      asked_code(op) % ASKED_FETCH);
	return control_exchange(step,
				arena_saved(a, a->rank, step)->n_asked + op->exchange - n_asked);
}

/* The first exchange of the passes may have the parity of the last one before them. */
static uint64_t *asked_word(const struct weightd_train *t, uint64_t index)
{
	return &trainer_words(t)->asked[index > CONTROL_PASSES][index % 2];
}

const struct plan_op *exchange_op(const struct weightd_train *t, uint64_t position)
{
	const struct weightd_plan *p = t->plan;
	uint64_t step = control_exchange_step(position), index = control_exchange_index(position),
		 asked;
	const struct control_saved *saved = arena_saved(&t->arena, t->arena.rank, step);

	if (!p->n_asked)
		return plan_exchange(p, index);
	if (saved->step == step && index > saved->n_asked)
		return plan_exchange(p, index - saved->n_asked + p->n_asked);
	asked = *asked_word(t, index);
	return asked_op(p, asked % 4, (uint32_t)(asked / 4));
}

bool exchange_is_done(const struct weightd_train *t, const struct plan_op *op, uint64_t step)
{
	return trainer_word(line_word(t)) >= position_of(t, op, step);
}

int exchange_asked(struct weightd_train *t, struct wait_place *place, const struct plan_op *op,
		   uint64_t position)
{
	int r;

	if (trainer_word(line_word(t)) >= position)
		return 0;
	*asked_word(t, control_exchange_index(position)) = 4ull * op->bucket + asked_code(op);
	r = exchange_run(t, place, position, NULL, 0);
	if (r < 0)
		return r;
	if (op->type == PLAN_FETCH)
		arena_bucket(&t->arena, t->arena.rank, op->bucket)->fetched = position;
	wait_publish(line_word(t), position);
	return 0;
}

int exchange_step(struct weightd_train *t, struct wait_place *place, const struct plan_op *op,
		  uint64_t step)
{
	uint64_t position = position_of(t, op, step);
	int r;

	if (op->exchange <= t->plan->n_asked)
		return exchange_asked(t, place, op, position);
	if (exchange_is_done(t, op, step))
		return 0;
	r = exchange_run(t, place, position, NULL, 0);
	if (!r)
		wait_publish(line_word(t), position);
	return r;
}

static int wait_for_lines(struct weightd_train *t, uint64_t position, enum control_topic topic,
			  const char *what)
{
	int r = 0;

	for (uint32_t rank = 0; !r && rank < t->plan->n_ranks; rank++) {
		struct wait_reason reason = {.rank = rank,
					     .step = control_exchange_step(position),
					     .topic = topic,
					     .what = what,
					     .for_successor = true};

		r = wait_for(&t->place, &arena_rank(&t->arena, rank)->line, position, &reason);
	}
	return r;
}

int exchange_wait(struct weightd_train *t, const struct plan_op *op, uint64_t step)
{
	return wait_for_lines(t, position_of(t, op, step), CONTROL_SUMS,
			      "receive sums of other nodes");
}

/* --- Those that were started anew ----------------------------------------------------------------------- */

int exchange_catch_up(struct weightd_train *t)
{
	struct call c = {.t = t,
			 .x = &t->exchange,
			 .place = &t->place,
			 .position = trainer_word(line_word(t)) + 1,
			 .lacks = true};

	return call_run(&c, 0);
}

/* The exchange behind the last one, while passes may ask for more, or nodes have yet to agree. 0: there is none. */
static uint64_t next_position(const struct weightd_train *t)
{
	uint64_t line = trainer_word(line_word(t)), step = control_exchange_step(line);
	uint64_t index = control_exchange_index(line), end = CONTROL_VALUES;
	const struct control_saved *saved = arena_saved(&t->arena, t->arena.rank, step);

	/* Also of a process that was started anew, and completes the step of the one before it. */
	if (trainer_word(&trainer_words(t)->param) >= step)
		return 0;
	if (saved->step == step)
		end = saved->n_asked + t->plan->n_exchanges - t->plan->n_asked;
	return index < end ? line + 1 : 0;
}

bool exchange_serve(void *data, bool (*is_over)(void *over), void *over)
{
	struct weightd_train *t = data;
	struct call c = {.t = t,
			 .x = &t->exchange,
			 .place = &t->place,
			 .position = next_position(t),
			 .is_over = is_over,
			 .over = over};

	if (!c.position || !link_can_reconnect(&c.x->link) || !link_take_aside(&c.x->link))
		return false;
	link_look(&c.x->link);
	if (!c.x->link.is_connected && !is_over(over))
		(void)call_connect(&c); /* the next exchange fails as this one does */
	link_give_aside(&c.x->link);
	return c.was_interrupted;
}

/* --- Values ------------------------------------------------------------------------------------------- */

/* Into all copies of PARAM: values are received in this rank's. */
static void spread_values(struct weightd_train *t)
{
	const struct weightd_plan *p = t->plan;
	struct arena *a = &t->arena;
	uint64_t size = (a->updated.end - a->updated.begin) *
			plan_element_size(p, WEIGHTD_KIND_PARAM);
	uint32_t own = plan_copy(p, a->rank);

	for (uint32_t copy = 0; size && !plan_is_replicated(p) && copy < p->n_copies; copy++)
		if (copy != own)
			memcpy(a->params[copy], a->params[own], size);
}

/* Rank 0 of a node, for all of its ranks. The ranges of the node are mapped. */
static int pooled_transfer(struct weightd_train *t, uint64_t position)
{
	uint64_t index = control_exchange_index(position);
	enum control_point point = control_values_point(index);
	bool is_first = index == CONTROL_VALUES;
	int r = 0;

	if (point == CONTROL_SEND && t->arena.node == 0)
		r = values_place(t);
	if (!r)
		r = exchange_run(t, &t->place, position, NULL, 0);
	if (!r && point == CONTROL_FETCH && t->arena.node == 0 && !is_first)
		values_collect(t);
	/* Node 0 does not send them again: the ranges can have what follows from them. */
	if (!r && point == CONTROL_KEPT && t->arena.node)
		r = values_spread(t);
	return r;
}

static int pooled_run(struct weightd_train *t, uint64_t position)
{
	int r = 0;

	if (line_reached(t) >= position)
		return 0;
	if (t->arena.node == 0 && is_before_sent(t, position))
		r = values_allocate(t);
	if (!r)
		r = values_open(t);
	if (!r)
		r = pooled_transfer(t, position);
	values_close(t);
	if (r < 0)
		return r;
	line_complete(t, position);
	if (!is_before_sent(t, position))
		values_free(t);
	return 0;
}

/* Rank 0 has completed KEPT once the node has its values. */
static int pooled_settle(struct weightd_train *t, uint64_t step, uint32_t number,
			 enum control_point first, enum control_point last)
{
	uint64_t position = control_exchange(step, control_values(number, last));
	struct wait_reason reason = {.rank = 0,
				     .step = step,
				     .topic = number ? CONTROL_WRITTEN_VALUES : CONTROL_FIRST_VALUES,
				     .what = "exchange values with other nodes",
				     .for_successor = true};
	int r = 0;

	if (t->arena.rank && last == CONTROL_KEPT)
		return wait_for(&t->place, &arena_rank(&t->arena, 0)->line, position, &reason);
	for (enum control_point point = first; !r && !t->arena.rank && point <= last; point++)
		r = pooled_run(t, control_exchange(step, control_values(number, point)));
	return r;
}

static int receive_values(struct weightd_train *t, uint64_t position)
{
	struct arena *a = &t->arena;
	bool has_values = a->node &&
			  control_values_point(control_exchange_index(position)) == CONTROL_SEND;
	uint8_t *frozen = NULL;
	int r;

	if (trainer_word(line_word(t)) >= position)
		return 0;
	if (has_values && t->plan->frozen_size) {
		frozen = arena_map_all(a, WEIGHTD_KIND_FROZEN, 0);
		if (!frozen)
			return -ENOMEM;
	}
	r = exchange_run(t, &t->place, position, frozen, 0);
	if (frozen)
		arena_unmap_all(a, frozen);
	if (r < 0)
		return r;
	if (has_values)
		spread_values(t);
	wait_publish(line_word(t), position);
	return 0;
}

static int values_settle(struct weightd_train *t, uint64_t position)
{
	bool is_first = control_exchange_index(position) <= control_values(0, CONTROL_SENT);
	int r = t->plan->n_nodes > 1 ? receive_values(t, position) : 0;

	if (r < 0 || t->plan->n_nodes == 1)
		return r;
	return wait_for_lines(t, position, is_first ? CONTROL_FIRST_VALUES : CONTROL_WRITTEN_VALUES,
			      "exchange values with other nodes");
}

int exchange_fetch(struct weightd_train *t, uint64_t step, uint32_t number)
{
	if (values_are_pooled(t->plan))
		return pooled_settle(t, step, number, CONTROL_FETCH, CONTROL_FETCH);
	return values_settle(t, control_exchange(step, control_values(number, CONTROL_FETCH)));
}

int exchange_values(struct weightd_train *t, uint64_t step, uint32_t number)
{
	int r;

	if (values_are_pooled(t->plan))
		return pooled_settle(t, step, number, CONTROL_SEND, CONTROL_KEPT);
	r = values_settle(t, control_exchange(step, control_values(number, CONTROL_SEND)));
	/* With sync_every the next step of this node changes PARAM, which another one may still need. */
	if (!r)
		r = values_settle(t, control_exchange(step, control_values(number, CONTROL_SENT)));
	return r;
}

/* --- The end ------------------------------------------------------------------------------------------ */

static int run_end(struct weightd_train *t, uint64_t index, int deadline_ms)
{
	uint64_t line = trainer_word(line_word(t));
	uint64_t position = control_exchange(control_exchange_step(line), index);
	int r;

	if (line >= position)
		return 0;
	r = exchange_run(t, &t->place, position, NULL, deadline_ms);
	if (!r)
		wait_publish(line_word(t), position);
	return r;
}

static int run_ends(struct weightd_train *t)
{
	int r = run_end(t, CONTROL_ENDS, 0);
	bool is_new;

	if (r < 0)
		return r;
	/* A process that was started anew may be too late for the others. */
	is_new = !t->exchange.link.is_connected;
	r = run_end(t, CONTROL_ENDS + 1, is_new ? PATIENT_MS : 0);
	return r == -EINTR ? r : 0;
}

int exchange_end(struct weightd_train *t)
{
	bool watches_all = t->place.watches_all;
	int r;

	if (t->plan->n_nodes == 1)
		return 0;
	/* Other ranks of this node may have ended, and their processes, too. */
	t->place.watches_all = false;
	r = run_ends(t);
	t->place.watches_all = watches_all;
	return r;
}

/* --- Life --------------------------------------------------------------------------------------------- */

int exchange_init(struct weightd_train *t, const struct weightd_nodes *given, uint32_t node,
		  uint32_t rank)
{
	int r;

	if (t->plan->n_nodes == 1)
		return 0;
	r = link_init(&t->exchange.link, t->plan, given, node, rank);
	return r < 0 ? r : touched_init(&t->exchange.touched, t->plan);
}

void exchange_deinit(struct weightd_train *t)
{
	link_deinit(&t->exchange.link);
	segments_deinit(&t->exchange.segments);
	touched_deinit(&t->exchange.touched);
}
