/*
 * A replica that is not served is, at any time, in one of four states: a source job looks at it, this node has requested
 * it from a peer and waits, a retry is due, or no peer has it. A deadline, an answer, or news of a peer ends each of
 * these. Retries double from a fifth of a second to ten, with a random part, as a thousand nodes may lack the same
 * version. Each node that got it serves the next one, one at a time.
 *
 * A peer may claim a version that it does not have. After a request in vain, that peer is asked after all others that
 * have anything newer than our version, and a new peer need not wait for it. Nor may such a peer hold our place for a
 * repair: only the peer that was asked may begin one, once, and it must send bytes.
 */
#include "server/sync/repair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/base/engine_order.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/broadcast.h"
#include "server/sync/coordinator/broadcast_source.h"
#include "server/sync/coordinator/repair_refusal.h"
#include "server/sync/participant/participant.h"
#include "server/sync/pull.h"
#include "server/sync/state/group.h"
#include "server/sync/state/retry.h"
#include "server/sync/state/time_limit.h"

_Static_assert(REPAIR_RATE_MIN / REPAIRS_SERVED_MAX >= ENGINE_ORDER_RATE_MIN,
	       "all take such a share");

#define RETRY_BUSY SECOND
#define LOOKS_MAX 2 /* at a time: each reads all bytes of a version */
#define ASKED_MAX 8 /* replicas that one peer is to bring at a time */

/* --- Looking ------------------------------------------------------------------------------------ */

static void look_failed(struct agent *a, struct replica *rep, bool is_vain)
{
	work_end(a, &rep->look);
	rep->look_ns = 0;
	rep->look_is_vain = is_vain;
	replica_set_lost(a, rep);
}

static void repair_on_look_message(struct agent *a, struct work *w, const json_t *message, int *fds,
				   unsigned n_fds)
{
	struct replica *rep = container_of(w, struct replica, look);
	uint64_t n_bytes, version;
	const char *op, *code = "";
	uint8_t root[32];

	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	(void)field_string(message, "code", 32, &code);
	if (strcmp(op, "attached") == 0 &&
	    field_number(message, "n_bytes", INT64_MAX, &n_bytes) == 0 &&
	    field_number(message, "version", INT64_MAX, &version) == 0) {
		if (n_bytes != rep->document->n_bytes) {
			look_failed(a, rep, true);
			return;
		}
		rep->look_version = version;
		rep->look_ns = agent_now(a) + time_limit_for(a, n_bytes);
	} else if (strcmp(op, "root") == 0 && field_bytes(message, "root", root, 32) == 0) {
		/* The version of the commit log, or another one of that size. */
		if (n_fds == 1)
			replica_set_base(rep, rep->look_version, rep->document->n_bytes, root,
					 fds[0]);
		if (memcmp(root, rep->document->root, 32) != 0) {
			look_failed(a, rep, true);
			return;
		}
		work_end(a, w);
		rep->look_ns = 0;
		replica_set_serving(a, rep, rep->look_version);
		replica_tell_all(a, rep);
	} else if (strcmp(op, "failed") == 0 && strcmp(code, "superseded") == 0) {
		replica_set_superseded(a, rep);
	} else {
		look_failed(a, rep, false);
	}
}

static void repair_on_look_end(struct agent *a, struct work *w, const char *how)
{
	(void)how;
	look_failed(a, container_of(w, struct replica, look), false);
}

static unsigned n_looks(struct agent *a)
{
	struct replica *rep;
	unsigned n = 0;

	list_for_each(rep, &a->replicas, link)
		n += rep->look_ns != 0;
	return n;
}

/*
 * Looks whether the local weightd has the version of the commit log, or had published it when we
 * died.
 */
static bool repair_look(struct agent *a, struct replica *rep)
{
	char why[WHY_SIZE];

	if (!rep->document || rep->look_is_vain)
		return false;
	rep->look = (struct work){.on_message = repair_on_look_message,
				  .on_end = repair_on_look_end};
	if (work_start(a, &rep->look, JOB_SOURCE, rep->buffer, why) < 0) {
		agent_log(a, "error", "%s", why);
		return false;
	}
	rep->look_ns = agent_now(a) + time_limit_for(a, 0);
	work_tell(a, &rep->look,
		  json_pack("{s:s, s:s?, s:s, s:s, s:I}", "op", "look", "socket",
			    a->config->weightd_socket, "buffer", rep->buffer, "device",
			    group_device(a->config, rep->group), "version", (json_int_t)rep->version),
		  NULL, 0);
	return true;
}

