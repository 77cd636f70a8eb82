/*
 * The version is unknown until it exists. So this node signs the digest that it found in its own memory, and asks only
 * nodes that found the same to publish. Sources are never written.
 *
 * Between the decision and the first node that published, the bytes are only in memory that dies with the processes that
 * lend it. If this node ends in that moment, before it has sent COMMIT, all nodes keep the version that they had. Its
 * commit log then holds a number that no node serves, and the next push or average uses the one after.
 */
#include "server/sync/coordinator/collective.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/coordinator/collective_epoch.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/document.h"
#include "server/sync/state/time_limit.h"

static uint64_t collective_time_to_move(const struct agent *a, const struct sync *s)
{
	return time_limit_to_move(a, 2 * s->document->n_bytes, s->max_rate);
}

/* --- Progress for people ------------------------------------------------------------------------ */

void collective_progress(const struct sync *s, const struct member *m, struct progress *ret)
{
	*ret = (struct progress){.done = m->done,
				 .expected = m->expected,
				 .size = collective_of(s)->size,
				 .n_differ = UINT64_MAX};
}

void collective_describe_bytes(const struct agent *a, const struct sync *s, const struct member *m,
			       char *ret, size_t size)
{
	(void)a, (void)s;
	if (m->state == MEMBER_MOVING)
		snprintf(ret, size, " (%ju of %ju MiB)", (uintmax_t)(m->done >> 20),
			 (uintmax_t)(m->expected >> 20));
}

static bool collective_describe_phase(const struct agent *a, const struct sync *s, char *ret,
				      size_t size)
{
	(void)a;
	if (s->phase != PHASE_ATTACH)
		return false;
	snprintf(ret, size, "while this node prepared");
	return true;
}

static void collective_describe_kept(const struct sync *s, char *ret, size_t size)
{
	(void)s;
	snprintf(ret, size, "every node still serves what it had");
}

/* --- The version -------------------------------------------------------------------------------- */

static bool write_document(struct agent *a, struct sync *s)
{
	struct document *d = s->document;
	char why[WHY_SIZE];

	snprintf(d->buffer, sizeof(d->buffer), "%s", s->replica->buffer);
	snprintf(d->publisher, sizeof(d->publisher), "%s", a->config->name);
	d->time_ns = a->env->time_ns(a->userdata);
	memcpy(d->root, s->us->root, 32);
	memcpy(d->leaves, s->us->leaves, 32);
	if (document_sign(a, d, why) == 0 && document_decide(a, d, why) == 0)
		return true;
	sync_fail(a, s, "%s", why);
	return false;
}

/* Durable before anybody is told: the opening of replica.c says why. That this node serves it, its contributor says. */
static bool collective_decide(struct agent *a, struct sync *s)
{
	int r;

	if (!write_document(a, s))
		return false;
	r = replica_commit(a, s->replica, s->document, 0, REPLICA_BEHIND);
	if (r < 0) {
		sync_fail(a, s, "the record of %s could not be written: %s", a->config->name,
			  strerror(-r));
		return false;
	}
	s->decided = true;
	return true;
}

static json_t *collective_commit_fields(const struct sync *s, const struct member *m)
{
	(void)m;
	return document_to_json(s->document);
}

/* Nodes that have to come to the same did so, or are lost. */
static void collective_judge(struct agent *a, struct sync *s)
{
	for (unsigned i = 0; i < s->n_members && collective_of(s)->op->is_version; i++) {
		struct member *m = &s->members[i];

		if (m->state == MEMBER_VERIFIED && (memcmp(m->root, s->us->root, 32) != 0 ||
						    memcmp(m->leaves, s->us->leaves, 32) != 0))
			member_fail(a, s, m, "came to another result than %s", s->us->name);
	}
	if (s->phase == PHASE_VERIFY)
		sync_commit(a, s);
}

/* --- Steps -------------------------------------------------------------------------------------- */

void collective_move(struct agent *a, struct sync *s)
{
	collective_epoch_begin(a, collective_of(s));
}

void collective_step(struct agent *a, struct sync *s)
{
	struct collective *c = collective_of(s);

	switch (s->phase) {
	case PHASE_ATTACH:
		if (s->us->state == MEMBER_READY)
			sync_prepare(a, s);
		break;
	case PHASE_OPEN:
		if (!sync_count(s, MEMBER_OPENING))
			collective_epoch_start(a, c);
		break;
	case PHASE_BYTES:
		if (!sync_count(s, MEMBER_MOVING))
			sync_verify(a, s);
		break;
	case PHASE_STOP:
		if (collective_epoch_is_told(c))
			collective_epoch_settle(a, c);
		break;
	case PHASE_VERIFY:
		if (!sync_count(s, MEMBER_VERIFYING))
			collective_judge(a, s);
		break;
	default:
		break;
	}
}

