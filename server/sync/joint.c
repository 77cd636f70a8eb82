/*
 * A joint sync is a phase and a state per part, like a transaction; what moves it is the same: whatever happens changes
 * the state of a part, and step() looks whether the phase is over. Each phase has a deadline, at which those that it
 * waits for are lost, and what a loss means the policy says at once.
 *
 * Nobody knows the version before it is there. So what is signed is what this node found in its own memory, and only
 * nodes that found the same are asked to publish. As for a transaction, decide() is the point of no return: before it
 * nothing has changed anywhere, and sources are never written.
 *
 * Between the decision and the first node that published, the bytes are nowhere but in memory that dies with those who
 * lend it. If this node ends in that moment, before its COMMIT has left, all nodes keep what they had; its record holds
 * a number that nobody serves, and the next push or average takes the one after.
 */
#include "server/sync/joint.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/attempt.h"
#include "server/sync/base/fields.h"
#include "server/sync/group.h"
#include "server/sync/history.h"

static void settle_votes(struct agent *a, struct joint *j);

struct joint *joint_find(struct agent *a, const char *sync)
{
	struct joint *j;

	list_for_each(j, &a->joints, link)
		if (j->phase != PHASE_ENDED && strcmp(j->sync, sync) == 0)
			return j;
	return NULL;
}

struct joint *joint_find_of_buffer(struct agent *a, const char *buffer)
{
	struct joint *j;

	list_for_each(j, &a->joints, link)
		if (j->phase != PHASE_ENDED && strcmp(j->head->buffer, buffer) == 0)
			return j;
	return NULL;
}

uint64_t joint_deadline(const struct joint *j)
{
	if (j->phase == PHASE_ENDED)
		return 0;
	if (j->phase == PHASE_COMMIT)
		return j->deadline_ns;
	return j->deadline_ns < j->whole_ns ? j->deadline_ns : j->whole_ns;
}

static void set_phase(struct agent *a, struct joint *j, enum phase phase, uint64_t wait_ns)
{
	j->phase = phase;
	j->deadline_ns = agent_now(a) + wait_ns;
}

/* Longer than a node waits for its weightd: what it says of that has to arrive, as it knows more. */
static uint64_t time_to_prepare(const struct agent *a, const struct joint *j)
{
	return a->config->stall_ns + agent_time_for(a, 0) + agent_time_for(a, j->document->n_bytes);
}

static uint64_t time_to_verify(const struct agent *a, const struct joint *j)
{
	return agent_time_to_verify(a, j->document->n_bytes) + a->config->stall_ns;
}

static uint64_t time_to_commit(const struct agent *a, const struct joint *j)
{
	return agent_time_for(a, j->document->n_bytes) + a->config->stall_ns;
}

unsigned joint_count(const struct joint *j, enum member_state state)
{
	unsigned n = 0;

	for (unsigned i = 0; i < j->n_parts; i++)
		n += j->parts[i].state == state;
	return n;
}

json_t *joint_about(const struct joint *j, const char *what)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I}", "what", what, "sync", j->sync, "buffer",
			 j->head->buffer, "term", (json_int_t)j->document->pair.term, "number",
			 (json_int_t)j->document->pair.number);
}

/* --- Parts -------------------------------------------------------------------------------------- */

static const char *const STATES[] = {
	[MEMBER_AWAITED] = "prepare",     [MEMBER_ASKED] = "prepare",
	[MEMBER_READY] = "ready",         [MEMBER_OPENING] = "open",
	[MEMBER_OPEN] = "open",           [MEMBER_MOVING] = "bytes",
	[MEMBER_STOPPING] = "bytes",      [MEMBER_VERIFYING] = "verify",
	[MEMBER_VERIFIED] = "verified",   [MEMBER_COMMITTING] = "commit",
	[MEMBER_COMMITTED] = "committed", [MEMBER_FAILED] = "failed",
	[MEMBER_ABSENT] = "absent",       [MEMBER_UNKNOWN] = "unknown",
	[MEMBER_PLANNED] = "planned",
};

const char *part_phase(const struct part *p)
{
	return p->state == MEMBER_READY && p->is_moved ? "moved" : STATES[p->state];
}

