/*
 * A sync is a phase and a state per member. Each event changes the state of a member, and sync_step() then checks whether
 * the phase is over. Each phase has a deadline, at which the members that it waits for are lost to the sync: so no member
 * is waited for without a deadline. The policy decides at once what a loss means.
 *
 * The point of no return is the decision: before it, ending the sync leaves every node as it was; after it, the commit log
 * of this node holds the version and nothing takes it back, however long the rest takes. Members that miss COMMIT then
 * are repaired.
 */
#include "server/sync/coordinator/sync.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/utf8.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/state/agent_hooks.h"
#include "server/sync/state/group.h"
#include "server/sync/state/time_limit.h"

static void settle_votes(struct agent *a, struct sync *s);

struct sync *sync_find(struct agent *a, const char *id)
{
	struct sync *s;

	list_for_each(s, &a->syncs, link)
		if (s->phase != PHASE_ENDED && strcmp(s->id, id) == 0)
			return s;
	return NULL;
}

struct sync *sync_find_of_buffer(struct agent *a, const char *buffer)
{
	struct sync *s;

	list_for_each(s, &a->syncs, link)
		if (s->phase != PHASE_ENDED && strcmp(s->replica->buffer, buffer) == 0)
			return s;
	return NULL;
}

/* Before VERIFY: from then on those that verify or commit are what the phase waits for. */
static uint64_t answer_deadline(const struct sync *s)
{
	return s->answer_ns && s->phase < PHASE_VERIFY ? s->answer_ns : UINT64_MAX;
}

static uint64_t earlier(uint64_t x, uint64_t y)
{
	return x < y ? x : y;
}

uint64_t sync_deadline(const struct sync *s)
{
	if (s->phase == PHASE_ENDED)
		return 0;
	if (s->phase == PHASE_COMMIT)
		return s->deadline_ns;
	return earlier(earlier(s->deadline_ns, s->whole_ns), answer_deadline(s));
}

void sync_set_phase(struct agent *a, struct sync *s, enum phase phase, uint64_t wait_ns)
{
	s->phase = phase;
	s->deadline_ns = agent_now(a) + wait_ns;
}

/* A member may have to copy what it gives, beside making room for what it gets. */
uint64_t sync_time_to_prepare(const struct agent *a, const struct sync *s)
{
	return a->config->stall_ns + time_limit_for(a, 0) +
	       2 * time_limit_for(a, s->document->n_bytes) +
	       time_limit_to_send(s->document->companions_bytes);
}

static uint64_t time_to_verify(const struct agent *a, const struct sync *s)
{
	return time_limit_to_verify(a, s->document->n_bytes) + a->config->stall_ns;
}

uint64_t sync_time_to_commit(const struct agent *a, const struct sync *s)
{
	return time_limit_for(a, s->document->n_bytes) + a->config->stall_ns;
}

unsigned sync_count(const struct sync *s, enum member_state state)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->n_members; i++)
		n += s->members[i].state == state;
	return n;
}

struct member *sync_find_member(struct sync *s, const char *name)
{
	for (unsigned i = 0; name && i < s->n_members; i++)
		if (strcmp(s->members[i].name, name) == 0)
			return &s->members[i];
	return NULL;
}

json_t *sync_about(const struct sync *s, const char *what, const char *peer)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:s?}", "what", what, "sync", s->id, "buffer",
			 s->replica->buffer, "term", (json_int_t)s->document->version_id.term,
			 "number", (json_int_t)s->document->version_id.number, "peer", peer);
}

/* --- Members ------------------------------------------------------------------------------------ */

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

const char *member_phase(const struct sync *s, const struct member *m)
{
	return m->state == MEMBER_READY && s->ops->is_moved(m) ? "moved" : STATES[m->state];
}

bool member_is_stale(const struct agent *a, const struct member *m)
{
	return agent_now(a) - m->moved_ns >= SYNC_STALE_NS;
}

uint64_t member_rate(const struct agent *a, const struct member *m)
{
	return m->state == MEMBER_MOVING && !member_is_stale(a, m) ? m->rate : 0;
}

static bool is_final(const struct member *m)
{
	return m->state >= MEMBER_COMMITTED;
}

bool member_is_lost(const struct member *m)
{
	return m->state == MEMBER_FAILED || m->state == MEMBER_ABSENT;
}

void member_set_state(struct agent *a, struct sync *s, struct member *m, enum member_state state)
{
	m->state = state;
	a->hooks->on_member(a, s, m);
}