void collective_on_lost(struct agent *a, struct sync *s, struct member *m, enum member_state was)
{
	(void)was;
	if (m->is_in_epoch)
		collective_epoch_break(a, collective_of(s));
}

/*
 * Without a layout, we say what ours is. Our contributor has deadlines for all that it does, and ends in one of them; how much
 * that is, nobody knows here.
 */
static void collective_begin(struct agent *a, struct sync *s)
{
	s->deadline_ns = s->whole_ns = UINT64_MAX;
	s->us->state = MEMBER_ASKED;
	member_tell(a, s, s->us, s->ops->ask, collective_invitation(a, s));
}

void collective_on_timer(struct agent *a, struct sync *s, uint64_t now)
{
	struct collective *c = collective_of(s);

	switch (s->phase) {
	case PHASE_ATTACH: /* else its deadline is that of the whole */
		if (s->us->state == MEMBER_AWAITED)
			collective_begin(a, s);
		break;
	case PHASE_OPEN:
		sync_lose_all_in(a, s, MEMBER_OPENING, a->config->prepare_ns + a->config->stall_ns);
		break;
	case PHASE_BYTES:
		collective_epoch_on_timer(a, c, now);
		break;
	case PHASE_STOP:
		if (c->stops)
			sync_lose_all_in(a, s, MEMBER_STOPPING, a->config->stall_ns);
		else
			collective_epoch_on_timer(a, c, now);
		break;
	default:
		break;
	}
}

/* --- Messages of nodes -------------------------------------------------------------------------- */

json_t *collective_invitation(const struct agent *a, const struct sync *s)
{
	const struct collective_op *op = collective_of(s)->op;
	const struct document *d = s->document;

	return json_pack("{s:s, s:s*, s:s, s:s, s:I, s:I, s:I, s:b}", "operation", op->name,
			 "engine", op->transport->is_nccl ? op->transport->name : NULL, "group",
			 s->group->name, "buffer", s->replica->buffer, "term",
			 (json_int_t)d->version_id.term, "number", (json_int_t)d->version_id.number,
			 "time_ns", (json_int_t)a->env->time_ns(a->userdata), "dry", s->is_dry);
}

static json_t *collective_ask_fields(const struct agent *a, const struct sync *s)
{
	const struct document *d = s->document;
	json_t *fields = collective_invitation(a, s);
	char hex[65];

	json_object_set_new(fields, "n_bytes", json_integer((json_int_t)d->n_bytes));
	json_object_set_new(fields, "layout_bytes", json_integer((json_int_t)d->layout_bytes));
	json_object_set_new(fields, "layout", json_string(field_hex(d->layout, 32, hex)));
	return fields;
}

void collective_on_begun(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	(void)message;
	if (m->state != MEMBER_ASKED || !m->is_queued) {
		member_is_wrong(a, s, m, "begun");
		return;
	}
	member_begins(a, s, m);
}

/* The others are asked for the layout of this node's version. */
static int take_ours(struct collective *c, const json_t *message)
{
	struct document *d = c->sync.document;

	if (field_number(message, "n_bytes", INT64_MAX / 4, &d->n_bytes) < 0 ||
	    field_number(message, "layout_bytes", INT64_MAX, &d->layout_bytes) < 0 ||
	    field_bytes(message, "layout", d->layout, 32) < 0)
		return -EBADMSG;
	c->size = d->n_bytes;
	return 0;
}

/* Its tensors are others. With our layout, it says how. */
static void collective_on_differs(struct agent *a, struct sync *s, struct member *m,
				  const json_t *message)
{
	const struct document *d = s->document;
	int layout_fd;

	(void)message;
	if (m->state != MEMBER_ASKED || m->is_us || !d->layout_bytes) {
		member_is_wrong(a, s, m, "differs");
		return;
	}
	if (a->hooks->find_layout(a, s->id, &layout_fd) &&
	    a->env->send_blob(a->userdata, m->peer, d->layout, layout_fd, d->layout_bytes) < 0)
		member_fail(a, s, m, "could not be sent the layout: it hung up,");
}

bool collective_take_address(struct agent *a, struct sync *s, struct member *m,
			     const json_t *message)
{
	char why[WHY_SIZE];
	const char *address;

	if (m->state != MEMBER_ASKED || m->is_queued ||
	    field_string(message, "address", sizeof(m->address) - 1, &address) < 0) {
		member_is_wrong(a, s, m, "ready");
		return false;
	}
	/* Otherwise the engines of all others would fail for it. */
	if (!a->env->may_dial(a->userdata, address, m->name, why)) {
		member_fail(a, s, m, "listens where nobody may dial it (%s)", why);
		return false;
	}
	snprintf(m->address, sizeof(m->address), "%s", address);
	return true;
}

