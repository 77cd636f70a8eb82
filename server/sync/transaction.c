/*
 * A transaction is a phase and a state per member. Whatever happens changes the state of a member, and
 * transaction_step() looks whether the phase is over: nobody is waited for who has no deadline, as each phase
 * has one, at which those that it waits for are lost to the sync. What a loss means, the policy says, at once.
 *
 * The point of no return is decide(): before it, ending the sync leaves every node as it was; after it, the
 * record of this node holds the version and nothing takes it back. Members that miss COMMIT then are repaired.
 */
#include "server/sync/transaction.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/sync/base/fields.h"
#include "server/sync/delta.h"
#include "server/sync/epoch.h"
#include "server/sync/group.h"
#include "server/sync/history.h"
#include "server/sync/lender.h"
#include "server/sync/repair.h"

static void settle_votes(struct agent *a, struct transaction *t);

struct transaction *transaction_find(struct agent *a, const char *sync)
{
	struct transaction *t;

	list_for_each(t, &a->transactions, link)
		if (t->phase != PHASE_ENDED && strcmp(t->sync, sync) == 0)
			return t;
	return NULL;
}

struct transaction *transaction_find_of_buffer(struct agent *a, const char *buffer)
{
	struct transaction *t;

	list_for_each(t, &a->transactions, link)
		if (t->phase != PHASE_ENDED && strcmp(t->head->buffer, buffer) == 0)
			return t;
	return NULL;
}

uint64_t transaction_deadline(const struct transaction *t)
{
	if (t->phase == PHASE_ENDED)
		return 0;
	return t->deadline_ns < t->whole_ns ? t->deadline_ns : t->whole_ns;
}

void transaction_set_phase(struct agent *a, struct transaction *t, enum phase phase,
			   uint64_t wait_ns)
{
	t->phase = phase;
	t->deadline_ns = agent_now(a) + wait_ns;
}

/* Longer than a member waits for its weightd: what it says of that has to arrive, as it knows more. */
static uint64_t time_to_answer(const struct agent *a, const struct transaction *t)
{
	return agent_time_for(a, t->document->n_bytes) + a->config->stall_ns;
}

static uint64_t time_to_verify(const struct agent *a, const struct transaction *t)
{
	return agent_time_to_verify(a, t->document->n_bytes) + a->config->stall_ns;
}

/* By the slowest that was ever measured. */
static uint64_t time_to_move(const struct agent *a, const struct transaction *t)
{
	uint64_t rate = t->max_rate;

	for (unsigned i = 0; i < t->n_members; i++) {
		const struct member *m = &t->members[i];
		uint64_t measured = m->peer == NO_PEER ? 0 : a->peers[m->peer].rate;

		if (measured && (!rate || measured < rate))
			rate = measured;
	}
	return agent_time_to_move(a, t->document->n_bytes, rate);
}

json_t *transaction_about(const struct transaction *t, const char *what, const char *peer)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:s?}", "what", what, "sync", t->sync, "buffer",
			 t->head->buffer, "term", (json_int_t)t->document->pair.term, "number",
			 (json_int_t)t->document->pair.number, "peer", peer);
}