static bool is_final(const struct part *p)
{
	return p->state >= MEMBER_COMMITTED;
}

void part_set_state(struct agent *a, struct joint *j, struct part *p, enum member_state state)
{
	p->state = state;
	history_part_event(a, j, p);
}

int part_tell(struct agent *a, struct joint *j, struct part *p, const char *type, json_t *fields)
{
	if (!fields)
		fields = json_object();
	json_object_set_new(fields, "type", json_string(type));
	json_object_set_new(fields, "sync", json_string(j->sync));
	return agent_send(a, p->is_us ? AGENT_SELF : p->peer, fields);
}

/* "while bytes moved (312 of 1024 MiB)" */
static void describe(const struct part *p, char *ret, size_t size)
{
	static const char *const WORDS[] = {
		[MEMBER_AWAITED] = "and could not be asked",
		[MEMBER_ASKED] = "while it prepared",
		[MEMBER_READY] = "while the others were waited for",
		[MEMBER_OPENING] = "while links were opened",
		[MEMBER_OPEN] = "while links were opened",
		[MEMBER_MOVING] = "while bytes moved",
		[MEMBER_STOPPING] = "while bytes moved",
		[MEMBER_VERIFYING] = "while it verified",
		[MEMBER_VERIFIED] = "after it had verified",
		[MEMBER_COMMITTING] = "while it committed",
	};

	if (p->state == MEMBER_MOVING)
		snprintf(ret, size, "%s (%ju of %ju MiB)", WORDS[p->state],
			 (uintmax_t)(p->done >> 20), (uintmax_t)(p->expected >> 20));
	else
		snprintf(ret, size, "%s", WORDS[p->state]);
}

void part_fail(struct agent *a, struct joint *j, struct part *p, const char *format, ...)
{
	char what[3 * WHY_SIZE], where[WHY_SIZE], *why;
	va_list args;

	if (is_final(p) || j->phase == PHASE_ENDED)
		return;
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	describe(p, where, sizeof(where));
	if (asprintf(&why, "%s %s %s", p->name, what, where) >= 0) {
		free(p->why);
		p->why = why;
	}
	if (p->state != MEMBER_AWAITED && p->state != MEMBER_COMMITTING)
		part_tell(a, j, p, "abort", json_pack("{s:s}", "why", p->why ? p->why : what));
	part_set_state(a, j, p,
		       p->state == MEMBER_AWAITED      ? MEMBER_ABSENT
		       : p->state == MEMBER_COMMITTING ? MEMBER_UNKNOWN
						       : MEMBER_FAILED);
	settle_votes(a, j);
	if (j->phase != PHASE_ENDED && p->is_in_epoch)
		attempt_break(a, j);
}

void part_is_wrong(struct agent *a, struct joint *j, struct part *p, const char *type)
{
	if (!p->is_us)
		agent_hang_up(a, p->peer, "%s of sync %s came out of order, or of another form",
			      type, j->sync);
	part_fail(a, j, p, "sent a wrong '%s'", type);
}

/* --- The end ------------------------------------------------------------------------------------ */

static void end(struct agent *a, struct joint *j, bool committed)
{
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		if (is_final(p))
			continue;
		if (p->state != MEMBER_AWAITED)
			part_tell(a, j, p, "abort",
				  json_pack("{s:s, s:b}", "why", j->why ? j->why : "the sync ended",
					    "planned", j->is_planned));
		p->state = j->is_planned                   ? MEMBER_PLANNED
			   : p->state == MEMBER_AWAITED    ? MEMBER_ABSENT
			   : p->state == MEMBER_COMMITTING ? MEMBER_UNKNOWN
							   : MEMBER_FAILED;
	}
	j->ended_in = j->phase;
	j->phase = PHASE_ENDED;
	history_joint_end(a, j, committed);
	a->look_again = true;
}

void joint_end_planned(struct agent *a, struct joint *j)
{
	j->is_planned = true;
	end(a, j, false);
}

