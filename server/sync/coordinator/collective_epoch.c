/*
 * An engine that breaks reports the node that it holds to be the cause: another node, or itself. An engine that only
 * sees a silent neighbour may blame the wrong one. So the coordinator waits for all reports before it stops the engines,
 * unless a node was lost or reported itself, and blames the node that most reports name. Blame costs nothing but the
 * epoch, until a node has broken too many: then it is lost to the sync, and the policy decides what that means.
 *
 * An accusation by one node alone is one word against the other, and counts for both. The node that is in most of these
 * is lost; of two that are in as many, the accuser. So no node can make another one lost by its word alone.
 *
 * Another epoch would repeat a refusal of a node, and a disagreement of two. This node's engine met all others, so its
 * word counts: a node that differs from it is lost at once.
 */
#include "server/sync/coordinator/collective_epoch.h"

#include <stdio.h>
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/traffic_plan.h"
#include "server/sync/state/agent_hooks.h"

#define HELLO_DIGITS_MAX 1024 /* a hello of one engine for one other */
/* 22809 is 2.28.9: for "%u.%u.%u". */
#define NCCL_VERSION_WORDS(n)                                                                      \
	(unsigned)((n) / 10000), (unsigned)((n) / 100 % 100), (unsigned)((n) % 100)

/* Stalls of an engine, and one more: what it says of them has to arrive, too. */
static uint64_t patience(const struct agent *a, const struct collective *c)
{
	return transport_patience(a, c->op->transport) + a->config->stall_ns;
}

/* --- Opening ------------------------------------------------------------------------------------ */

static json_t *take_ranks(struct collective *c)
{
	json_t *nodes = json_array();

	c->n_ranks = 0;
	for (unsigned i = 0; i < c->sync.n_members; i++) {
		struct member *m = &c->sync.members[i];

		m->is_in_epoch = m->state == MEMBER_READY;
		m->is_moved = m->has_told = false;
		m->n_accused = 0;
		m->accuser = NULL;
		m->done = m->rate = m->expected = m->moved_ns = 0;
		json_decref(m->hellos);
		m->hellos = NULL;
		if (!m->is_in_epoch)
			continue;
		m->rank = c->n_ranks++;
		json_array_append_new(nodes, json_pack("{s:s, s:s}", "node", m->name, "address",
						       m->address));
	}
	return nodes;
}

void collective_epoch_begin(struct agent *a, struct collective *c)
{
	cleanup(json_freep) json_t *nodes = NULL;
	uint8_t token[32];
	char hex[65];

	if (c->sync.epoch >= COLLECTIVE_EPOCHS_MAX) {
		sync_fail(a, &c->sync, "%u epochs broke, the last by this: %s",
			  COLLECTIVE_EPOCHS_MAX, c->sync.broke_why);
		return;
	}
	nodes = take_ranks(c);
	a->env->random(a->userdata, token, sizeof(token));
	field_hex(token, sizeof(token), hex);
	c->sync.epoch++;
	a->metrics.n_epochs++;
	c->sync.phase = PHASE_OPEN;
	/* A node has its time for the engine; what it says of that has to arrive, too. */
	c->sync.deadline_ns = agent_now(a) + transport_time_to_open(a, c->op->transport) +
			      a->config->stall_ns;
	for (unsigned i = 0; i < c->sync.n_members; i++) {
		struct member *m = &c->sync.members[i];

		if (!m->is_in_epoch)
			continue;
		member_set_state(a, &c->sync, m, MEMBER_OPENING);
		member_tell(a, &c->sync, m, "open",
			    json_pack("{s:I, s:s, s:O}", "epoch", (json_int_t)c->sync.epoch,
				      "token", hex, "nodes", nodes));
	}
}

/*
 * Over Gloo, each engine has a hello for each other one, but in a reshard for those that it has bytes for, or gets bytes
 * from. Over NCCL, rank 0 makes the id of all.
 */
static bool has_hello(const struct collective *c, unsigned from, unsigned to)
{
	if (c->op->transport->is_nccl)
		return from == 0;
	return c->op->is_version || c->op->bytes(&c->flows, from, to) > 0 ||
	       c->op->bytes(&c->flows, to, from) > 0;
}