unsigned transaction_count(const struct transaction *t, enum member_state state)
{
	unsigned n = 0;

	for (unsigned i = 0; i < t->n_members; i++)
		n += t->members[i].state == state;
	return n;
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

const char *member_phase(const struct member *m)
{
	return m->state == MEMBER_READY && m->missing.n == 0 ? "moved" : STATES[m->state];
}

bool member_is_final(const struct member *m)
{
	return m->state >= MEMBER_COMMITTED;
}

void member_set_state(struct agent *a, struct transaction *t, struct member *m,
		      enum member_state state)
{
	m->state = state;
	history_member_event(a, t, m);
}

int member_tell(struct agent *a, struct transaction *t, struct member *m, const char *type,
		json_t *fields)
{
	if (!fields)
		fields = json_object();
	json_object_set_new(fields, "type", json_string(type));
	json_object_set_new(fields, "sync", json_string(t->sync));
	return agent_send(a, m->peer, fields);
}

static const char *doing(const struct member *m)
{
	static const char *const WORDS[] = {
		[MEMBER_AWAITED] = "and could not be asked",
		[MEMBER_ASKED] = "while it prepared",
		[MEMBER_READY] = "while bytes moved",
		[MEMBER_OPENING] = "while links were opened",
		[MEMBER_OPEN] = "while links were opened",
		[MEMBER_MOVING] = "while bytes moved",
		[MEMBER_STOPPING] = "while bytes moved",
		[MEMBER_VERIFYING] = "while it verified",
		[MEMBER_VERIFIED] = "after it had verified",
		[MEMBER_COMMITTING] = "while it committed",
		[MEMBER_UNKNOWN] = "",
	};

	return WORDS[m->state];
}

static const char *from_name(const struct agent *a, const struct transaction *t,
			     const struct member *m)
{
	const struct member *from = epoch_before(t, m);

	return from ? from->name : a->config->name;
}

/* "while bytes moved (a -> b, 312 of 1024 MiB)" */
static void describe(const struct agent *a, const struct transaction *t, const struct member *m,
		     char *ret, size_t size)
{
	if (m->state < MEMBER_OPENING || m->state > MEMBER_STOPPING)
		snprintf(ret, size, "%s", doing(m));
	else
		snprintf(ret, size, "%s (%s -> %s, %ju of %ju MiB)", doing(m), from_name(a, t, m),
			 m->name, (uintmax_t)(m->done >> 20), (uintmax_t)(t->expected >> 20));
}

/* The first that has not got what the one before it has: where the bytes hang. NULL: they do not. */
static const struct member *held_up(const struct transaction *t)
{
	uint64_t could = t->expected;

	for (const struct member *m = t->first; m; could = m->done, m = m->next)
		if (m->state == MEMBER_MOVING && m->done < could)
			return m;
	return NULL;
}

/* What the sync did, as describe() says of a member. */
static void describe_phase(const struct agent *a, const struct transaction *t, char *ret,
			   size_t size)
{
	static const char *const WORDS[] = {
		[PHASE_ATTACH] = "attached it",
		[PHASE_DIGEST] = "digested it",
		[PHASE_PREPARE] = "members prepared",
		[PHASE_COMPOSE] = "a patch was composed",
		[PHASE_OPEN] = "links were opened",
		[PHASE_BYTES] = "bytes moved",
		[PHASE_STOP] = "an epoch that had broken was stopped",
		[PHASE_VERIFY] = "members verified",
		[PHASE_COMMIT] = "members committed",
	};
	const struct member *m = t->phase == PHASE_BYTES ? held_up(t) : NULL;

	if (m)
		describe(a, t, m, ret, size);
	else if (t->phase <= PHASE_DIGEST)
		snprintf(ret, size, "while %s %s", a->config->name, WORDS[t->phase]);
	else
		snprintf(ret, size, "while %s", WORDS[t->phase]);
}

void member_fail(struct agent *a, struct transaction *t, struct member *m, const char *format, ...)
{
	bool in_epoch = m->state >= MEMBER_OPENING && m->state <= MEMBER_STOPPING;
	char what[2 * WHY_SIZE], where[WHY_SIZE], *why; /* with what somebody else says of it */
	va_list args;

	if (member_is_final(m) || t->phase == PHASE_ENDED)
		return;
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	describe(a, t, m, where, sizeof(where));
	if (asprintf(&why, "%s %s %s", m->name, what, where) >= 0) {
		free(m->why);
		m->why = why;
	}
	if (m->state != MEMBER_AWAITED && m->state != MEMBER_COMMITTING)
		member_tell(a, t, m, "abort", json_pack("{s:s}", "why", m->why ? m->why : what));
	member_set_state(a, t, m,
			 m->state == MEMBER_AWAITED      ? MEMBER_ABSENT
			 : m->state == MEMBER_COMMITTING ? MEMBER_UNKNOWN
							 : MEMBER_FAILED);
	settle_votes(a, t);
	if (t->phase != PHASE_ENDED && in_epoch)
		epoch_stop(a, t);
}

void member_is_wrong(struct agent *a, struct transaction *t, struct member *m, const char *type)
{
	agent_hang_up(a, m->peer, "%s of sync %s came out of order, or of another form", type,
		      t->sync);
	member_fail(a, t, m, "sent a wrong '%s'", type);
}

/* --- The end ------------------------------------------------------------------------------------ */

static void end(struct agent *a, struct transaction *t, bool committed)
{
	/* Who asked for this repair and has heard nothing of it yet would wait for it, and ask nobody else. */
	if (t->is_repair && t->members[0].state == MEMBER_AWAITED)
		repair_refuse(a, t->members[0].peer, t->head->buffer, "busy",
			      "it ended before it began");
	for (unsigned i = 0; i < t->n_members; i++) {
		struct member *m = &t->members[i];

		if (member_is_final(m))
			continue;
		if (m->state != MEMBER_AWAITED)
			member_tell(a, t, m, "abort",
				    json_pack("{s:s, s:b}", "why", t->why ? t->why : "the sync ended",
					      "planned", t->is_planned));
		m->state = t->is_planned                   ? MEMBER_PLANNED
			   : m->state == MEMBER_AWAITED    ? MEMBER_ABSENT
			   : m->state == MEMBER_COMMITTING ? MEMBER_UNKNOWN
							   : MEMBER_FAILED;
	}
	work_end(a, &t->engine);
	if (committed && !t->is_repair && t->loan)
		lender_keep(a, t);
	lender_end(a, t);
	t->ended_in = t->phase;
	t->phase = PHASE_ENDED;
	history_transaction_end(a, t, committed);
	a->look_again = true;
	if (committed && !t->is_repair)
		head_tell_all(a, t->head);
}

static void describe_kept(const struct transaction *t, char *ret, size_t size)
{
	if (t->decided && !t->is_repair)
		snprintf(ret, size, "whoever missed it will fetch it");
	else if (t->is_repair)
		snprintf(ret, size, "%s serves what it had, and will ask again", t->members[0].name);
	else if (t->before.number)
		snprintf(ret, size, "every node still serves %s@%ju", t->head->buffer,
			 (uintmax_t)t->before.number);
	else
		snprintf(ret, size, "no node serves any version of it");
}

/* `cause` says where it happened. */
static void fail_by(struct agent *a, struct transaction *t, const char *cause)
{
	char number[24] = "", kept[WHY_SIZE], *why;

	if (t->document->pair.number)
		snprintf(number, sizeof(number), "@%ju", (uintmax_t)t->document->pair.number);
	describe_kept(t, kept, sizeof(kept));
	if (asprintf(&why, "sync %s: %s%s was not committed%s: %s; %s", t->sync, t->head->buffer,
		     number, t->decided && !t->is_repair ? " everywhere" : "", cause, kept) >= 0) {
		free(t->why);
		t->why = why;
	}
	end(a, t, t->decided);
}

void transaction_fail(struct agent *a, struct transaction *t, const char *format, ...)
{
	char cause[4 * WHY_SIZE], where[WHY_SIZE], both[5 * WHY_SIZE + 2];
	va_list args;

	if (t->phase == PHASE_ENDED)
		return;
	va_start(args, format);
	vsnprintf(cause, sizeof(cause), format, args);
	va_end(args);
	describe_phase(a, t, where, sizeof(where));
	snprintf(both, sizeof(both), "%s, %s", cause, where);
	fail_by(a, t, both);
}

/* --- Policy ------------------------------------------------------------------------------------- */

/* Members that may still commit, or did. */
static unsigned n_alive(const struct transaction *t)
{
	unsigned n = t->n_members;

	n -= transaction_count(t, MEMBER_FAILED) + transaction_count(t, MEMBER_ABSENT);
	return n;
}

static bool is_enough(const struct transaction *t, unsigned n_votes)
{
	unsigned n_all = t->n_members + t->counts_us, n = n_votes + t->counts_us;

	switch (t->policy) {
	case POLICY_ALL:
		return n == n_all;
	case POLICY_QUORUM:
		return 2 * n > n_all;
	case POLICY_EACH:
		return n_votes > 0 || t->n_members == 0;
	}
	return false;
}

/* With those that are ready: whoever still waits for its turn is not waited for. */
static bool can_begin(const struct transaction *t)
{
	return t->is_repair || is_enough(t, transaction_count(t, MEMBER_READY) +
						    transaction_count(t, MEMBER_COMMITTED));
}

/* A member was lost: whether the rest is still enough. */
static void settle_votes(struct agent *a, struct transaction *t)
{
	char few[5 * WHY_SIZE] = "";
	const char *why = NULL;

	if (t->phase == PHASE_ENDED || t->decided || is_enough(t, n_alive(t)))
		return;
	for (unsigned i = 0; i < t->n_members && !why; i++)
		if (t->members[i].state == MEMBER_FAILED || t->members[i].state == MEMBER_ABSENT)
			why = t->members[i].why;
	why = why ? why : "members were lost";
	if (t->policy != POLICY_ALL && t->n_members > 1)
		snprintf(few, sizeof(few),
			 "%u of %u members are left, which the policy '%s' is not content with: %s",
			 n_alive(t) + t->counts_us, t->n_members + t->counts_us,
			 policy_name(t->policy), why);
	fail_by(a, t, few[0] ? few : why);
}

/* For whoever comes back with an older version, now or at a later push. */
static void keep_patches(struct transaction *t)
{
	if (!t->delta.patches.n)
		return;
	patches_deinit(&t->head->patches);
	(void)patches_copy(&t->delta.patches, &t->head->patches); /* without them leaves travel */
}

/* Durable before anybody is told: the opening of head.c says why. */
static bool decide(struct agent *a, struct transaction *t)
{
	char why[WHY_SIZE];
	int r;

	if (t->is_repair)
		t->decided = true; /* by its publisher, when it was pushed */
	if (t->decided)
		return true;
	if (document_decide(a, t->document, why) < 0) {
		transaction_fail(a, t, "%s", why);
		return false;
	}
	r = head_commit(a, t->head, t->document, t->version,
			t->is_gone ? HEAD_SUPERSEDED : HEAD_SERVING);
	if (r < 0) {
		transaction_fail(a, t, "the record of %s could not be written: %s", a->config->name,
				 strerror(-r));
		return false;
	}
	t->decided = true;
	head_set_base(t->head, t->version, t->document->n_bytes, t->document->root, t->leaves_fd);
	keep_patches(t);
	return true;
}

static void commit(struct agent *a, struct transaction *t, struct member *m)
{
	member_set_state(a, t, m, MEMBER_COMMITTING);
	member_tell(a, t, m, "commit", json_pack("{s:s}", "decision", t->document->decision));
}

static void commit_all(struct agent *a, struct transaction *t)
{
	if (!decide(a, t))
		return;
	transaction_set_phase(a, t, PHASE_COMMIT, time_to_answer(a, t));
	for (unsigned i = 0; i < t->n_members; i++)
		if (t->members[i].state == MEMBER_VERIFIED)
			commit(a, t, &t->members[i]);
	transaction_step(a, t);
}

/* --- Steps -------------------------------------------------------------------------------------- */

static void verify_all(struct agent *a, struct transaction *t)
{
	transaction_set_phase(a, t, PHASE_VERIFY, time_to_verify(a, t));
	for (unsigned i = 0; i < t->n_members; i++) {
		struct member *m = &t->members[i];

		if (m->state != MEMBER_READY)
			continue;
		member_set_state(a, t, m, MEMBER_VERIFYING);
		member_tell(a, t, m, "verify", NULL);
	}
	transaction_step(a, t);
}

/* All that can be known before bytes move is known; nobody keeps anything. */
static void plan(struct agent *a, struct transaction *t)
{
	if (epoch_plan(a, t) < 0)
		return;
	t->is_planned = true;
	end(a, t, false);
}

static void move_or_verify(struct agent *a, struct transaction *t)
{
	if (t->is_dry) {
		plan(a, t);
		return;
	}
	if (epoch_begin(a, t) == 0)
		verify_all(a, t);
}

/* With `each`, nobody waits for others. */
static void on_vote(struct agent *a, struct transaction *t, struct member *m)
{
	if (t->policy == POLICY_EACH && decide(a, t))
		commit(a, t, m);
}

static void blame_first_corrupt(struct agent *a, struct transaction *t);

void transaction_step(struct agent *a, struct transaction *t)
{
	switch (t->phase) {
	case PHASE_PREPARE:
		if (transaction_count(t, MEMBER_AWAITED) || transaction_count(t, MEMBER_ASKED))
			break;
		t->whole_ns = agent_now(a) + time_to_move(a, t); /* what waited took none of it */
		if (delta_begin(a, t))
			transaction_set_phase(a, t, PHASE_COMPOSE, time_to_answer(a, t));
		else
			move_or_verify(a, t);
		break;
	case PHASE_COMPOSE:
		if (!t->delta.is_composing)
			move_or_verify(a, t);
		break;
	case PHASE_OPEN:
		if (t->engine_is_open && !transaction_count(t, MEMBER_OPENING))
			epoch_start(a, t);
		break;
	case PHASE_BYTES:
		if (t->engine_is_done && !transaction_count(t, MEMBER_MOVING))
			move_or_verify(a, t);
		break;
	case PHASE_STOP:
		if (!transaction_count(t, MEMBER_STOPPING))
			move_or_verify(a, t);
		break;
	case PHASE_VERIFY:
		if (transaction_count(t, MEMBER_VERIFYING))
			break;
		if (transaction_count(t, MEMBER_READY))
			blame_first_corrupt(a, t);
		if (t->phase == PHASE_VERIFY && transaction_count(t, MEMBER_READY))
			move_or_verify(a, t);
		else if (t->phase == PHASE_VERIFY)
			commit_all(a, t);
		break;
	case PHASE_COMMIT:
		if (!transaction_count(t, MEMBER_COMMITTING))
			end(a, t, true);
		break;
	case PHASE_ATTACH:
	case PHASE_DIGEST:
	case PHASE_ENDED:
		break;
	}
}

/* --- What members say --------------------------------------------------------------------------- */

static void send_blobs(struct agent *a, struct transaction *t, struct member *m,
		       const json_t *wanted)
{
	const struct document *d = t->document;
	const json_t *row;
	int r = 0;
	size_t i;

	json_array_foreach(wanted, i, row)
	{
		const char *hex = json_string_value(row);
		char layout[65], leaves[65];

		if (hex && strcmp(hex, field_hex(d->layout, 32, layout)) == 0)
			r = a->edge->send_blob(a->world, m->peer, d->layout, t->layout_fd,
					       d->layout_bytes);
		else if (hex && strcmp(hex, field_hex(d->leaves, 32, leaves)) == 0)
			r = a->edge->send_blob(a->world, m->peer, d->leaves, t->leaves_fd,
					       document_leaves_bytes(d));
		if (r < 0) {
			member_fail(a, t, m, "could not be sent the layout: %s,", strerror(-r));
			return;
		}
	}
}

static void on_queued(struct agent *a, struct transaction *t, struct member *m,
		      const json_t *message)
{
	(void)message;
	if (m->state != MEMBER_ASKED)
		member_is_wrong(a, t, m, "queued");
	else
		m->is_queued = true;
}

static void on_want(struct agent *a, struct transaction *t, struct member *m, const json_t *message)
{
	json_t *blobs;

	if (m->state != MEMBER_ASKED || field_array(message, "blobs", 2, &blobs) < 0)
		member_is_wrong(a, t, m, "want");
	else
		send_blobs(a, t, m, blobs);
	if (m->is_queued && t->phase == PHASE_PREPARE && !m->had_turn) {
		m->had_turn = true;
		t->deadline_ns = agent_now(a) + a->config->prepare_ns +
				 agent_time_for(a, t->document->n_bytes);
	}
	m->is_queued = false;
}

static void on_ready(struct agent *a, struct transaction *t, struct member *m, const json_t *message)
{
	uint64_t n_ways;
	uint8_t root[32];

	if (m->state != MEMBER_ASKED || m->is_queued ||
	    field_number_or(message, "n_addresses", STRIPES_MAX, 1, &n_ways) < 0 || !n_ways ||
	    ranges_from_json(json_object_get(message, "missing"), t->document->n_bytes,
			     &m->missing) < 0) {
		member_is_wrong(a, t, m, "ready");
		return;
	}
	m->n_ways = (unsigned)n_ways;
	if (field_bytes(message, "base", root, sizeof(root)) == 0)
		m->base = patches_find(&t->delta.patches, root);
	member_set_state(a, t, m, MEMBER_READY);
}

static void on_refuse(struct agent *a, struct transaction *t, struct member *m,
		      const json_t *message)
{
	const char *code = "", *why = "it did not say why";

	(void)field_string(message, "code", 32, &code);
	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	if (m->state != MEMBER_ASKED) {
		member_is_wrong(a, t, m, "refuse");
		return;
	}
	if (json_object_get(message, "heads"))
		head_on_message(a, m->peer, message);
	if (strcmp(code, "there") == 0)
		member_set_state(a, t, m, MEMBER_COMMITTED);
	else
		member_fail(a, t, m, "refused: %s,", why);
}

static void on_verified(struct agent *a, struct transaction *t, struct member *m,
			const json_t *message)
{
	uint8_t root[32];

	if (m->state != MEMBER_VERIFYING || field_bytes(message, "root", root, 32) < 0 ||
	    memcmp(root, t->document->root, 32) != 0) {
		member_is_wrong(a, t, m, "verified");
		return;
	}
	member_set_state(a, t, m, MEMBER_VERIFIED);
	on_vote(a, t, m);
}

static void on_corrupt(struct agent *a, struct transaction *t, struct member *m,
		       const json_t *message)
{
	struct ranges ranges;

	ranges_init(&ranges);
	if (m->state != MEMBER_VERIFYING ||
	    ranges_from_json(json_object_get(message, "ranges"), t->document->n_bytes, &ranges) < 0 ||
	    !ranges.n) {
		ranges_deinit(&ranges);
		member_is_wrong(a, t, m, "corrupt");
		return;
	}
	ranges_deinit(&m->missing);
	m->missing = ranges;
	agent_log_of(a, transaction_about(t, "corrupt", m->name), "warning",
		     "sync %s: %ju bytes at %s are not those that were signed", t->sync,
		     (uintmax_t)ranges_total(&ranges), m->name);
	member_set_state(a, t, m, MEMBER_READY);
}

/*
 * Those behind it in the chain got their bytes from the first that found other ones, which says nothing of
 * them: next time it stands behind all of them.
 */
static void blame_first_corrupt(struct agent *a, struct transaction *t)
{
	struct member *m = t->first;

	while (m && (m->state != MEMBER_READY || !m->missing.n))
		m = m->next;
	if (!m || ++m->n_corrupt < CORRUPT_MAX)
		return;
	m->state = MEMBER_VERIFYING; /* where it showed, for the sentence */
	member_fail(a, t, m, "got other bytes than were signed %u times, the last from %s,",
		    CORRUPT_MAX, from_name(a, t, m));
}

static void on_committed(struct agent *a, struct transaction *t, struct member *m,
			 const json_t *message)
{
	if (m->state != MEMBER_COMMITTING ||
	    field_number(message, "version", INT64_MAX, &m->version) < 0)
		member_is_wrong(a, t, m, "committed");
	else
		member_set_state(a, t, m, MEMBER_COMMITTED);
}

static void on_failed(struct agent *a, struct transaction *t, struct member *m,
		      const json_t *message)
{
	const char *why = "it did not say why";

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	member_fail(a, t, m, "failed: %s,", why);
}

static void on_aborted(struct agent *a, struct transaction *t, struct member *m,
		       const json_t *message)
{
	(void)message;
	member_fail(a, t, m, "left for another sync");
}

static const struct {
	const char *type;
	bool of_epoch;
	void (*fn)(struct agent *a, struct transaction *t, struct member *m, const json_t *message);
} MESSAGES[] = {
	{"progress", true, epoch_on_progress},
	{"queued", false, on_queued},
	{"want", false, on_want},
	{"ready", false, on_ready},
	{"refuse", false, on_refuse},
	{"opened", true, epoch_on_opened},
	{"done", true, epoch_on_done},
	{"broken", true, epoch_on_broken},
	{"stopped", true, epoch_on_stopped},
	{"verified", false, on_verified},
	{"corrupt", false, on_corrupt},
	{"committed", false, on_committed},
	{"failed", false, on_failed},
	{"aborted", false, on_aborted},
};

static struct member *find_member(struct transaction *t, unsigned peer)
{
	for (unsigned i = 0; i < t->n_members; i++)
		if (t->members[i].peer == peer)
			return &t->members[i];
	return NULL;
}

bool transaction_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
			    const json_t *message)
{
	struct transaction *t = transaction_find(a, sync);
	struct member *m = t ? find_member(t, peer) : NULL;
	uint64_t epoch = 0;

	if (!m)
		return false;
	if (member_is_final(m))
		return true;
	for (unsigned i = 0; i < sizeof(MESSAGES) / sizeof(MESSAGES[0]); i++) {
		if (strcmp(MESSAGES[i].type, type) != 0)
			continue;
		if (MESSAGES[i].of_epoch && field_number(message, "epoch", INT64_MAX, &epoch) < 0)
			member_is_wrong(a, t, m, type);
		else if (!MESSAGES[i].of_epoch || epoch == t->epoch)
			MESSAGES[i].fn(a, t, m, message);
		transaction_step(a, t);
		return true;
	}
	return false;
}

