/*
 * All that people see of a sync is made here from its state, when they ask. What ended is kept as it was then:
 * a row of each of the last syncs, and the rows of the nodes of the youngest.
 */
#include "server/sync/history.h"

#include <stdio.h>
#include <string.h>

#include "server/sync/agent.h"
#include "server/sync/state/ended_syncs.h"
#include "server/sync/state/patch_chain.h"

#define LATE "it is slow, and still gets it"

struct about {
	const char *sync;
	enum sync_kind kind;
	const char *buffer;
	const char *group;
	struct version_id version_id;
	uint64_t n_bytes; /* 0: unknown yet */
	const char *role;
	uint64_t changed;
	uint64_t patch; /* bytes of the patch; 0: there is none */
	uint64_t n_differ; /* bytes of elements that it changes; UINT64_MAX: not known here */
	uint64_t done; /* this and the next two: of the node that the row is about */
	uint64_t expected;
	uint64_t epoch;
	const char *ended_in; /* a phase; NULL: it goes on */
};

static struct about about_sync(const struct sync *s, const struct progress *p)
{
	const struct document *d = s->document;

	return (struct about){.sync = s->id,
			      .kind = s->kind,
			      .buffer = s->replica->buffer,
			      .group = d->group,
			      .version_id = d->version_id,
			      .n_bytes = p->size,
			      .role = "publisher",
			      .changed = s->changed,
			      .patch = p->patch,
			      .n_differ = p->n_differ,
			      .done = p->done,
			      .expected = p->expected,
			      .epoch = s->epoch};
}

static struct about about_participant(const struct participant *p)
{
	return (struct about){.sync = p->sync,
			      .kind = p->kind,
			      .buffer = p->replica->buffer,
			      .group = p->group,
			      .version_id = p->version_id,
			      .n_bytes = p->n_bytes,
			      .role = "member",
			      .changed = p->changed,
			      .patch = p->patch_size,
			      .n_differ = UINT64_MAX,
			      .done = p->done,
			      .expected = p->expected,
			      .epoch = p->epoch};
}

static json_t *number_or_null(uint64_t n, bool is_known)
{
	return is_known ? json_integer((json_int_t)n) : json_null();
}

/* Size of the version, bytes of it that had to travel, and how they did: where that is known. */
static json_t *row_of(const struct about *x)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:o, s:o, s:s?, s:o, s:o}", "sync",
			 x->sync, "kind", metrics_kind(x->kind), "buffer", x->buffer, "group",
			 x->group, "term", (json_int_t)x->version_id.term, "number",
			 (json_int_t)x->version_id.number, "role", x->role, "size",
			 number_or_null(x->n_bytes, x->n_bytes), "changed",
			 number_or_null(x->changed, x->changed != UINT64_MAX), "by",
			 x->kind == KIND_AVERAGE || x->kind == KIND_RESHARD
				 ? NULL
				 : patch_chain_way(x->patch, x->changed, x->n_bytes),
			 "patch", number_or_null(x->patch, x->patch), "differ",
			 number_or_null(x->n_differ, x->n_differ != UINT64_MAX));
}

static void set_number(json_t *row, const char *key, uint64_t n)
{
	json_object_set_new(row, key, json_integer((json_int_t)n));
}

static void set_text(json_t *row, const char *key, const char *s)
{
	json_object_set_new(row, key, s && s[0] ? json_string(s) : json_null());
}

/* --- Rows --------------------------------------------------------------------------------------- */

static json_t *node_row(const struct about *x, const char *node, const char *phase, uint64_t rate,
			const char *why)
{
	json_t *row = row_of(x);

	set_text(row, "node", node);
	set_text(row, "phase", phase);
	set_number(row, "done", x->done);
	set_number(row, "expected", x->expected);
	set_number(row, "rate", rate);
	set_number(row, "epoch", x->epoch);
	set_text(row, "why", why);
	return row;
}

static void set_way(json_t *row, const char *from, bool is_slow)
{
	set_text(row, "from", from);
	json_object_set_new(row, "slow", json_boolean(is_slow));
}

/* Without its way, which costs a walk. */
static json_t *member_row(const struct agent *a, const struct sync *s, const struct member *m)
{
	struct progress p;
	struct about x;

	s->ops->progress(s, m, &p);
	x = about_sync(s, &p);
	return node_row(&x, m->name, member_phase(s, m), member_rate(a, m), m->why);
}

static const char *const OUR_PHASES[] = {
	[PHASE_ATTACH] = "attach",   [PHASE_DIGEST] = "attach",   [PHASE_PREPARE] = "prepare",
	[PHASE_COMPOSE] = "prepare", [PHASE_OPEN] = "open",       [PHASE_BYTES] = "bytes",
	[PHASE_STOP] = "bytes",      [PHASE_VERIFY] = "verified", [PHASE_COMMIT] = "commit",
	[PHASE_ENDED] = "failed",
};