int member_tell(struct agent *a, struct sync *s, struct member *m, const char *type, json_t *fields)
{
	if (!fields)
		fields = json_object();
	json_object_set_new(fields, "type", json_string(type));
	json_object_set_new(fields, "sync", json_string(s->id));
	return agent_send(a, m->is_us ? AGENT_SELF : m->peer, fields);
}

void member_describe(const struct agent *a, const struct sync *s, const struct member *m, char *ret,
		     size_t size)
{
	static const char *const WORDS[] = {
		[MEMBER_AWAITED] = "and could not be asked",
		[MEMBER_ASKED] = "while it prepared",
		[MEMBER_OPENING] = "while links were opened",
		[MEMBER_OPEN] = "while links were opened",
		[MEMBER_MOVING] = "while bytes moved",
		[MEMBER_STOPPING] = "while bytes moved",
		[MEMBER_VERIFYING] = "while it verified",
		[MEMBER_VERIFIED] = "after it had verified",
		[MEMBER_COMMITTING] = "while it committed",
	};
	char where[WHY_SIZE] = "";

	if (m->state >= MEMBER_OPENING && m->state <= MEMBER_STOPPING)
		s->ops->describe_bytes(a, s, m, where, sizeof(where));
	snprintf(ret, size, "%s%s", m->state == MEMBER_READY ? s->ops->ready : WORDS[m->state],
		 where);
}

/* The final state of a member that is not waited for any more. */
static enum member_state lost_state(const struct member *m)
{
	return m->state == MEMBER_AWAITED      ? MEMBER_ABSENT
	       : m->state == MEMBER_COMMITTING ? MEMBER_UNKNOWN
					       : MEMBER_FAILED;
}

void member_fail(struct agent *a, struct sync *s, struct member *m, const char *format, ...)
{
	char what[3 * WHY_SIZE], where[2 * WHY_SIZE], *why; /* with what somebody else says of it */
	enum member_state was = m->state;
	va_list args;

	if (is_final(m) || s->phase == PHASE_ENDED)
		return;
	va_start(args, format);
	utf8_vformat(what, sizeof(what), format, args);
	va_end(args);
	member_describe(a, s, m, where, sizeof(where));
	if (asprintf(&why, "%s %s %s", m->name, what, where) >= 0) {
		free(m->why);
		m->why = why;
	}
	if (was != MEMBER_AWAITED && was != MEMBER_COMMITTING)
		member_tell(a, s, m, "abort", json_pack("{s:s}", "why", m->why ? m->why : what));
	member_set_state(a, s, m, lost_state(m));
	settle_votes(a, s);
	if (s->phase != PHASE_ENDED)
		s->ops->on_lost(a, s, m, was);
}

void member_is_wrong(struct agent *a, struct sync *s, struct member *m, const char *type)
{
	agent_hang_up(a, m->is_us ? AGENT_SELF : m->peer,
		      "%s of sync %s came out of order, or of another form", type, s->id);
	member_fail(a, s, m, "sent a wrong '%s'", type);
}

/* --- The end ------------------------------------------------------------------------------------ */

/* Sends which members have it; in a repair, the receiver does. */
static void tell_who_has_it(struct agent *a, struct sync *s)
{
	if (s->kind == KIND_PUSH || s->kind == KIND_AVERAGE)
		replica_tell_who_has_it(a, s->replica);
}

void sync_end(struct agent *a, struct sync *s, bool committed)
{
	for (unsigned i = 0; i < s->n_members; i++) {
		struct member *m = &s->members[i];

		if (is_final(m))
			continue;
		if (m->state != MEMBER_AWAITED)
			member_tell(a, s, m, "abort",
				    json_pack("{s:s, s:b}", "why", s->why ? s->why : "the sync ended",
					      "planned", s->is_planned));
		m->state = s->is_planned ? MEMBER_PLANNED : lost_state(m);
	}
	if (s->phase == PHASE_BYTES)
		byte_count_add_broken(&s->byte_count); /* cut short */
	if (committed)
		tell_who_has_it(a, s);
	s->ended_in = s->phase;
	s->phase = PHASE_ENDED;
	a->hooks->on_sync_end(a, s, committed);
	a->look_again = true;
}

void sync_end_planned(struct agent *a, struct sync *s)
{
	s->is_planned = true;
	s->ops->end(a, s, false);
}