/* --- Prepare ------------------------------------------------------------------------------------ */

static void ask(struct agent *a, struct transaction *t, struct member *m, json_t *message)
{
	if (agent_send(a, m->peer, message) == 0)
		member_set_state(a, t, m, MEMBER_ASKED);
	/* Those who are away are waited for less than those who make room for it. */
	if (!transaction_count(t, MEMBER_AWAITED))
		t->deadline_ns = agent_now(a) + a->config->prepare_ns +
				 agent_time_for(a, t->document->n_bytes);
}

static json_t *prepare_message(struct transaction *t)
{
	json_t *message = document_to_json(t->document);

	json_object_set_new(message, "type", json_string("prepare"));
	json_object_set_new(message, "sync", json_string(t->sync));
	json_object_set_new(message, "group", json_string(t->group->name));
	return message;
}

/* Who has been down for long already is not waited for again. */
static bool is_waited_for(const struct agent *a, const struct member *m)
{
	const struct peer *p = m->peer == NO_PEER ? NULL : &a->peers[m->peer];

	return p && (p->up || agent_now(a) - p->since_ns < a->config->prepare_ns);
}

void transaction_prepare(struct agent *a, struct transaction *t)
{
	cleanup(json_freep) json_t *message = prepare_message(t);

	t->whole_ns = agent_now(a) + time_to_move(a, t);
	transaction_set_phase(a, t, PHASE_PREPARE, a->config->prepare_ns);
	for (unsigned i = 0; i < t->n_members && t->phase == PHASE_PREPARE; i++) {
		struct member *m = &t->members[i];

		if (m->peer != NO_PEER && a->peers[m->peer].up)
			ask(a, t, m, json_incref(message));
	}
	for (unsigned i = 0; i < t->n_members && t->phase == PHASE_PREPARE; i++) {
		struct member *m = &t->members[i];

		if (m->state == MEMBER_AWAITED && !is_waited_for(a, m))
			member_fail(a, t, m, "is not connected");
	}
	transaction_step(a, t);
}