/* One for each rank, null where it is its own or has nothing for it. */
static bool are_hellos(const struct collective *c, const struct member *m, const json_t *hellos)
{
	if (json_array_size(hellos) != c->n_ranks)
		return false;
	for (unsigned i = 0; i < c->n_ranks; i++) {
		const json_t *hello = json_array_get(hellos, i);

		if (json_is_null(hello) ? i != m->rank && has_hello(c, m->rank, i)
					: !json_is_string(hello) || i == m->rank ||
						  json_string_length(hello) > HELLO_DIGITS_MAX)
			return false;
	}
	return true;
}

static int read_nccl(const struct collective *c, const json_t *opened, uint64_t *ret)
{
	*ret = 0;
	return c->op->transport->is_nccl ? field_number(opened, "nccl", INT32_MAX, ret) : 0;
}

void collective_epoch_on_opened(struct agent *a, struct sync *s, struct member *m,
				const json_t *message)
{
	struct collective *c = collective_of(s);
	json_t *hellos;

	if (s->phase == PHASE_STOP)
		return; /* it crossed our stop */
	if (m->state != MEMBER_OPENING || field_array(message, "hellos", c->n_ranks, &hellos) < 0 ||
	    !are_hellos(c, m, hellos) ||
	    field_number(message, "expected", INT64_MAX, &m->expected) < 0 ||
	    read_nccl(c, message, &m->nccl) < 0 ||
	    (m->is_us && c->op->read(message, c->n_ranks, &c->flows) < 0)) {
		member_is_wrong(a, s, m, "opened");
		return;
	}
	m->hellos = json_incref(hellos);
	if (m->is_us)
		s->changed = c->op->changed(&c->flows);
	member_set_state(a, s, m, MEMBER_OPEN);
}

/* The hellos of all other engines for this one's. */
static json_t *hellos_for(const struct collective *c, const struct member *m)
{
	json_t *hellos = json_array();

	for (unsigned i = 0; i < c->sync.n_members; i++)
		if (c->sync.members[i].is_in_epoch)
			json_array_append(hellos,
					  json_array_get(c->sync.members[i].hellos, m->rank));
	return hellos;
}

/* Loses a member with another version of NCCL than this node's. */
static bool is_nccl_the_same(struct agent *a, struct collective *c)
{
	const struct member *us = c->sync.us;

	for (unsigned i = 0; i < c->sync.n_members; i++) {
		struct member *m = &c->sync.members[i];

		if (!m->is_in_epoch || m->nccl == us->nccl)
			continue;
		member_fail(a, &c->sync, m,
			    "has NCCL %u.%u.%u and %s %u.%u.%u, and they do not work together "
			    "(install the same on all nodes, or set engine = tcp at the publisher),",
			    NCCL_VERSION_WORDS(m->nccl), us->name, NCCL_VERSION_WORDS(us->nccl));
		return false;
	}
	return true;
}

void collective_epoch_start(struct agent *a, struct collective *c)
{
	if (!is_nccl_the_same(a, c))
		return;
	traffic_plan_tell_collective(a, c);
	if (c->sync.is_dry) {
		sync_end_planned(a, &c->sync);
		return;
	}
	c->sync.phase = PHASE_BYTES;
	c->moved_ns = agent_now(a);
	c->sync.deadline_ns = c->moved_ns + patience(a, c);
	for (unsigned i = 0; i < c->sync.n_members; i++) {
		struct member *m = &c->sync.members[i];

		if (!m->is_in_epoch)
			continue;
		member_set_state(a, &c->sync, m, MEMBER_MOVING);
		member_tell(a, &c->sync, m, "start",
			    json_pack("{s:I, s:o, s:I}", "epoch", (json_int_t)c->sync.epoch, "hellos",
				      hellos_for(c, m), "max_rate", (json_int_t)c->sync.max_rate));
	}
}