/* `cause` says where it happened. */
static void fail_by(struct agent *a, struct joint *j, const char *cause)
{
	char number[24] = "", *why;

	if (j->document->pair.number)
		snprintf(number, sizeof(number), "@%ju", (uintmax_t)j->document->pair.number);
	if (asprintf(&why, "sync %s: %s%s was not committed%s: %s; %s", j->sync, j->head->buffer,
		     number, j->decided ? " everywhere" : "", cause,
		     j->decided ? "whoever missed it will fetch it"
				: "every node still serves what it had") >= 0) {
		free(j->why);
		j->why = why;
	}
	end(a, j, j->decided);
}

void joint_fail(struct agent *a, struct joint *j, const char *format, ...)
{
	static const char *const WORDS[] = {
		[PHASE_ATTACH] = "this node prepared",
		[PHASE_PREPARE] = "members prepared",
		[PHASE_OPEN] = "links were opened",
		[PHASE_BYTES] = "bytes moved",
		[PHASE_STOP] = "an epoch that had broken was stopped",
		[PHASE_VERIFY] = "members verified",
		[PHASE_COMMIT] = "members committed",
	};
	char cause[4 * WHY_SIZE], both[5 * WHY_SIZE];
	va_list args;

	if (j->phase == PHASE_ENDED)
		return;
	va_start(args, format);
	vsnprintf(cause, sizeof(cause), format, args);
	va_end(args);
	snprintf(both, sizeof(both), "%s, while %s", cause, WORDS[j->phase]);
	fail_by(a, j, both);
}

/* --- Policy ------------------------------------------------------------------------------------- */

/* This node's result is what is signed: without it there is none. One alone makes nothing together. */
static bool is_enough(const struct joint *j, unsigned n)
{
	switch (j->policy) {
	case POLICY_ALL:
		return n == j->n_parts;
	case POLICY_QUORUM:
		return 2 * n > j->n_parts && n > 1;
	case POLICY_EACH:
		return n > 1;
	}
	return false;
}

static bool is_lost(const struct part *p)
{
	return p->state == MEMBER_FAILED || p->state == MEMBER_ABSENT;
}

static unsigned n_alive(const struct joint *j)
{
	return j->n_parts - joint_count(j, MEMBER_FAILED) - joint_count(j, MEMBER_ABSENT);
}

/* One was lost: whether the rest is still enough. */
static void settle_votes(struct agent *a, struct joint *j)
{
	char few[5 * WHY_SIZE];
	const char *why = j->us->why;

	if (j->phase == PHASE_ENDED || j->decided || (!is_lost(j->us) && is_enough(j, n_alive(j))))
		return;
	for (unsigned i = 0; i < j->n_parts && !is_lost(j->us); i++)
		if (is_lost(&j->parts[i])) {
			why = j->parts[i].why;
			break;
		}
	why = why ? why : "members were lost";
	snprintf(few, sizeof(few),
		 "%u of %u members are left, which the policy '%s' is not content with: %s",
		 n_alive(j), j->n_parts, policy_name(j->policy), why);
	fail_by(a, j, j->policy != POLICY_ALL && !is_lost(j->us) ? few : why);
}

/* With those that are ready: whoever still waits for its turn is not waited for. */
static bool can_begin(const struct joint *j)
{
	return is_enough(j, joint_count(j, MEMBER_READY));
}

/* --- The version -------------------------------------------------------------------------------- */

static bool write_document(struct agent *a, struct joint *j)
{
	struct document *d = j->document;
	char why[WHY_SIZE];

	snprintf(d->buffer, sizeof(d->buffer), "%s", j->head->buffer);
	snprintf(d->publisher, sizeof(d->publisher), "%s", a->config->name);
	d->time_ns = a->edge->time_ns(a->world);
	memcpy(d->root, j->us->root, 32);
	memcpy(d->leaves, j->us->leaves, 32);
	if (document_sign(a, d, why) == 0 && document_decide(a, d, why) == 0)
		return true;
	joint_fail(a, j, "%s", why);
	return false;
}

/* Durable before anybody is told: the opening of head.c says why. That this node serves it, its share says. */
static bool decide(struct agent *a, struct joint *j)
{
	int r;

	if (!write_document(a, j))
		return false;
	r = head_commit(a, j->head, j->document, 0, HEAD_BEHIND);
	if (r < 0) {
		joint_fail(a, j, "the record of %s could not be written: %s", a->config->name,
			   strerror(-r));
		return false;
	}
	j->decided = true;
	return true;
}