void transaction_on_peer_up(struct agent *a, struct transaction *t, unsigned peer)
{
	struct member *m = find_member(t, peer);

	if (t->phase == PHASE_PREPARE && m && m->state == MEMBER_AWAITED)
		ask(a, t, m, prepare_message(t));
}

void transaction_on_peer_down(struct agent *a, struct transaction *t, unsigned peer, const char *why)
{
	struct member *m = find_member(t, peer);

	if (t->phase == PHASE_ENDED || !m || m->state == MEMBER_AWAITED)
		return;
	member_fail(a, t, m, "%s", why);
	transaction_step(a, t);
}

/* --- Beginning ---------------------------------------------------------------------------------- */

static int add_members(struct agent *a, struct transaction *t, unsigned repair_of)
{
	const struct group *g = t->group;

	t->members = calloc(t->is_repair ? 1 : g->n_members + 1, sizeof(*t->members));
	if (!t->members)
		return -ENOMEM;
	if (t->is_repair) {
		t->members[0].peer = repair_of;
		t->members[0].name = agent_peer_name(a, repair_of);
		t->n_members = 1;
		return 0;
	}
	for (unsigned i = 0; i < g->n_members; i++) {
		struct member *m = &t->members[t->n_members];

		if (strcmp(g->members[i], a->config->name) == 0) {
			t->counts_us = true;
			continue;
		}
		m->peer = agent_peer_number(a, g->members[i]);
		m->name = g->members[i];
		t->n_members++;
	}
	return 0;
}