static const char *our_phase(const struct sync *s)
{
	if (s->is_planned)
		return "planned";
	return s->phase == PHASE_ENDED && s->decided ? "committed" : OUR_PHASES[s->phase];
}

/* The row of this node, if it is no member. */
static json_t *our_row(const struct agent *a, const struct sync *s)
{
	struct progress p;
	struct about x;
	json_t *row;

	s->ops->progress(s, NULL, &p);
	x = about_sync(s, &p);
	row = node_row(&x, a->config->name, our_phase(s), 0, s->why);
	set_way(row, NULL, false);
	return row;
}

static void append_sync(const struct agent *a, const struct sync *s, json_t *rows)
{
	if (!s->us)
		json_array_append_new(rows, our_row(a, s));
	for (unsigned i = 0; i < s->n_members; i++) {
		const struct member *m = &s->members[i];
		json_t *row = member_row(a, s, m);

		set_way(row, s->ops->from ? s->ops->from(a, s, m) : NULL,
			s->ops->is_slow && s->ops->is_slow(a, s, m));
		json_array_append_new(rows, row);
	}
}

static json_t *participant_row(const struct agent *a, const struct participant *p)
{
	bool moves = p->state == PARTICIPANT_MOVING && agent_now(a) - p->reported_ns < SYNC_STALE_NS;
	struct about x = about_participant(p);
	json_t *row = node_row(&x, a->config->name, participant_phase(p), moves ? p->rate : 0,
			       p->why);

	set_way(row, p->from, false);
	return row;
}

/* In syncs of its own, this node has a row as a member already. */
static bool is_told_of(const struct participant *p)
{
	return p->coordinator == AGENT_SELF;
}

json_t *agent_status(const struct agent *a, const char *sync)
{
	json_t *rows = json_array(), *entry;
	struct sync *s;
	struct participant *p;
	size_t i;

	json_array_foreach(a->history, i, entry)
	{
		const char *id = json_string_value(
			json_object_get(json_object_get(entry, "row"), "sync"));

		if (!sync || strcmp(sync, id) == 0)
			json_array_extend(rows, json_object_get(entry, "nodes"));
	}
	list_for_each(s, &a->syncs, link)
		if (s->phase != PHASE_ENDED && (!sync || strcmp(sync, s->id) == 0))
			append_sync(a, s, rows);
	list_for_each(p, &a->participants, link)
		if (p->state != PARTICIPANT_ENDED && !is_told_of(p) &&
		    (!sync || strcmp(sync, p->sync) == 0))
			json_array_append_new(rows, participant_row(a, p));
	return rows;
}

json_t *agent_history(const struct agent *a, unsigned n)
{
	json_t *rows = json_array();
	size_t size = json_array_size(a->history);

	for (size_t i = 0; i < size && i < n; i++)
		json_array_append(rows,
				  json_object_get(json_array_get(a->history, size - 1 - i), "row"));
	return rows;
}

/* --- Events ------------------------------------------------------------------------------------- */

void history_member_event(struct agent *a, const struct sync *s, const struct member *m)
{
	json_t *event = member_row(a, s, m);

	json_object_set_new(event, "event", json_string("phase"));
	agent_event(a, event);
}

/* The pull that waits for it has an id of its own: it is older. */
static void set_pull(json_t *event, const struct participant *p)
{
	if (participant_is_repair(p) && replica_is_pulled_from(p->replica, p->coordinator))
		set_text(event, "pull", p->replica->pull.id);
}

void history_participant_event(struct agent *a, const struct participant *p)
{
	json_t *event;

	if (is_told_of(p))
		return;
	event = participant_row(a, p);
	set_pull(event, p);
	json_object_set_new(event, "event", json_string("phase"));
	agent_event(a, event);
}

/* Steals all three. */
static void history_remember(struct agent *a, json_t *row, json_t *rows, json_t *event)
{
	ended_syncs_add(a, row, rows);
	replicas_save_later(a);
	json_object_set_new(event, "event", json_string("end"));
	agent_event(a, event);
}

static json_t *ended_row(struct agent *a, const struct about *x, const char *state,
			 uint64_t started_ns, const struct byte_count *byte_count, const char *why)
{
	json_t *row = row_of(x);

	set_number(row, "started_ns", started_ns);
	set_number(row, "ended_ns", a->env->time_ns(a->userdata));
	set_text(row, "state", state);
	byte_count_show(byte_count, row);
	set_text(row, "phase", strcmp(state, "failed") == 0 ? x->ended_in : NULL);
	set_text(row, "why", why);
	return row;
}