void collective_epoch_on_progress(struct agent *a, struct sync *s, struct member *m,
				  const json_t *message)
{
	struct collective *c = collective_of(s);
	uint64_t done, rate;

	if (m->state == MEMBER_STOPPING || s->phase == PHASE_STOP)
		return;
	if (m->state != MEMBER_MOVING || field_number(message, "done", m->expected, &done) < 0 ||
	    field_number(message, "rate", INT64_MAX, &rate) < 0) {
		member_is_wrong(a, s, m, "progress");
		return;
	}
	if (done > m->done)
		m->moved_ns = agent_now(a);
	c->moved_ns = agent_now(a); /* it may digest what it has */
	s->deadline_ns = c->moved_ns + patience(a, c);
	m->done = done;
	m->rate = rate;
	a->hooks->on_member(a, s, m);
}

void collective_epoch_on_done(struct agent *a, struct sync *s, struct member *m,
			      const json_t *message)
{
	struct collective *c = collective_of(s);

	if (m->state == MEMBER_STOPPING)
		return; /* others have not got it all, and it will make it again */
	if (m->state != MEMBER_MOVING) {
		member_is_wrong(a, s, m, "done");
		return;
	}
	m->done = m->expected;
	m->is_moved = m->has_told = true;
	byte_count_add(&s->byte_count, collective_op_planned(c->op, &c->flows, m->rank),
		       json_object_get(message, "in"));
	c->moved_ns = agent_now(a);
	if (s->phase == PHASE_BYTES)
		s->deadline_ns = c->moved_ns + patience(a, c);
	member_set_state(a, s, m, MEMBER_READY);
	if (s->phase == PHASE_STOP)
		collective_epoch_break(a, c); /* it may be the last to be heard */
}

/* --- Breaking ----------------------------------------------------------------------------------- */

static bool is_own_fault(const struct collective *c, const struct member *m)
{
	return m->n_accused >= c->sync.n_members;
}

/* Somebody was lost or owned up, or there is nobody left to hear. */
static bool is_cause_known(const struct collective *c)
{
	bool all = true;

	for (unsigned i = 0; i < c->sync.n_members; i++) {
		const struct member *m = &c->sync.members[i];

		if (!m->is_in_epoch)
			continue;
		if (member_is_lost(m) || is_own_fault(c, m))
			return true;
		all = all && m->has_told;
	}
	return all;
}

static void stop_all(struct agent *a, struct collective *c)
{
	c->stops = true;
	c->sync.deadline_ns = agent_now(a) + a->config->stall_ns;
	for (unsigned i = 0; i < c->sync.n_members; i++) {
		struct member *m = &c->sync.members[i];

		if (!m->is_in_epoch || member_is_lost(m))
			continue;
		m->is_moved = false;
		member_set_state(a, &c->sync, m, MEMBER_STOPPING);
		member_tell(a, &c->sync, m, "stop",
			    json_pack("{s:I}", "epoch", (json_int_t)c->sync.epoch));
	}
}

void collective_epoch_break(struct agent *a, struct collective *c)
{
	if (c->sync.phase == PHASE_OPEN || c->sync.phase == PHASE_BYTES) {
		if (c->sync.phase == PHASE_BYTES)
			byte_count_add_broken(&c->sync.byte_count);
		c->sync.phase = PHASE_STOP;
		c->stops = false;
		c->sync.deadline_ns = agent_now(a) + a->config->stall_ns;
		a->metrics.n_broken++;
	}
	if (c->sync.phase == PHASE_STOP && !c->stops && is_cause_known(c))
		stop_all(a, c);
}

/* This node's engine will say which of two others it is. */
static void settle_difference(struct agent *a, struct collective *c, struct member *m,
			      struct member *who, const char *why)
{
	if (m->is_us)
		member_fail(a, &c->sync, who, "does not fit to %s: %s,", m->name, why);
	else if (who->is_us)
		member_fail(a, &c->sync, m, "does not fit to %s: %s,", who->name, why);
}