/* `cause` says where it happened. */
static void fail_by(struct agent *a, struct sync *s, const char *cause)
{
	bool decided = s->decided && !sync_is_repair(s);
	char version[48] = "", kept[WHY_SIZE] = "whoever missed it will fetch it", *why;

	if (s->document->version_id.number)
		snprintf(version, sizeof(version), " %ju.%ju",
			 (uintmax_t)s->document->version_id.term,
			 (uintmax_t)s->document->version_id.number);
	if (!decided)
		s->ops->describe_kept(s, kept, sizeof(kept));
	if (asprintf(&why, "sync %s: %s%s was not committed%s: %s; %s", s->id, s->replica->buffer,
		     version, decided ? " everywhere" : "", cause, kept) >= 0) {
		free(s->why);
		s->why = why;
	}
	s->ops->end(a, s, s->decided);
}

/* Describes the phase of the sync, as member_describe() that of a member. */
static void describe_phase(const struct agent *a, const struct sync *s, char *ret, size_t size)
{
	static const char *const WORDS[] = {
		[PHASE_PREPARE] = "members prepared",
		[PHASE_OPEN] = "links were opened",
		[PHASE_BYTES] = "bytes moved",
		[PHASE_STOP] = "an epoch that had broken was stopped",
		[PHASE_VERIFY] = "members verified",
		[PHASE_COMMIT] = "members committed",
	};

	if (!s->ops->describe_phase(a, s, ret, size))
		snprintf(ret, size, "while %s", WORDS[s->phase]);
}

void sync_fail(struct agent *a, struct sync *s, const char *format, ...)
{
	char cause[4 * WHY_SIZE], where[2 * WHY_SIZE], both[6 * WHY_SIZE + 2];
	va_list args;

	if (s->phase == PHASE_ENDED)
		return;
	va_start(args, format);
	utf8_vformat(cause, sizeof(cause), format, args);
	va_end(args);
	describe_phase(a, s, where, sizeof(where));
	snprintf(both, sizeof(both), "%s, %s", cause, where);
	fail_by(a, s, both);
}

/* --- Policy ------------------------------------------------------------------------------------- */

/* Members that may still commit, or did. */
static unsigned n_alive(const struct sync *s)
{
	return s->n_members - sync_count(s, MEMBER_FAILED) - sync_count(s, MEMBER_ABSENT);
}

static bool is_enough(const struct sync *s, unsigned n_votes)
{
	unsigned n_all = s->n_members + s->counts_us, n = n_votes + s->counts_us;

	switch (s->policy) {
	case POLICY_ALL:
		return n == n_all;
	case POLICY_QUORUM:
		return 2 * n > n_all;
	case POLICY_EACH:
		return n_votes >= s->n_least;
	}
	return false;
}

/* With those that are ready: whoever still waits for its turn is not waited for. */
static bool can_begin(const struct sync *s)
{
	return sync_is_repair(s) ||
	       is_enough(s, sync_count(s, MEMBER_READY) + sync_count(s, MEMBER_COMMITTED));
}

static const struct member *first_lost(const struct sync *s)
{
	for (unsigned i = 0; i < s->n_members; i++)
		if (member_is_lost(&s->members[i]))
			return &s->members[i];
	return NULL;
}

/* A member was lost: whether the rest is still enough. Where this node is one of them, what it has is signed. */
static void settle_votes(struct agent *a, struct sync *s)
{
	bool are_we_lost = s->us && member_is_lost(s->us);
	const struct member *lost = are_we_lost ? s->us : first_lost(s);
	const char *why = lost && lost->why ? lost->why : "members were lost";
	char few[5 * WHY_SIZE];

	if (s->phase == PHASE_ENDED || s->decided || (!are_we_lost && is_enough(s, n_alive(s))))
		return;
	snprintf(few, sizeof(few),
		 "%u of %u members are left, which the policy '%s' is not content with: %s",
		 n_alive(s) + s->counts_us, s->n_members + s->counts_us, policy_name(s->policy),
		 why);
	fail_by(a, s, s->policy != POLICY_ALL && s->n_members > 1 && !are_we_lost ? few : why);
}

static void expect_answer(struct agent *a, struct sync *s, uint64_t wait_ns)
{
	uint64_t deadline = agent_now(a) + wait_ns;

	s->answer_ns = deadline > s->answer_ns ? deadline : s->answer_ns;
}