static void commit_all(struct agent *a, struct joint *j)
{
	if (!decide(a, j))
		return;
	set_phase(a, j, PHASE_COMMIT, time_to_commit(a, j));
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		if (p->state != MEMBER_VERIFIED)
			continue;
		part_set_state(a, j, p, MEMBER_COMMITTING);
		part_tell(a, j, p, "commit", document_to_json(j->document));
	}
}

/* Nodes that have to come to the same did so, or are lost. */
static void judge(struct agent *a, struct joint *j)
{
	for (unsigned i = 0; i < j->n_parts && j->operation->are_equal; i++) {
		struct part *p = &j->parts[i];

		if (p->state == MEMBER_VERIFIED && (memcmp(p->root, j->us->root, 32) != 0 ||
						    memcmp(p->leaves, j->us->leaves, 32) != 0))
			part_fail(a, j, p, "came to another result than %s", j->us->name);
	}
	if (j->phase == PHASE_VERIFY)
		commit_all(a, j);
}

static void verify_all(struct agent *a, struct joint *j)
{
	set_phase(a, j, PHASE_VERIFY, time_to_verify(a, j));
	for (unsigned i = 0; i < j->n_parts; i++) {
		struct part *p = &j->parts[i];

		p->is_in_epoch = false;
		if (p->state != MEMBER_READY)
			continue;
		part_set_state(a, j, p, MEMBER_VERIFYING);
		part_tell(a, j, p, "verify", NULL);
	}
}

/* --- Steps -------------------------------------------------------------------------------------- */

static void prepare(struct agent *a, struct joint *j);

static void step(struct agent *a, struct joint *j)
{
	switch (j->phase) {
	case PHASE_ATTACH:
		if (j->us->state == MEMBER_READY)
			prepare(a, j);
		break;
	case PHASE_PREPARE:
		if (joint_count(j, MEMBER_AWAITED) || joint_count(j, MEMBER_ASKED))
			break;
		j->whole_ns = agent_now(a) + /* what waited took none of it */
			      agent_time_to_move(a, 2 * j->document->n_bytes, j->max_rate);
		attempt_begin(a, j);
		break;
	case PHASE_OPEN:
		if (!joint_count(j, MEMBER_OPENING))
			attempt_start(a, j);
		break;
	case PHASE_BYTES:
		if (!joint_count(j, MEMBER_MOVING))
			verify_all(a, j);
		break;
	case PHASE_STOP:
		if (attempt_is_told(j))
			attempt_settle(a, j);
		break;
	case PHASE_VERIFY:
		if (!joint_count(j, MEMBER_VERIFYING))
			judge(a, j);
		break;
	case PHASE_COMMIT:
		if (!joint_count(j, MEMBER_COMMITTING))
			end(a, j, true);
		break;
	case PHASE_DIGEST:
	case PHASE_COMPOSE:
	case PHASE_ENDED:
		break;
	}
}

/* --- What nodes say ----------------------------------------------------------------------------- */

static void on_queued(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	(void)message;
	if (p->state != MEMBER_ASKED)
		part_is_wrong(a, j, p, "queued");
	else
		p->is_queued = true;
}

static void on_begun(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	(void)message;
	if (p->state != MEMBER_ASKED || !p->is_queued) {
		part_is_wrong(a, j, p, "begun");
		return;
	}
	if (!p->had_turn)
		j->deadline_ns = agent_now(a) + time_to_prepare(a, j);
	p->is_queued = false;
	p->had_turn = true;
}

/* What this node has is what the others are asked for. */
static int take_ours(struct joint *j, const json_t *message)
{
	struct document *d = j->document;

	return field_number(message, "n_bytes", INT64_MAX / 4, &d->n_bytes) < 0 ||
			       field_number(message, "layout_bytes", INT64_MAX, &d->layout_bytes) <
				       0 ||
			       field_bytes(message, "layout", d->layout, 32) < 0
		       ? -EBADMSG
		       : 0;
}