/* --- Asking ------------------------------------------------------------------------------------- */

/* Positive: x is to be asked before y. */
static int compare_claims(const struct claim *x, const struct claim *y)
{
	unsigned vain_x = x->n_vain / RETRY_VAIN_STEP, vain_y = y->n_vain / RETRY_VAIN_STEP;

	if (vain_x != vain_y)
		return vain_x < vain_y ? 1 : -1;
	return version_id_compare(x->version_id, y->version_id);
}

/*
 * One of those that claim what is newer than what we hold or let go of, and not older than the commit log: the
 * newest, of those that were asked in vain least. NO_PEER: there is none, or all of them have enough to bring.
 */
static unsigned repair_choose(struct agent *a, const struct replica *rep, bool *ret_is_one_busy)
{
	const struct claim *best = NULL;
	unsigned n = 0, chosen = NO_PEER;
	uint32_t random;

	a->env->random(a->userdata, &random, sizeof(random));
	for (unsigned i = 0; i < a->config->n_peers; i++) {
		struct claim *c = a->peers[i].up ? replica_claim(a, i, rep) : NULL;
		int order;

		if (rep->pull.id[0] && i != rep->pull.peer)
			continue;
		if (!c || version_id_compare(c->version_id, replica_committed(rep)) < 0 ||
		    version_id_compare(c->version_id, replica_done_with(rep)) <= 0)
			continue;
		if (a->peers[i].n_asked >= ASKED_MAX) {
			*ret_is_one_busy = true;
			continue;
		}
		order = best ? compare_claims(c, best) : 1;
		if (order < 0)
			continue;
		n = order > 0 ? 1 : n + 1;
		best = c;
		/* Each of the n with the same chance. */
		random = random * 1664525 + 1013904223;
		if ((random >> 8) % n == 0)
			chosen = i;
	}
	return chosen;
}

static void repair_ask(struct agent *a, struct replica *rep, unsigned peer, uint64_t now)
{
	struct claim *c = replica_claim(a, peer, rep);
	struct version_id held = replica_held(rep);

	replica_set_asked(a, rep, peer);
	c->is_invited = true;
	/* It digests the version before it prepares. */
	rep->asked_ns = now + retry_patience(a);
	agent_send(a, peer,
		   json_pack("{s:s, s:s, s:s, s:I, s:I, s:o*}", "type", "catch-up", "buffer",
			     rep->buffer, "group", c->group->name, "term", (json_int_t)held.term,
			     "number", (json_int_t)held.number, "dry",
			     rep->pull.is_dry ? json_true() : NULL));
}

/* Returns whether another peer failed less often than the one that was asked. */
static bool is_another_better(struct agent *a, const struct replica *rep)
{
	const struct claim *asked = replica_claim(a, rep->asked, rep), *c;
	bool is_one_busy = false; /* one that is no better choice now */
	unsigned peer = repair_choose(a, rep, &is_one_busy);

	c = peer == NO_PEER ? NULL : replica_claim(a, peer, rep);
	return asked && c && c->n_vain / RETRY_VAIN_STEP < asked->n_vain / RETRY_VAIN_STEP;
}

static bool is_in_sync(struct agent *a, const char *buffer)
{
	return participant_find_of_buffer(a, buffer) || sync_find_of_buffer(a, buffer);
}

static bool is_ours(const struct agent *a, const struct replica *rep)
{
	const struct group *g = group_find(a->config, rep->group);

	return g && agent_knows(a, g, AGENT_SELF) && group_has_buffer(g, rep->buffer);
}

void repair_look_again(struct agent *a, struct replica *rep)
{
	work_end(a, &rep->look);
	replica_ask_nobody(a, rep);
	rep->state = REPLICA_UNVERIFIED;
	rep->look_is_vain = false;
	rep->look_ns = rep->retry_ns = 0;
	rep->n_retries = 0;
	a->look_again = true;
}