static bool commit_verified(struct agent *a, struct sync *s)
{
	if (!s->ops->decide(a, s))
		return false;
	expect_answer(a, s, sync_time_to_commit(a, s));
	for (unsigned i = 0; i < s->n_members; i++) {
		struct member *m = &s->members[i];

		if (m->state != MEMBER_VERIFIED)
			continue;
		member_set_state(a, s, m, MEMBER_COMMITTING);
		member_tell(a, s, m, "commit", s->ops->commit_fields(s, m));
	}
	return true;
}

void sync_vote(struct agent *a, struct sync *s)
{
	unsigned n_votes = sync_count(s, MEMBER_VERIFIED) + sync_count(s, MEMBER_COMMITTING) +
			   sync_count(s, MEMBER_COMMITTED) + sync_count(s, MEMBER_UNKNOWN);

	if (s->decided || is_enough(s, n_votes))
		commit_verified(a, s);
}

void sync_commit(struct agent *a, struct sync *s)
{
	if (!commit_verified(a, s))
		return;
	sync_set_phase(a, s, PHASE_COMMIT, sync_time_to_commit(a, s));
	sync_step(a, s);
}

bool sync_is_only_slow(const struct sync *s)
{
	return s->decided && s->phase < PHASE_VERIFY && !sync_count(s, MEMBER_VERIFYING) &&
	       !sync_count(s, MEMBER_COMMITTING);
}

bool sync_is_late(const struct sync *s, const struct member *m)
{
	return s->decided && m->is_late && !is_final(m);
}

bool sync_is_left_to_late(const struct sync *s)
{
	bool any = false;

	for (unsigned i = 0; i < s->n_members; i++) {
		if (!is_final(&s->members[i]) && !s->members[i].is_late)
			return false;
		any |= sync_is_late(s, &s->members[i]);
	}
	return any && sync_is_only_slow(s);
}

/* --- Steps -------------------------------------------------------------------------------------- */

void member_verify(struct agent *a, struct sync *s, struct member *m)
{
	expect_answer(a, s, time_to_verify(a, s));
	member_set_state(a, s, m, MEMBER_VERIFYING);
	member_tell(a, s, m, "verify", NULL);
}

void sync_verify(struct agent *a, struct sync *s)
{
	sync_set_phase(a, s, PHASE_VERIFY, time_to_verify(a, s));
	for (unsigned i = 0; i < s->n_members; i++)
		if (s->members[i].state == MEMBER_READY)
			member_verify(a, s, &s->members[i]);
	sync_step(a, s);
}

void sync_step(struct agent *a, struct sync *s)
{
	switch (s->phase) {
	case PHASE_PREPARE:
		if (sync_count(s, MEMBER_AWAITED) || sync_count(s, MEMBER_ASKED))
			break;
		s->whole_ns = agent_now(a) + s->ops->time_to_move(a, s); /* waiting took none of it */
		s->ops->move(a, s);
		break;
	case PHASE_COMMIT:
		if (!sync_count(s, MEMBER_COMMITTING))
			s->ops->end(a, s, true);
		break;
	case PHASE_ENDED:
		break;
	default:
		s->ops->step(a, s);
	}
}

/* --- Messages of members ------------------------------------------------------------------------ */

static void sync_on_queued(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	(void)message;
	if (m->state != MEMBER_ASKED)
		member_is_wrong(a, s, m, "queued");
	else
		m->is_queued = true;
}

void member_begins(struct agent *a, struct sync *s, struct member *m)
{
	if (m->is_queued && !m->had_turn) {
		m->had_turn = true;
		if (s->phase == PHASE_PREPARE)
			s->deadline_ns = agent_now(a) + sync_time_to_prepare(a, s);
	}
	m->is_queued = false;
}

void member_on_refuse(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	const char *why = "it did not say why";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	if (m->state != MEMBER_ASKED) {
		member_is_wrong(a, s, m, "refuse");
		return;
	}
	if (json_object_get(message, "heads") && !m->is_us)
		replica_on_message(a, m->peer, message);
	member_fail(a, s, m, "refused: %s,", why);
}

static void sync_on_committed(struct agent *a, struct sync *s, struct member *m,
			      const json_t *message)
{
	if (m->state != MEMBER_COMMITTING ||
	    field_number(message, "version", INT64_MAX, &m->version) < 0) {
		member_is_wrong(a, s, m, "committed");
		return;
	}
	if (!m->is_us && s->kind != KIND_RESHARD)
		replica_note_held(a, m->peer, s->replica, s->group, s->document);
	member_set_state(a, s, m, MEMBER_COMMITTED);
	if (sync_is_only_slow(s) && !s->has_told) {
		s->has_told = true; /* its end may take long */
		tell_who_has_it(a, s);
	}
}