static void on_ready(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	char why[WHY_SIZE];
	const char *address;

	if (p->state != MEMBER_ASKED || p->is_queued ||
	    field_string(message, "address", sizeof(p->address) - 1, &address) < 0 ||
	    (p->is_us && take_ours(j, message) < 0)) {
		part_is_wrong(a, j, p, "ready");
		return;
	}
	/* Otherwise the engines of all others would fail for it. */
	if (!a->edge->may_dial(a->world, address, p->name, why)) {
		part_fail(a, j, p, "listens where nobody may dial it (%s)", why);
		return;
	}
	snprintf(p->address, sizeof(p->address), "%s", address);
	part_set_state(a, j, p, MEMBER_READY);
}

static void on_refuse(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	const char *why = "it did not say why";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	if (p->state != MEMBER_ASKED) {
		part_is_wrong(a, j, p, "refuse");
		return;
	}
	if (json_object_get(message, "heads") && !p->is_us)
		head_on_message(a, p->peer, message);
	part_fail(a, j, p, "refused: %s,", why);
}

static void on_verified(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	if (p->state != MEMBER_VERIFYING || field_bytes(message, "root", p->root, 32) < 0 ||
	    field_bytes(message, "leaves", p->leaves, 32) < 0)
		part_is_wrong(a, j, p, "verified");
	else
		part_set_state(a, j, p, MEMBER_VERIFIED);
}

static void on_committed(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	if (p->state != MEMBER_COMMITTING ||
	    field_number(message, "version", INT64_MAX, &p->version) < 0)
		part_is_wrong(a, j, p, "committed");
	else
		part_set_state(a, j, p, MEMBER_COMMITTED);
}

static void on_failed(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	const char *why = "it did not say why";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	part_fail(a, j, p, "failed: %s,", why);
}

static void on_aborted(struct agent *a, struct joint *j, struct part *p, const json_t *message)
{
	(void)message;
	part_fail(a, j, p, "left for another sync");
}

static const struct {
	const char *type;
	bool of_epoch;
	void (*fn)(struct agent *a, struct joint *j, struct part *p, const json_t *message);
} MESSAGES[] = {
	{"progress", true, attempt_on_progress},
	{"queued", false, on_queued},
	{"begun", false, on_begun},
	{"ready", false, on_ready},
	{"refuse", false, on_refuse},
	{"opened", true, attempt_on_opened},
	{"done", true, attempt_on_done},
	{"broken", true, attempt_on_broken},
	{"stopped", true, attempt_on_stopped},
	{"verified", false, on_verified},
	{"committed", false, on_committed},
	{"failed", false, on_failed},
	{"aborted", false, on_aborted},
};

static struct part *find_part(struct joint *j, unsigned peer_or_self)
{
	if (peer_or_self == AGENT_SELF)
		return j->us;
	for (unsigned i = 0; i < j->n_parts; i++)
		if (j->parts[i].peer == peer_or_self)
			return &j->parts[i];
	return NULL;
}

bool joint_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
		      const json_t *message)
{
	struct joint *j = joint_find(a, sync);
	struct part *p = j ? find_part(j, peer) : NULL;
	uint64_t epoch = 0;

	if (!p)
		return false;
	if (is_final(p))
		return true;
	for (unsigned i = 0; i < sizeof(MESSAGES) / sizeof(MESSAGES[0]); i++) {
		if (strcmp(MESSAGES[i].type, type) != 0)
			continue;
		if (MESSAGES[i].of_epoch && field_number(message, "epoch", INT64_MAX, &epoch) < 0)
			part_is_wrong(a, j, p, type);
		else if (!MESSAGES[i].of_epoch || epoch == j->epoch)
			MESSAGES[i].fn(a, j, p, message);
		step(a, j);
		return true;
	}
	return false;
}

/* --- Prepare ------------------------------------------------------------------------------------ */

/* Without a layout, of ours. */
static json_t *invitation(const struct agent *a, const struct joint *j)
{
	const struct document *d = j->document;

	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I}", "operation", j->operation->name, "group",
			 j->group->name, "buffer", j->head->buffer, "term",
			 (json_int_t)d->pair.term, "number", (json_int_t)d->pair.number, "time_ns",
			 (json_int_t)a->edge->time_ns(a->world));
}