static json_t *outcome_row(const char *node, const char *state, uint64_t version, const char *why)
{
	json_t *row = json_object();

	set_text(row, "node", node);
	set_text(row, "state", state);
	json_object_set_new(row, "version",
			    version ? json_integer((json_int_t)version) : json_null());
	set_text(row, "why", why);
	return row;
}

/* An event is the row with the outcome of every node. */
static json_t *end_event(json_t *row, json_t *nodes, const char *state, const char *why)
{
	json_t *event = json_copy(row);

	json_object_set_new(event, "nodes", nodes);
	if (strcmp(state, "failed") == 0)
		set_text(event, "error", why);
	return event;
}

static json_t *outcome_rows(const struct agent *a, const struct sync *s, const char *state)
{
	json_t *nodes = json_array();

	if (!s->us)
		json_array_append_new(nodes, outcome_row(a->config->name, state,
							 s->decided ? s->version : 0, NULL));
	for (unsigned i = 0; i < s->n_members; i++) {
		const struct member *m = &s->members[i];

		json_array_append_new(nodes, outcome_row(m->name, member_phase(s, m), m->version,
							 sync_is_late(s, m) ? LATE : m->why));
	}
	return nodes;
}

void history_sync_left(struct agent *a, struct sync *s)
{
	static const struct byte_count UNKNOWN = {.planned = BYTE_COUNT_UNKNOWN,
						  .payload = BYTE_COUNT_UNKNOWN,
						  .bytes = BYTE_COUNT_UNKNOWN,
						  .kernel = BYTE_COUNT_UNKNOWN};
	char why[64];
	unsigned n = 0;
	json_t *row, *event;
	struct progress p;
	struct about x;

	for (unsigned i = 0; i < s->n_members; i++)
		n += sync_is_late(s, &s->members[i]);
	snprintf(why, sizeof(why), "%u of %u members %s slow, and still get%s it", n, s->n_members,
		 n == 1 ? "is" : "are", n == 1 ? "s" : "");
	s->is_left = true;
	s->ops->progress(s, s->us, &p);
	x = about_sync(s, &p);
	row = ended_row(a, &x, "committed", s->started_ns, &UNKNOWN, why);
	event = end_event(row, outcome_rows(a, s, "committed"), "committed", NULL);
	json_decref(row);
	json_object_set_new(event, "event", json_string("left"));
	agent_event(a, event);
}

void history_sync_end(struct agent *a, const struct sync *s, bool committed)
{
	const char *state = s->is_planned ? "planned" : committed ? "committed" : "failed";
	json_t *rows = json_array(), *row, *event;
	struct progress p;
	struct about x;

	s->ops->progress(s, s->us, &p);
	x = about_sync(s, &p);
	x.ended_in = s->ended_in == PHASE_VERIFY ? "verify" : OUR_PHASES[s->ended_in];
	row = ended_row(a, &x, state, s->started_ns, &s->byte_count, s->why);
	metrics_on_end(a, ROLE_PUBLISHER, x.kind, state);
	event = end_event(row, outcome_rows(a, s, state), state, s->why);
	set_number(row, "nodes", s->n_members + !s->us);
	append_sync(a, s, rows);
	history_remember(a, row, rows, event);
}

void history_participant_end(struct agent *a, const struct participant *p)
{
	struct about x = about_participant(p);
	json_t *row, *event;

	if (is_told_of(p))
		return;
	x.ended_in = participant_ended_in(p);
	row = ended_row(a, &x, p->state_name, p->started_ns, &p->byte_count, p->why);
	event = end_event(row,
			  json_pack("[o]",
				    outcome_row(a->config->name, p->state_name, p->version, p->why)),
			  p->state_name, p->why);
	set_pull(event, p);
	set_number(row, "nodes", 1);
	metrics_on_end(a, ROLE_MEMBER, x.kind, p->state_name);
	history_remember(a, row, json_pack("[o]", participant_row(a, p)), event);
}

static struct byte_count *byte_count_of(struct agent *a, enum metrics_role role, const char *sync)
{
	struct sync *s = role == ROLE_PUBLISHER ? sync_find(a, sync) : NULL;
	struct participant *p;

	if (s)
		return &s->byte_count;
	list_for_each(p, &a->participants, link)
		if (role == ROLE_MEMBER && !is_told_of(p) && strcmp(p->sync, sync) == 0)
			return &p->byte_count;
	return NULL;
}

/* Amends rows that were already sent and are in the commit log, too: later requests get the better number. */
void history_traced(struct agent *a, enum metrics_role role, const char *sync, uint64_t n_bytes)
{
	struct byte_count *byte_count = byte_count_of(a, role, sync);

	if (byte_count)
		byte_count_add_traced(byte_count, n_bytes);
	else
		ended_syncs_amend(a, role, sync, n_bytes);
}