static void sync_on_failed(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	const char *why = "it did not say why";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	member_fail(a, s, m, "failed: %s,", why);
}

static void sync_on_aborted(struct agent *a, struct sync *s, struct member *m, const json_t *message)
{
	(void)message;
	member_fail(a, s, m, "left for another sync");
}

static const struct sync_message MESSAGES[] = {
	{"queued", false, sync_on_queued},
	{"committed", false, sync_on_committed},
	{"failed", false, sync_on_failed},
	{"aborted", false, sync_on_aborted},
};

static const struct sync_message *find_message(const struct sync *s, const char *type)
{
	for (unsigned i = 0; i < ARRAY_LEN(MESSAGES); i++)
		if (strcmp(MESSAGES[i].type, type) == 0)
			return &MESSAGES[i];
	for (const struct sync_message *x = s->ops->messages; x->type; x++)
		if (strcmp(x->type, type) == 0)
			return x;
	return NULL;
}

static struct member *find_member(struct sync *s, unsigned peer_or_self)
{
	if (peer_or_self == AGENT_SELF)
		return s->us;
	for (unsigned i = 0; i < s->n_members; i++)
		if (s->members[i].peer == peer_or_self)
			return &s->members[i];
	return NULL;
}

bool sync_on_message(struct agent *a, unsigned peer, const char *id, const char *type,
		     const json_t *message)
{
	struct sync *s = sync_find(a, id);
	struct member *m = s ? find_member(s, peer) : NULL;
	const struct sync_message *x;
	uint64_t epoch = 0;

	if (!m)
		return false;
	if (is_final(m))
		return true;
	x = find_message(s, type);
	if (!x)
		return false;
	if (x->of_epoch && field_number(message, "epoch", INT64_MAX, &epoch) < 0)
		member_is_wrong(a, s, m, type);
	else if (!x->of_epoch || epoch == s->epoch)
		x->fn(a, s, m, message);
	sync_step(a, s);
	return true;
}

/* --- Prepare ------------------------------------------------------------------------------------ */

/* The wait for members that are not connected is shorter than for those that make room for the version. */
static void give_time(struct agent *a, struct sync *s)
{
	if (!sync_count(s, MEMBER_AWAITED))
		s->deadline_ns = agent_now(a) + sync_time_to_prepare(a, s);
}

/* Steals `fields`. */
static void sync_ask(struct agent *a, struct sync *s, struct member *m, json_t *fields)
{
	if (member_tell(a, s, m, s->ops->ask, fields) == 0)
		member_set_state(a, s, m, MEMBER_ASKED);
	give_time(a, s);
}

/* A peer that has been down for long is not waited for again. */
static bool is_waited_for(const struct agent *a, const struct member *m)
{
	const struct peer *p = m->peer == NO_PEER ? NULL : &a->peers[m->peer];

	return p && (p->up || agent_now(a) - p->since_ns < a->config->prepare_ns);
}

void sync_prepare(struct agent *a, struct sync *s)
{
	cleanup(json_freep) json_t *fields = s->ops->ask_fields(a, s);

	s->whole_ns = agent_now(a) + s->ops->time_to_move(a, s);
	sync_set_phase(a, s, PHASE_PREPARE, a->config->prepare_ns);
	for (unsigned i = 0; i < s->n_members && s->phase == PHASE_PREPARE; i++) {
		struct member *m = &s->members[i];

		if (m->state == MEMBER_AWAITED && m->peer != NO_PEER && a->peers[m->peer].up)
			sync_ask(a, s, m, json_incref(fields));
	}
	for (unsigned i = 0; i < s->n_members && s->phase == PHASE_PREPARE; i++) {
		struct member *m = &s->members[i];

		if (m->state == MEMBER_AWAITED && !is_waited_for(a, m))
			member_fail(a, s, m, "is not connected");
	}
	give_time(a, s);
	sync_step(a, s);
}

void sync_on_peer_up(struct agent *a, struct sync *s, unsigned peer)
{
	struct member *m = find_member(s, peer);

	if (s->phase == PHASE_PREPARE && m && m->state == MEMBER_AWAITED)
		sync_ask(a, s, m, s->ops->ask_fields(a, s));
}