void collective_epoch_on_broken(struct agent *a, struct sync *s, struct member *m,
				const json_t *message)
{
	struct collective *c = collective_of(s);
	const char *why = "it did not say why", *name = NULL, *code = "failed";
	struct member *who;

	if (m->state < MEMBER_OPENING || m->state > MEMBER_STOPPING || m->has_told) {
		member_is_wrong(a, s, m, "broken");
		return;
	}
	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string(message, "code", 32, &code);
	(void)field_string_or_null(message, "who", NODE_MAX, &name);
	who = sync_find_member(s, name);
	who = who && who->is_in_epoch && who != m ? who : NULL;
	m->has_told = true;
	if (strcmp(code, "refused") == 0) {
		member_fail(a, s, m, "cannot take part: %s,", why);
		return;
	}
	if (who && strcmp(code, "differs") == 0) {
		settle_difference(a, c, m, who, why);
		return;
	}
	if (who) {
		who->n_accused++;
		who->accuser = m;
	} else {
		m->n_accused = s->n_members;
	}
	if (s->phase != PHASE_STOP || !who)
		snprintf(s->broke_why, sizeof(s->broke_why), "%s: %s", m->name, why);
	collective_epoch_break(a, c);
}

void collective_epoch_on_stopped(struct agent *a, struct sync *s, struct member *m,
				 const json_t *message)
{
	(void)message;
	if (m->state != MEMBER_STOPPING) {
		member_is_wrong(a, s, m, "stopped");
		return;
	}
	member_set_state(a, s, m, MEMBER_READY);
}

bool collective_epoch_is_told(const struct collective *c)
{
	return c->stops && sync_count(&c->sync, MEMBER_STOPPING) == 0;
}

/* NULL: no node was named, or one was lost, which is cause enough. */
static struct member *most_accused(struct collective *c)
{
	struct member *found = NULL;

	for (unsigned i = 0; i < c->sync.n_members; i++) {
		struct member *m = &c->sync.members[i];

		if (!m->is_in_epoch || !m->n_accused)
			continue;
		/* Two that accuse each other, of which one is us: we are needed. */
		if (!found || m->n_accused > found->n_accused ||
		    (m->n_accused == found->n_accused && found->is_us))
			found = m;
	}
	for (unsigned i = 0; i < c->sync.n_members; i++)
		if (c->sync.members[i].is_in_epoch && member_is_lost(&c->sync.members[i]))
			return NULL;
	return found;
}

static void collective_epoch_blame(struct agent *a, struct collective *c, struct member *m)
{
	struct member *by = m->n_accused == 1 && m->accuser && !m->accuser->is_us ? m->accuser
										  : NULL;

	m->n_faults++;
	if (by)
		by->n_faults++;
	if (by && (m->is_us || by->n_faults >= m->n_faults)) {
		if (by->n_faults >= FAULTS_MAX)
			member_fail(a, &c->sync, by,
				    "broke %u epochs, the last by its word alone: %s,",
				    by->n_faults, c->sync.broke_why);
	} else if (m->n_faults >= FAULTS_MAX) {
		member_fail(a, &c->sync, m, "broke %u epochs; the last: %s,", m->n_faults,
			    c->sync.broke_why);
	}
}

void collective_epoch_settle(struct agent *a, struct collective *c)
{
	struct member *m = most_accused(c);

	for (unsigned i = 0; i < c->sync.n_members; i++)
		c->sync.members[i].is_in_epoch = false;
	if (m)
		collective_epoch_blame(a, c, m);
	if (c->sync.phase != PHASE_STOP)
		return;
	agent_log_of(a, sync_about(&c->sync, "broken", NULL), "warning",
		     "sync %s: epoch %ju broke: %s", c->sync.id, (uintmax_t)c->sync.epoch,
		     c->sync.broke_why);
	collective_epoch_begin(a, c);
}

void collective_epoch_on_timer(struct agent *a, struct collective *c, uint64_t now)
{
	if (c->sync.phase == PHASE_BYTES) {
		snprintf(c->sync.broke_why, sizeof(c->sync.broke_why), "no byte moved for %ju s",
			 (uintmax_t)((now - c->moved_ns) / SECOND));
		collective_epoch_break(a, c);
	}
	if (c->sync.phase == PHASE_STOP && !c->stops)
		stop_all(a, c);
}