int transaction_new(struct agent *a, struct head *h, const struct group *g, unsigned repair_of,
		    uint64_t version, struct transaction **ret, char why[WHY_SIZE])
{
	struct transaction *t = calloc(1, sizeof(*t));
	int r;

	snprintf(why, WHY_SIZE, "out of memory");
	if (!t)
		return -ENOMEM;
	t->delta.fd = -1;
	list_init(&t->link);
	t->is_repair = repair_of != NO_PEER;
	t->head = h;
	t->group = g;
	t->policy = t->is_repair ? POLICY_ALL : g->policy;
	t->before = head_committed(h);
	t->layout_fd = t->data_fd = t->leaves_fd = -1;
	t->changed = UINT64_MAX;
	ranges_init(&t->ranges);
	agent_new_id(a, t->sync);
	t->started_ns = a->edge->time_ns(a->world);
	t->document = calloc(1, sizeof(*t->document));
	if (t->document)
		snprintf(t->document->group, sizeof(t->document->group), "%s", g->name);
	r = t->document ? add_members(a, t, repair_of) : -ENOMEM;
	for (unsigned i = 0; i < t->n_members; i++) {
		ranges_init(&t->members[i].missing);
		ranges_init(&t->members[i].patch_missing);
		t->members[i].base = PATCHES_MAX;
	}
	if (r == 0)
		r = lender_start(a, t, version, why);
	if (r < 0) {
		transaction_free(a, t);
		return r;
	}
	list_append(&a->transactions, &t->link);
	*ret = t;
	return 0;
}