static void ask(struct agent *a, struct joint *j, struct part *p)
{
	const struct document *d = j->document;
	json_t *message = invitation(a, j);
	char hex[65];

	json_object_set_new(message, "n_bytes", json_integer((json_int_t)d->n_bytes));
	json_object_set_new(message, "layout_bytes", json_integer((json_int_t)d->layout_bytes));
	json_object_set_new(message, "layout", json_string(field_hex(d->layout, 32, hex)));
	if (part_tell(a, j, p, "join", message) == 0)
		part_set_state(a, j, p, MEMBER_ASKED);
	/* Those who are away are waited for less than those who make room for it. */
	if (!joint_count(j, MEMBER_AWAITED))
		j->deadline_ns = agent_now(a) + time_to_prepare(a, j);
}

/* Who has been down for long already is not waited for again. */
static bool is_waited_for(const struct agent *a, const struct part *p)
{
	const struct peer *peer = p->peer == NO_PEER ? NULL : &a->peers[p->peer];

	return peer && (peer->up || agent_now(a) - peer->since_ns < a->config->prepare_ns);
}

static void prepare(struct agent *a, struct joint *j)
{
	j->whole_ns = agent_now(a) + agent_time_to_move(a, 2 * j->document->n_bytes, j->max_rate);
	set_phase(a, j, PHASE_PREPARE, a->config->prepare_ns);
	for (unsigned i = 0; i < j->n_parts && j->phase == PHASE_PREPARE; i++) {
		struct part *p = &j->parts[i];

		if (p->state == MEMBER_AWAITED && p->peer != NO_PEER && a->peers[p->peer].up)
			ask(a, j, p);
	}
	for (unsigned i = 0; i < j->n_parts && j->phase == PHASE_PREPARE; i++) {
		struct part *p = &j->parts[i];

		if (p->state == MEMBER_AWAITED && !is_waited_for(a, p))
			part_fail(a, j, p, "is not connected");
	}
	if (j->phase == PHASE_PREPARE)
		step(a, j);
}

void joint_on_peer_up(struct agent *a, struct joint *j, unsigned peer)
{
	struct part *p = find_part(j, peer);

	if (j->phase == PHASE_PREPARE && p && p->state == MEMBER_AWAITED)
		ask(a, j, p);
}

void joint_on_peer_down(struct agent *a, struct joint *j, unsigned peer, const char *why)
{
	struct part *p = find_part(j, peer);

	if (j->phase == PHASE_ENDED || !p || p->state == MEMBER_AWAITED)
		return;
	part_fail(a, j, p, "%s", why);
	step(a, j);
}

/* --- Beginning ---------------------------------------------------------------------------------- */

static int add_parts(struct agent *a, struct joint *j, char why[WHY_SIZE])
{
	const struct group *g = j->group;

	if (g->n_members < 2 || g->n_members > OPERATION_NODES_MAX) {
		snprintf(why, WHY_SIZE,
			 "the group '%s' has %u member%s, and an %s is of 2 to %u nodes", g->name,
			 g->n_members, g->n_members == 1 ? "" : "s", j->operation->name,
			 OPERATION_NODES_MAX);
		return -EINVAL;
	}
	j->parts = calloc(g->n_members, sizeof(*j->parts));
	if (!j->parts)
		return -ENOMEM;
	for (unsigned i = 0; i < g->n_members; i++) {
		struct part *p = &j->parts[j->n_parts++];

		p->name = g->members[i];
		p->is_us = strcmp(p->name, a->config->name) == 0;
		p->peer = agent_peer_number(a, p->name);
		j->us = p->is_us ? p : j->us;
	}
	if (j->us)
		return 0;
	snprintf(why, WHY_SIZE,
		 "%s is no member of the group '%s'; ask for an %s on one, which takes part in it",
		 a->config->name, g->name, j->operation->name);
	return -EPERM;
}

int joint_new(struct agent *a, const struct operation *op, struct head *h, const struct group *g,
	      struct joint **ret, char why[WHY_SIZE])
{
	struct joint *j = calloc(1, sizeof(*j));
	int r;