static void collective_on_ready(struct agent *a, struct sync *s, struct member *m,
				const json_t *message)
{
	if (!collective_take_address(a, s, m, message))
		return;
	if (m->is_us && take_ours(collective_of(s), message) < 0)
		member_is_wrong(a, s, m, "ready");
	else
		member_set_state(a, s, m, MEMBER_READY);
}

static void collective_on_verified(struct agent *a, struct sync *s, struct member *m,
				   const json_t *message)
{
	if (m->state != MEMBER_VERIFYING || field_bytes(message, "root", m->root, 32) < 0 ||
	    field_bytes(message, "leaves", m->leaves, 32) < 0)
		member_is_wrong(a, s, m, "verified");
	else
		member_set_state(a, s, m, MEMBER_VERIFIED);
}

bool collective_is_moved(const struct member *m)
{
	return m->is_moved;
}

/* --- Life --------------------------------------------------------------------------------------- */

void collective_free(struct agent *a, struct sync *s)
{
	(void)a;
	for (unsigned i = 0; i < s->n_members; i++)
		json_decref(s->members[i].hellos);
	moves_deinit(&collective_of(s)->flows.plan);
	sync_deinit(s);
	free(collective_of(s));
}

static const struct sync_ops COLLECTIVE = {
	.ask = "join",
	.ask_fields = collective_ask_fields,
	.ready = "while the others were waited for",
	.messages = {{"begun", false, collective_on_begun},
		     {"differs", false, collective_on_differs},
		     {"ready", false, collective_on_ready},
		     {"refuse", false, member_on_refuse},
		     {"opened", true, collective_epoch_on_opened},
		     {"progress", true, collective_epoch_on_progress},
		     {"done", true, collective_epoch_on_done},
		     {"broken", true, collective_epoch_on_broken},
		     {"stopped", true, collective_epoch_on_stopped},
		     {"verified", false, collective_on_verified},
		     {NULL}},
	.time_to_move = collective_time_to_move,
	.move = collective_move,
	.step = collective_step,
	.on_timer = collective_on_timer,
	.on_lost = collective_on_lost,
	.decide = collective_decide,
	.commit_fields = collective_commit_fields,
	.end = sync_end,
	.free = collective_free,
	.is_moved = collective_is_moved,
	.progress = collective_progress,
	.describe_bytes = collective_describe_bytes,
	.describe_phase = collective_describe_phase,
	.describe_kept = collective_describe_kept,
};

void collective_add_member(struct agent *a, struct sync *s, const char *name)
{
	struct member *m = &s->members[s->n_members++];

	m->name = name;
	m->is_us = strcmp(name, a->config->name) == 0;
	m->peer = agent_peer_number(a, name);
	s->us = m->is_us ? m : s->us;
}

static int add_members(struct agent *a, struct sync *s, const struct collective_op *op,
		       char why[WHY_SIZE])
{
	for (unsigned i = 0; i < s->group->n_members; i++)
		collective_add_member(a, s, s->group->members[i]);
	s->n_least = 2; /* one alone makes nothing together */
	if (s->us)
		return 0;
	snprintf(why, WHY_SIZE,
		 "%s is no member of the group '%s'; ask for %s on one, which takes part in it",
		 a->config->name, s->group->name, op->an);
	return -EPERM;
}

void collective_arm(struct agent *a, struct sync *s)
{
	sync_set_phase(a, s, PHASE_ATTACH, 0);
	s->whole_ns = s->deadline_ns + time_limit_to_move(a, 0, 0);
	list_append(&a->syncs, &s->link);
}

static int check_size(const struct group *g, const struct collective_op *op, char why[WHY_SIZE])
{
	if (g->n_members >= 2 && g->n_members <= COLLECTIVE_OP_NODES_MAX)
		return 0;
	snprintf(why, WHY_SIZE, "the group '%s' has %u member%s, and %s is of 2 to %u nodes",
		 g->name, g->n_members, g->n_members == 1 ? "" : "s", op->an,
		 COLLECTIVE_OP_NODES_MAX);
	return -EINVAL;
}

int collective_new(struct agent *a, const struct collective_op *op, struct replica *rep,
		   const struct group *g, struct sync **ret, char why[WHY_SIZE])
{
	struct collective *c;
	struct sync *s;
	int r = check_size(g, op, why);

	if (r < 0)
		return r;
	snprintf(why, WHY_SIZE, "out of memory");
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	s = &c->sync;
	c->op = op;
	r = sync_init(a, s, &COLLECTIVE, op->kind, rep, g, g->n_members);
	if (r == 0)
		r = add_members(a, s, op, why);
	if (r == 0 && replica_next(a, rep, g, &s->document->version_id) < 0) {
		snprintf(why, WHY_SIZE, "there are no numbers left after those of %s", rep->buffer);
		r = -EOVERFLOW;
	}
	if (r < 0) {
		collective_free(a, s);
		return r;
	}
	collective_arm(a, s);
	*ret = s;
	return 0;
}