void transaction_free(struct agent *a, struct transaction *t)
{
	work_end(a, &t->engine);
	lender_end(a, t);
	delta_deinit(&t->delta);
	for (unsigned i = 0; i < t->n_members; i++) {
		ranges_deinit(&t->members[i].missing);
		ranges_deinit(&t->members[i].patch_missing);
		free(t->members[i].why);
	}
	free(t->members);
	if (t->layout_fd >= 0)
		close(t->layout_fd);
	if (t->data_fd >= 0)
		close(t->data_fd);
	if (t->leaves_fd >= 0)
		close(t->leaves_fd);
	ranges_deinit(&t->ranges);
	document_free(t->document);
	free(t->why);
	list_remove(&t->link);
	free(t);
}

/* --- Deadlines ---------------------------------------------------------------------------------- */

static void lose_all_in(struct agent *a, struct transaction *t, enum member_state state,
			uint64_t wait_ns)
{
	for (unsigned i = 0; i < t->n_members && t->phase != PHASE_ENDED; i++)
		if (t->members[i].state == state && !t->members[i].is_queued)
			member_fail(a, t, &t->members[i], "did not answer for %ju s",
				    (uintmax_t)(wait_ns / SECOND));
}

static void lose_queued(struct agent *a, struct transaction *t)
{
	for (unsigned i = 0; i < t->n_members && t->phase != PHASE_ENDED; i++)
		if (t->members[i].state == MEMBER_ASKED && t->members[i].is_queued)
			member_fail(a, t, &t->members[i], "was busy with other syncs for too long");
}