	snprintf(why, WHY_SIZE, "out of memory");
	if (!j)
		return -ENOMEM;
	list_init(&j->link);
	j->operation = op;
	j->head = h;
	j->group = g;
	j->policy = g->policy;
	agent_new_id(a, j->sync);
	j->started_ns = a->edge->time_ns(a->world);
	j->document = calloc(1, sizeof(*j->document));
	r = j->document ? add_parts(a, j, why) : -ENOMEM;
	if (r == 0 && head_next(a, h, g, &j->document->pair) < 0) {
		snprintf(why, WHY_SIZE, "there are no numbers left after those of %s", h->buffer);
		r = -EOVERFLOW;
	}
	if (r < 0) {
		joint_free(a, j);
		return r;
	}
	snprintf(j->document->group, sizeof(j->document->group), "%s", g->name);
	list_append(&a->joints, &j->link);
	j->us->state = MEMBER_ASKED;
	set_phase(a, j, PHASE_ATTACH, time_to_prepare(a, j) + agent_time_to_move(a, 0, 0));
	j->whole_ns = j->deadline_ns;
	part_tell(a, j, j->us, "join", invitation(a, j));
	*ret = j;
	return 0;
}

void joint_free(struct agent *a, struct joint *j)
{
	(void)a;
	for (unsigned i = 0; i < j->n_parts; i++) {
		json_decref(j->parts[i].hellos);
		free(j->parts[i].why);
	}
	free(j->parts);
	document_free(j->document);
	free(j->why);
	list_remove(&j->link);
	free(j);
}

/* --- Deadlines ---------------------------------------------------------------------------------- */

static void lose_all_in(struct agent *a, struct joint *j, enum member_state state, uint64_t wait_ns)
{
	for (unsigned i = 0; i < j->n_parts && j->phase != PHASE_ENDED; i++)
		if (j->parts[i].state == state && !j->parts[i].is_queued)
			part_fail(a, j, &j->parts[i], "did not answer for %ju s",
				  (uintmax_t)(wait_ns / SECOND));
}

static void lose_queued(struct agent *a, struct joint *j)
{
	for (unsigned i = 0; i < j->n_parts && j->phase != PHASE_ENDED; i++)
		if (j->parts[i].state == MEMBER_ASKED && j->parts[i].is_queued)
			part_fail(a, j, &j->parts[i], "was busy with other syncs for too long");
}

static void prepare_is_late(struct agent *a, struct joint *j, uint64_t now)
{
	if (joint_count(j, MEMBER_AWAITED)) {
		j->deadline_ns = now + time_to_prepare(a, j);
		for (unsigned i = 0; i < j->n_parts && j->phase != PHASE_ENDED; i++)
			if (j->parts[i].state == MEMBER_AWAITED)
				part_fail(a, j, &j->parts[i], "is not connected");
		return;
	}
	j->deadline_ns = j->whole_ns; /* of those that are queued and needed */
	lose_all_in(a, j, MEMBER_ASKED, time_to_prepare(a, j));
	if (j->phase == PHASE_PREPARE && can_begin(j))
		lose_queued(a, j);
}

void joint_on_timer(struct agent *a, struct joint *j, uint64_t now)
{
	if (j->phase == PHASE_ENDED || now < joint_deadline(j))
		return;
	if (now >= j->whole_ns && j->phase != PHASE_COMMIT) {
		joint_fail(a, j, "it took longer than it may as a whole%s%s",
			   j->broke_why[0] ? "; an epoch broke before: " : "", j->broke_why);
		return;
	}
	switch (j->phase) {
	case PHASE_PREPARE:
		prepare_is_late(a, j, now);
		break;
	case PHASE_OPEN:
		lose_all_in(a, j, MEMBER_OPENING, a->config->prepare_ns + a->config->stall_ns);
		break;
	case PHASE_BYTES:
		attempt_on_timer(a, j, now);
		break;
	case PHASE_STOP:
		if (j->stops)
			lose_all_in(a, j, MEMBER_STOPPING, a->config->stall_ns);
		else
			attempt_on_timer(a, j, now);
		break;
	case PHASE_VERIFY:
		lose_all_in(a, j, MEMBER_VERIFYING, time_to_verify(a, j));
		break;
	case PHASE_COMMIT:
		lose_all_in(a, j, MEMBER_COMMITTING, time_to_commit(a, j));
		break;
	case PHASE_ATTACH: /* its deadline is that of the whole */
	case PHASE_DIGEST:
	case PHASE_COMPOSE:
	case PHASE_ENDED:
		break;
	}
	step(a, j);
}