void sync_on_peer_down(struct agent *a, struct sync *s, unsigned peer, const char *why)
{
	struct member *m = find_member(s, peer);

	if (s->phase == PHASE_ENDED || !m || m->state == MEMBER_AWAITED)
		return;
	member_fail(a, s, m, "%s", why);
	sync_step(a, s);
}

/* --- Life --------------------------------------------------------------------------------------- */

int sync_init(struct agent *a, struct sync *s, const struct sync_ops *ops, enum sync_kind kind,
	      struct replica *rep, const struct group *g, unsigned n_members)
{
	list_init(&s->link);
	s->ops = ops;
	s->kind = kind;
	s->replica = rep;
	s->group = g;
	s->policy = kind == KIND_REPAIR ? POLICY_ALL : g->policy;
	s->changed = UINT64_MAX;
	agent_new_id(a, s->id);
	s->started_ns = a->env->time_ns(a->userdata);
	s->members = calloc(n_members + 1, sizeof(*s->members));
	s->document = calloc(1, sizeof(*s->document));
	if (!s->members || !s->document)
		return -ENOMEM;
	snprintf(s->document->group, sizeof(s->document->group), "%s", g->name);
	return 0;
}

void sync_deinit(struct sync *s)
{
	for (unsigned i = 0; i < s->n_members; i++)
		free(s->members[i].why);
	free(s->members);
	document_free(s->document);
	free(s->why);
	list_remove(&s->link);
}

/* --- Deadlines ---------------------------------------------------------------------------------- */

void sync_lose_all_in(struct agent *a, struct sync *s, enum member_state state, uint64_t wait_ns)
{
	for (unsigned i = 0; i < s->n_members && s->phase != PHASE_ENDED; i++)
		if (s->members[i].state == state && !s->members[i].is_queued)
			member_fail(a, s, &s->members[i], "did not answer for %ju s",
				    (uintmax_t)(wait_ns / SECOND));
}

static void lose_queued(struct agent *a, struct sync *s)
{
	for (unsigned i = 0; i < s->n_members && s->phase != PHASE_ENDED; i++)
		if (s->members[i].state == MEMBER_ASKED && s->members[i].is_queued)
			member_fail(a, s, &s->members[i], "was busy with other syncs for too long");
}

static void prepare_is_late(struct agent *a, struct sync *s, uint64_t now)
{
	if (sync_count(s, MEMBER_AWAITED)) {
		s->deadline_ns = now + sync_time_to_prepare(a, s);
		for (unsigned i = 0; i < s->n_members && s->phase != PHASE_ENDED; i++)
			if (s->members[i].state == MEMBER_AWAITED)
				member_fail(a, s, &s->members[i], "is not connected");
		return;
	}
	s->deadline_ns = s->whole_ns; /* the limit for needed members that are queued */
	sync_lose_all_in(a, s, MEMBER_ASKED, sync_time_to_prepare(a, s));
	if (s->phase == PHASE_PREPARE && can_begin(s))
		lose_queued(a, s);
}

static void answer_is_late(struct agent *a, struct sync *s)
{
	s->answer_ns = 0;
	sync_lose_all_in(a, s, MEMBER_VERIFYING, time_to_verify(a, s));
	sync_lose_all_in(a, s, MEMBER_COMMITTING, sync_time_to_commit(a, s));
	sync_step(a, s);
}

static void whole_is_late(struct agent *a, struct sync *s)
{
	if (!s->ops->on_late || !s->ops->on_late(a, s))
		sync_fail(a, s, "it took longer than it may as a whole%s%s",
			  s->broke_why[0] ? "; an epoch broke before: " : "", s->broke_why);
	else
		sync_step(a, s);
}

void sync_on_timer(struct agent *a, struct sync *s, uint64_t now)
{
	if (s->phase == PHASE_ENDED || now < sync_deadline(s))
		return;
	if (now >= s->whole_ns && s->phase != PHASE_COMMIT) {
		whole_is_late(a, s);
		return;
	}
	if (now >= answer_deadline(s)) {
		answer_is_late(a, s);
		return;
	}
	switch (s->phase) {
	case PHASE_PREPARE:
		prepare_is_late(a, s, now);
		break;
	case PHASE_VERIFY:
		sync_lose_all_in(a, s, MEMBER_VERIFYING, time_to_verify(a, s));
		break;
	case PHASE_COMMIT:
		sync_lose_all_in(a, s, MEMBER_COMMITTING, sync_time_to_commit(a, s));
		break;
	default:
		s->ops->on_timer(a, s, now);
	}
	sync_step(a, s);
}