/* One look at a replica. */
struct repair_turn {
	uint64_t now;
	unsigned n_looking;
};

/* A look goes on, until its deadline. */
static bool repair_waits_for_look(struct agent *a, struct replica *rep, const struct repair_turn *t)
{
	if (!rep->look_ns)
		return false;
	if (t->now < rep->look_ns)
		return true;
	look_failed(a, rep, false);
	return false;
}

/* A peer was asked, and none that is better has it. */
static bool repair_waits_for_answer(struct agent *a, struct replica *rep,
				    const struct repair_turn *t)
{
	if (rep->asked != NO_PEER && t->now >= rep->asked_ns) {
		unsigned peer = rep->asked;

		retry_in_vain(a, rep, peer);
		retry_later(a, rep);
		pull_on_refused(a, rep, peer, "it did not begin to send it in time");
	} else if (rep->asked != NO_PEER && !is_another_better(a, rep)) {
		return true;
	}
	replica_set_asked(a, rep, NO_PEER);
	return false;
}

static bool repair_waits_for_retry(struct agent *a, struct replica *rep, const struct repair_turn *t)
{
	(void)a;
	if (rep->retry_ns > t->now)
		return true;
	rep->retry_ns = 0;
	return false;
}

/* The end of a sync comes back here. */
static bool repair_is_needless(struct agent *a, struct replica *rep, const struct repair_turn *t)
{
	(void)t;
	if (!is_ours(a, rep)) {
		pull_fail(a, rep, "%s has no group '%s' with it", a->config->name, rep->group);
		return true;
	}
	return is_in_sync(a, rep->buffer);
}

static bool repair_looks(struct agent *a, struct replica *rep, const struct repair_turn *t)
{
	if (rep->state == REPLICA_UNVERIFIED && (t->n_looking >= LOOKS_MAX || repair_look(a, rep)))
		return true;
	rep->state = rep->state == REPLICA_UNVERIFIED ? REPLICA_BEHIND : rep->state;
	return false;
}

static bool repair_asks(struct agent *a, struct replica *rep, const struct repair_turn *t)
{
	bool is_one_busy = false;
	unsigned peer = repair_choose(a, rep, &is_one_busy);
	char why[WHY_SIZE];

	if (peer != NO_PEER && a->env->may_save(a->userdata, why) < 0) {
		agent_log(a, "debug", "%s is not fetched, yet: %s", rep->buffer, why);
		retry_later(a, rep);
		pull_fail(a, rep, "%s", why);
		return true;
	}
	if (peer != NO_PEER) {
		repair_ask(a, rep, peer, t->now);
		return true;
	}
	if (is_one_busy)
		rep->retry_ns = t->now + RETRY_BUSY;
	else
		pull_on_nobody(a, rep);
	return is_one_busy;
}

/* No peer has it: a weightd that was away may come back with it. */
static bool repair_looks_later(struct agent *a, struct replica *rep, const struct repair_turn *t)
{
	(void)t;
	if (rep->state == REPLICA_BEHIND && rep->document && !rep->look_is_vain) {
		retry_later(a, rep);
		rep->state = REPLICA_UNVERIFIED;
	}
	return true;
}

static void repair_step_replica(struct agent *a, struct replica *rep, uint64_t now,
				unsigned n_looking)
{
	/* In this order; the first that returns true is what the replica waits for. */
	static bool (*const STEPS[])(struct agent * a, struct replica * rep,
				     const struct repair_turn *t) = {
		repair_waits_for_look,  repair_waits_for_answer,
		repair_waits_for_retry, repair_is_needless,
		repair_looks,           repair_asks,
		repair_looks_later,
	};
	const struct repair_turn t = {now, n_looking};

	for (unsigned i = 0; !STEPS[i](a, rep, &t);)
		i++;
}