static void lose_absent(struct agent *a, struct transaction *t)
{
	for (unsigned i = 0; i < t->n_members && t->phase != PHASE_ENDED; i++)
		if (t->members[i].state == MEMBER_AWAITED)
			member_fail(a, t, &t->members[i], "is not connected");
}

void transaction_on_timer(struct agent *a, struct transaction *t, uint64_t now)
{
	const struct agent_config *c = a->config;
	uint64_t for_bytes = time_to_answer(a, t);
	const struct member *m;

	if (t->phase == PHASE_ENDED || now < transaction_deadline(t))
		return;
	if (now >= t->whole_ns && t->phase > PHASE_DIGEST && t->phase != PHASE_COMMIT) {
		transaction_fail(a, t, "it took longer than it may as a whole%s%s",
				 t->broke_why[0] ? "; an epoch broke before: " : "", t->broke_why);
		return;
	}
	switch (t->phase) {
	case PHASE_ATTACH:
	case PHASE_DIGEST:
		lender_failed(a, t, "the local weightd did not answer in time");
		break;
	case PHASE_PREPARE:
		if (transaction_count(t, MEMBER_AWAITED)) {
			lose_absent(a, t);
			t->deadline_ns = now + for_bytes;
		} else {
			t->deadline_ns = t->whole_ns; /* of those that are queued and needed */
			lose_all_in(a, t, MEMBER_ASKED, c->prepare_ns + for_bytes);
			if (t->phase == PHASE_PREPARE && can_begin(t))
				lose_queued(a, t);
		}
		break;
	case PHASE_COMPOSE:
		delta_give_up(t);
		break;
	case PHASE_OPEN:
		lose_all_in(a, t, MEMBER_OPENING, c->prepare_ns + c->stall_ns);
		if (t->phase == PHASE_OPEN && !t->engine_is_open) {
			snprintf(t->broke_why, sizeof(t->broke_why),
				 "the engine of %s did not open", c->name);
			epoch_stop(a, t);
		}
		break;
	case PHASE_BYTES:
		m = held_up(t);
		snprintf(t->broke_why, sizeof(t->broke_why), "no byte moved for %ju s%s%s%s%s%s",
			 (uintmax_t)(3 * c->stall_ns / SECOND), m ? " (" : "",
			 m ? from_name(a, t, m) : "", m ? " -> " : "", m ? m->name : "",
			 m ? ")" : "");
		epoch_stop(a, t);
		break;
	case PHASE_STOP:
		lose_all_in(a, t, MEMBER_STOPPING, c->stall_ns);
		break;
	case PHASE_VERIFY:
		lose_all_in(a, t, MEMBER_VERIFYING, time_to_verify(a, t));
		break;
	case PHASE_COMMIT:
		lose_all_in(a, t, MEMBER_COMMITTING, for_bytes);
		break;
	case PHASE_ENDED:
		break;
	}
	transaction_step(a, t);
}