uint64_t repair_step(struct agent *a, uint64_t now)
{
	uint64_t next = 0;
	bool all = a->look_again;
	unsigned n = n_looks(a); /* counted once: there may be thousands of replicas */
	struct replica *rep;

	a->look_again = false;
	list_for_each(rep, &a->replicas, link) {
		uint64_t at = rep->look_ns            ? rep->look_ns
			      : rep->asked != NO_PEER ? rep->asked_ns
						      : rep->retry_ns;

		if (all || (at && now >= at)) {
			n -= rep->look_ns != 0;
			repair_step_replica(a, rep, now, n);
			n += rep->look_ns != 0;
		}
		at = rep->look_ns            ? rep->look_ns
		     : rep->asked != NO_PEER ? rep->asked_ns
					     : rep->retry_ns;
		if (at && (!next || at < next))
			next = at;
	}
	return next;
}

void repair_on_refused(struct agent *a, unsigned peer, const json_t *message)
{
	const char *buffer, *code, *why;
	struct claim *c;
	struct replica *rep;

	if (field_string(message, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(message, "code", 32, &code) < 0 ||
	    field_string(message, "why", WHY_SIZE, &why) < 0) {
		agent_hang_up(a, peer, "cannot-repair of another form");
		return;
	}
	rep = replica_find(a, buffer);
	c = rep ? replica_claim(a, peer, rep) : NULL;
	if (!c || !c->is_invited)
		return;
	/*
	 * A busy peer may be busy with our request, as when it digests for long, and send it yet.
	 */
	c->is_invited = strcmp(code, "busy") == 0;
	if (rep->asked != peer)
		return;
	agent_log(a, "debug", "%s: %s does not repair it: %s", buffer, agent_peer_name(a, peer),
		  why);
	retry_note_vain(a, rep, peer, strcmp(code, "busy") == 0 ? 1 : RETRY_VAIN_STEP);
	retry_later(a, rep);
	if (strcmp(code, "busy") != 0)
		pull_on_refused(a, rep, peer, why);
}

void repair_on_worthless(struct agent *a, unsigned peer, const char *buffer)
{
	struct replica *rep = replica_find(a, buffer);

	if (!rep || !retry_take_invitation(a, rep, peer))
		return;
	retry_in_vain(a, rep, peer);
	if (rep->asked == peer)
		retry_later(a, rep);
}

void repair_on_peer_down(struct agent *a, unsigned peer)
{
	struct replica *rep;

	repair_forget(a, peer);
	list_for_each(rep, &a->replicas, link)
		if (rep->asked == peer) {
			retry_in_vain(a, rep, peer);
			retry_later(a, rep);
		}
}

/* --- Being asked -------------------------------------------------------------------------------- */

struct catch_up {
	struct list link; /* agent::catch_ups */
	unsigned peer;
	const struct group *group;
	char buffer[BUFFER_MAX + 1];
	struct version_id version_id; /* the version that the peer has */
	bool is_dry; /* it wants a plan, and no byte of a version */
};

static void catch_up_free(struct catch_up *c)
{
	list_remove(&c->link);
	free(c);
}

static struct catch_up *find_catch_up(struct agent *a, unsigned peer, const char *buffer)
{
	struct catch_up *c;

	list_for_each(c, &a->catch_ups, link)
		if (c->peer == peer && strcmp(c->buffer, buffer) == 0)
			return c;
	return NULL;
}

void repair_forget(struct agent *a, unsigned peer_or_none)
{
	struct catch_up *c, *next;

	list_for_each_safe(c, next, &a->catch_ups, link)
		if (peer_or_none == NO_PEER || c->peer == peer_or_none)
			catch_up_free(c);
}

static void repair_serve(struct agent *a, const struct catch_up *c)
{
	struct replica *rep = replica_find(a, c->buffer);
	char why[WHY_SIZE];
	struct sync *s;

	if (!agent_knows(a, c->group, c->peer) || !rep || strcmp(rep->group, c->group->name) != 0 ||
	    version_id_compare(replica_held(rep), c->version_id) <= 0) {
		repair_refusal_send(a, c->peer, c->buffer, "nothing", "nothing newer is here");
		return;
	}
	if (is_in_sync(a, c->buffer)) {
		repair_refusal_send(a, c->peer, c->buffer, "busy", "a sync of it is under way here");
		return;
	}
	if (broadcast_new(a, rep, c->group, c->peer, rep->version, &s, why) < 0) {
		repair_refusal_send(a, c->peer, c->buffer, "failed", why);
		return;
	}
	s->max_rate = a->config->repair_rate / REPAIRS_SERVED_MAX;
	s->is_dry = c->is_dry;
	broadcast_source_go_on(a, broadcast_of(s));
}

static bool is_moving(const struct sync *s)
{
	return sync_is_repair(s) && (s->phase == PHASE_OPEN || s->phase == PHASE_BYTES);
}

/* All that are above it go down before one that is about to begin has its share. */
void repair_share_rate(struct agent *a)
{
	struct sync *s;
	unsigned n = 0;

	if (!a->config->repair_rate)
		return;
	list_for_each(s, &a->syncs, link)
		n += is_moving(s);
	list_for_each(s, &a->syncs, link) {
		struct broadcast *b = is_moving(s) ? broadcast_of(s) : NULL;
		uint64_t share = n ? a->config->repair_rate / n : 0;

		if (!b || b->share == share)
			continue;
		b->share = share;
		if (s->phase == PHASE_BYTES)
			work_tell(a, &b->engine,
				  json_pack("{s:s, s:I}", "op", "rate", "max_rate",
					    (json_int_t)share),
				  NULL, 0);
	}
}

static unsigned n_served(struct agent *a, unsigned peer_or_none)
{
	struct sync *s;
	unsigned n = 0;

	list_for_each(s, &a->syncs, link)
		n += sync_is_repair(s) && s->phase != PHASE_ENDED &&
		     (peer_or_none == NO_PEER || s->members[0].peer == peer_or_none);
	return n;
}

void repair_serve_next(struct agent *a)
{
	struct catch_up *c, *next;
	unsigned n = n_served(a, NO_PEER);

	list_for_each_safe(c, next, &a->catch_ups, link) {
		if (n >= REPAIRS_SERVED_MAX)
			return;
		/*
		 * A peer with repairs under way leaves as many to others, however long its own
		 * take.
		 */
		if (n_served(a, c->peer) >= REPAIRS_SERVED_MAX - n)
			continue;
		repair_serve(a, c);
		n = n_served(a, NO_PEER);
		catch_up_free(c);
	}
}

static unsigned n_waiting(struct agent *a, unsigned peer)
{
	struct catch_up *c;
	unsigned n = 0;

	list_for_each(c, &a->catch_ups, link)
		n += c->peer == peer;
	return n;
}

void repair_on_catch_up(struct agent *a, unsigned peer, const json_t *message)
{
	const char *buffer, *group_name;
	const struct group *g;
	struct catch_up *c;
	struct version_id version_id;
	bool is_dry;

	if (field_string(message, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_string(message, "group", GROUP_MAX, &group_name) < 0 ||
	    field_number(message, "term", VERSION_ID_MAX, &version_id.term) < 0 ||
	    field_number(message, "number", VERSION_ID_MAX, &version_id.number) < 0 ||
	    field_bool_or(message, "dry", false, &is_dry) < 0) {
		agent_hang_up(a, peer, "catch-up of another form");
		return;
	}
	g = group_find(a->config, group_name);
	c = find_catch_up(a, peer, buffer);
	if (!g) {
		repair_refusal_send(a, peer, buffer, "nothing", "nothing newer is here");
		return;
	}
	if (c) {
		c->version_id = version_id; /* it asks again, and keeps its place */
		c->group = g;
		c->is_dry = is_dry;
		return;
	}
	if (n_waiting(a, peer) >= ASKED_MAX) {
		repair_refusal_send(a, peer, buffer, "busy", "it asked for enough already");
		return;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		repair_refusal_send(a, peer, buffer, "failed", "out of memory");
		return;
	}
	*c = (struct catch_up){.peer = peer, .group = g, .version_id = version_id, .is_dry = is_dry};
	snprintf(c->buffer, sizeof(c->buffer), "%s", buffer);
	list_append(&a->catch_ups, &c->link);
	repair_serve_next(a);
}
