/*
 * All that people see of a sync is made here from its state, when they ask. What ended is kept as it was then:
 * a row of each of the last syncs, and the rows of the nodes of the youngest.
 */
#include "server/sync/history.h"

#include <string.h>

#include "server/sync/delta.h"
#include "server/sync/epoch.h"

#define HISTORY_WITH_NODES 8
#define STALE_NS (2 * SECOND)
#define SAVE_NS (5 * SECOND) /* so that whoever makes syncs fail does not keep the disk busy */

struct about {
	const char *sync;
	enum sync_kind kind;
	const char *buffer;
	const char *group;
	struct pair pair;
	uint64_t n_bytes; /* 0: not known yet */
	const char *role;
	uint64_t changed;
	uint64_t patch; /* bytes of the patch; 0: there is none */
	uint64_t n_differ; /* bytes of elements that it changes; UINT64_MAX: not known here */
	const char *ended_in; /* a phase; NULL: it goes on */
};

static struct about about_transaction(const struct transaction *t)
{
	const struct document *d = t->document;

	return (struct about){.sync = t->sync,
			      .kind = t->is_repair ? KIND_REPAIR : KIND_PUSH,
			      .buffer = t->head->buffer,
			      .group = d->group,
			      .pair = d->pair,
			      .n_bytes = d->n_bytes,
			      .role = "publisher",
			      .changed = t->changed,
			      .patch = t->delta.fd < 0 ? 0 : t->delta.size,
			      .n_differ = t->delta.fd < 0 ? UINT64_MAX : t->delta.changed};
}

static struct about about_party(const struct party *p)
{
	const struct document *d = p->document;

	return (struct about){.sync = p->sync,
			      .kind = p->is_repair ? KIND_REPAIR : KIND_PUSH,
			      .buffer = p->head->buffer,
			      .group = d->group,
			      .pair = d->pair,
			      .n_bytes = d->n_bytes,
			      .role = "member",
			      .changed = p->changed,
			      .patch = p->patch_size,
			      .n_differ = UINT64_MAX};
}

/* All of it is made anew. */
static struct about about_joint(const struct joint *j)
{
	const struct document *d = j->document;

	return (struct about){.sync = j->sync,
			      .kind = j->operation->kind,
			      .buffer = j->head->buffer,
			      .group = d->group,
			      .pair = d->pair,
			      .n_bytes = d->n_bytes,
			      .role = "publisher",
			      .changed = j->owned.n ? owned_total(&j->owned) : UINT64_MAX,
			      .n_differ = UINT64_MAX};
}

static struct about about_share(const struct share *s)
{
	const struct invitation *i = &s->invitation;

	return (struct about){.sync = i->sync,
			      .kind = i->operation->kind,
			      .buffer = i->buffer,
			      .group = i->group,
			      .pair = i->pair,
			      .n_bytes = s->n_bytes,
			      .role = "member",
			      .changed = s->owned.n ? owned_total(&s->owned) : UINT64_MAX,
			      .n_differ = UINT64_MAX};
}

static json_t *number_or_null(uint64_t n, bool is_known)
{
	return is_known ? json_integer((json_int_t)n) : json_null();
}

/* How many bytes the version has, how many of them some leaf of had to travel, and how: where that is known. */
static json_t *row_of(const struct about *x)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:o, s:o, s:s?, s:o, s:o}", "sync",
			 x->sync, "kind", metrics_kind(x->kind), "buffer", x->buffer, "group",
			 x->group, "term", (json_int_t)x->pair.term, "number",
			 (json_int_t)x->pair.number, "role", x->role, "size",
			 number_or_null(x->n_bytes, x->n_bytes), "changed",
			 number_or_null(x->changed, x->changed != UINT64_MAX), "by",
			 x->kind == KIND_AVERAGE ? NULL
						 : delta_way(x->patch, x->changed, x->n_bytes),
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

static const char *from_of(const struct agent *a, const struct transaction *t,
			   const struct member *m)
{
	const struct member *from = epoch_before(t, m);

	return from ? from->name : m == t->first ? a->config->name : NULL;
}

/* What it said last, until it has said nothing for so long that this cannot be true any more. */
static uint64_t rate_of(const struct agent *a, const struct member *m)
{
	return m->state == MEMBER_MOVING && agent_now(a) - m->moved_ns < STALE_NS ? m->rate : 0;
}

/*
 * Whether its link is why it waits: it gets less than half of what it could, or nothing. It could get what the one
 * before it in the chain got, as that is what is given on; or, as the first, what members got when they were last
 * measured. Those behind it are as slow, and only wait.
 */
static bool is_slow(const struct agent *a, const struct transaction *t, const struct member *m)
{
	const struct member *from = epoch_before(t, m);
	uint64_t could = epoch_median_rate(a, t);

	if (m->state != MEMBER_MOVING || m->done == t->expected ||
	    (from ? from->done : t->expected) <= m->done)
		return false;
	if (agent_now(a) - m->moved_ns >= STALE_NS)
		return true;
	if (from)
		could = from->measured ? from->measured : rate_of(a, from);
	else if (t->max_rate && t->max_rate < could)
		could = t->max_rate;
	return m->rate && m->rate < could / 2;
}

/* Without `from` and `slow`, which cost a walk each. */
static json_t *member_row(const struct agent *a, const struct transaction *t, const struct member *m)
{
	struct about x = about_transaction(t);
	json_t *row;

	if (!m->by_patch) {
		x.patch = 0;
		x.n_differ = UINT64_MAX;
	}
	row = row_of(&x);
	set_text(row, "node", m->name);
	set_text(row, "phase", member_phase(m));
	set_number(row, "done", m->done);
	set_number(row, "expected", t->expected);
	set_number(row, "rate", rate_of(a, m));
	set_number(row, "epoch", t->epoch);
	set_text(row, "why", m->why);
	return row;
}

static const char *const OUR_PHASES[] = {
	[PHASE_ATTACH] = "attach",   [PHASE_DIGEST] = "attach",   [PHASE_PREPARE] = "prepare",
	[PHASE_COMPOSE] = "prepare", [PHASE_OPEN] = "open",       [PHASE_BYTES] = "bytes",
	[PHASE_STOP] = "bytes",      [PHASE_VERIFY] = "verified", [PHASE_COMMIT] = "commit",
	[PHASE_ENDED] = "failed",
};

static const char *our_phase(const struct transaction *t)
{
	if (t->is_planned)
		return "planned";
	return t->phase == PHASE_ENDED && t->decided ? "committed" : OUR_PHASES[t->phase];
}

static void append_transaction(const struct agent *a, const struct transaction *t, json_t *rows)
{
	struct about x = about_transaction(t);
	json_t *row = row_of(&x);

	set_text(row, "node", a->config->name);
	set_text(row, "phase", our_phase(t));
	set_number(row, "done", t->engine_is_done ? t->expected : t->engine_done);
	set_number(row, "expected", t->expected);
	set_number(row, "rate", 0);
	set_number(row, "epoch", t->epoch);
	set_text(row, "why", t->why);
	set_text(row, "from", NULL);
	json_object_set_new(row, "slow", json_false());
	json_array_append_new(rows, row);
	for (unsigned i = 0; i < t->n_members; i++) {
		const struct member *m = &t->members[i];

		row = member_row(a, t, m);
		set_text(row, "from", from_of(a, t, m));
		json_object_set_new(row, "slow", json_boolean(is_slow(a, t, m)));
		json_array_append_new(rows, row);
	}
}

static json_t *party_row(const struct agent *a, const struct party *p)
{
	bool moves = p->state == PARTY_MOVING && agent_now(a) - p->reported_ns < STALE_NS;
	struct about x = about_party(p);
	json_t *row = row_of(&x);

	set_text(row, "node", a->config->name);
	set_text(row, "phase", party_phase(p));
	set_number(row, "done", p->done);
	set_number(row, "expected", p->expected);
	set_number(row, "rate", moves ? p->rate : 0);
	set_number(row, "epoch", p->epoch);
	set_text(row, "why", p->why);
	set_text(row, "from", p->from);
	json_object_set_new(row, "slow", json_false());
	return row;
}

/* `from` is all others. */
static json_t *part_row(const struct agent *a, const struct joint *j, const struct part *p)
{
	bool moves = p->state == MEMBER_MOVING && agent_now(a) - p->moved_ns < STALE_NS;
	struct about x = about_joint(j);
	json_t *row = row_of(&x);

	set_text(row, "node", p->name);
	set_text(row, "phase", part_phase(p));
	set_number(row, "done", p->done);
	set_number(row, "expected", p->expected);
	set_number(row, "rate", moves ? p->rate : 0);
	set_number(row, "epoch", j->epoch);
	set_text(row, "why", p->why);
	set_text(row, "from", NULL);
	json_object_set_new(row, "slow", json_false());
	return row;
}

static void append_joint(const struct agent *a, const struct joint *j, json_t *rows)
{
	for (unsigned i = 0; i < j->n_parts; i++)
		json_array_append_new(rows, part_row(a, j, &j->parts[i]));
}

static json_t *share_row(const struct agent *a, const struct share *s)
{
	bool moves = s->state == SHARE_MOVING && agent_now(a) - s->reported_ns < STALE_NS;
	struct about x = about_share(s);
	json_t *row = row_of(&x);

	set_text(row, "node", a->config->name);
	set_text(row, "phase", share_phase(s));
	set_number(row, "done", s->done);
	set_number(row, "expected", s->expected);
	set_number(row, "rate", moves ? s->rate : 0);
	set_number(row, "epoch", s->epoch);
	set_text(row, "why", s->why);
	set_text(row, "from", NULL);
	json_object_set_new(row, "slow", json_false());
	return row;
}

json_t *agent_status(const struct agent *a, const char *sync)
{
	json_t *rows = json_array(), *entry;
	struct transaction *t;
	struct party *p;
	struct joint *j;
	struct share *s;
	size_t i;

	json_array_foreach(a->history, i, entry)
	{
		const char *id = json_string_value(
			json_object_get(json_object_get(entry, "row"), "sync"));

		if (!sync || strcmp(sync, id) == 0)
			json_array_extend(rows, json_object_get(entry, "nodes"));
	}
	list_for_each(t, &a->transactions, link)
		if (t->phase != PHASE_ENDED && (!sync || strcmp(sync, t->sync) == 0))
			append_transaction(a, t, rows);
	list_for_each(p, &a->parties, link)
		if (p->state != PARTY_ENDED && (!sync || strcmp(sync, p->sync) == 0))
			json_array_append_new(rows, party_row(a, p));
	list_for_each(j, &a->joints, link)
		if (j->phase != PHASE_ENDED && (!sync || strcmp(sync, j->sync) == 0))
			append_joint(a, j, rows);
	list_for_each(s, &a->shares, link)
		if (s->state != SHARE_ENDED && s->coordinator != AGENT_SELF &&
		    (!sync || strcmp(sync, s->invitation.sync) == 0))
			json_array_append_new(rows, share_row(a, s));
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

void history_member_event(struct agent *a, const struct transaction *t, const struct member *m)
{
	json_t *event = member_row(a, t, m);

	json_object_set_new(event, "event", json_string("phase"));
	agent_event(a, event);
}

void history_party_event(struct agent *a, const struct party *p)
{
	json_t *event = party_row(a, p);

	json_object_set_new(event, "event", json_string("phase"));
	agent_event(a, event);
}

void history_part_event(struct agent *a, const struct joint *j, const struct part *p)
{
	json_t *event = part_row(a, j, p);

	json_object_set_new(event, "event", json_string("phase"));
	agent_event(a, event);
}

/* Of what this node coordinates, it is a part that is told of already. */
void history_share_event(struct agent *a, const struct share *s)
{
	json_t *event;

	if (s->coordinator == AGENT_SELF)
		return;
	event = share_row(a, s);
	json_object_set_new(event, "event", json_string("phase"));
	agent_event(a, event);
}

static void append(struct agent *a, json_t *row, json_t *rows)
{
	json_array_append_new(a->history, json_pack("{s:o, s:o}", "row", row, "nodes", rows));
	if (json_array_size(a->history) > HISTORY_MAX)
		json_array_remove(a->history, 0);
}

/* Steals all three. */
static void remember(struct agent *a, json_t *row, json_t *rows, json_t *event)
{
	size_t size;

	append(a, row, rows);
	if (!a->history_ns)
		a->history_ns = agent_now(a) + SAVE_NS;
	size = json_array_size(a->history);
	if (size > HISTORY_WITH_NODES)
		json_object_set_new(json_array_get(a->history, size - 1 - HISTORY_WITH_NODES),
				    "nodes", json_array());
	json_object_set_new(event, "event", json_string("end"));
	agent_event(a, event);
}

static json_t *ended_row(struct agent *a, const struct about *x, const char *state,
			 uint64_t started_ns, const struct tally *tally, const char *why)
{
	json_t *row = row_of(x);

	set_number(row, "started_ns", started_ns);
	set_number(row, "ended_ns", a->edge->time_ns(a->world));
	set_text(row, "state", state);
	tally_show(tally, row);
	set_text(row, "phase", strcmp(state, "failed") == 0 ? x->ended_in : NULL);
	set_text(row, "why", why);
	return row;
}

static json_t *node_row(const char *node, const char *state, uint64_t version, const char *why)
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

void history_transaction_end(struct agent *a, const struct transaction *t, bool committed)
{
	struct about x = about_transaction(t);
	const char *state = t->is_planned ? "planned" : committed ? "committed" : "failed";
	json_t *rows = json_array(), *nodes = json_array(), *row, *event;

	x.ended_in = t->ended_in == PHASE_VERIFY ? "verify" : OUR_PHASES[t->ended_in];
	row = ended_row(a, &x, state, t->started_ns, &t->tally, t->why);
	metrics_on_end(a, ROLE_PUBLISHER, x.kind, state);
	json_array_append_new(nodes,
			      node_row(a->config->name, state, committed ? t->version : 0, NULL));
	for (unsigned i = 0; i < t->n_members; i++) {
		const struct member *m = &t->members[i];

		json_array_append_new(nodes, node_row(m->name, member_phase(m), m->version, m->why));
	}
	event = end_event(row, nodes, state, t->why);
	set_number(row, "nodes", t->n_members + 1);
	append_transaction(a, t, rows);
	remember(a, row, rows, event);
}

void history_party_end(struct agent *a, const struct party *p)
{
	struct about x = about_party(p);
	json_t *row, *event;

	x.ended_in = party_ended_in(p);
	row = ended_row(a, &x, p->state_name, p->started_ns, &p->tally, p->why);
	event = end_event(
		row, json_pack("[o]", node_row(a->config->name, p->state_name, p->version, p->why)),
		p->state_name, p->why);
	set_number(row, "nodes", 1);
	metrics_on_end(a, ROLE_MEMBER, x.kind, p->state_name);
	remember(a, row, json_pack("[o]", party_row(a, p)), event);
}

void history_joint_end(struct agent *a, const struct joint *j, bool committed)
{
	const char *state = j->is_planned ? "planned" : committed ? "committed" : "failed";
	json_t *rows = json_array(), *nodes = json_array(), *row, *event;
	struct about x = about_joint(j);

	x.ended_in = j->ended_in == PHASE_VERIFY ? "verify" : OUR_PHASES[j->ended_in];
	row = ended_row(a, &x, state, j->started_ns, &j->tally, j->why);
	metrics_on_end(a, ROLE_PUBLISHER, x.kind, state);
	for (unsigned i = 0; i < j->n_parts; i++) {
		const struct part *p = &j->parts[i];

		json_array_append_new(nodes, node_row(p->name, part_phase(p), p->version, p->why));
	}
	event = end_event(row, nodes, state, j->why);
	set_number(row, "nodes", j->n_parts);
	append_joint(a, j, rows);
	remember(a, row, rows, event);
}

void history_share_end(struct agent *a, const struct share *s)
{
	struct about x = about_share(s);
	json_t *row, *event;

	if (s->coordinator == AGENT_SELF)
		return;
	x.ended_in = share_ended_in(s);
	row = ended_row(a, &x, s->state_name, s->started_ns, &s->tally, s->why);
	event = end_event(
		row, json_pack("[o]", node_row(a->config->name, s->state_name, s->version, s->why)),
		s->state_name, s->why);
	set_number(row, "nodes", 1);
	metrics_on_end(a, ROLE_MEMBER, x.kind, s->state_name);
	remember(a, row, json_pack("[o]", share_row(a, s)), event);
}

/* --- The record --------------------------------------------------------------------------------- */

json_t *history_to_json(const struct agent *a)
{
	json_t *rows = json_array(), *entry;
	size_t i;

	json_array_foreach(a->history, i, entry)
		json_array_append(rows, json_object_get(entry, "row"));
	return rows;
}

void history_load(struct agent *a, const json_t *rows)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *sync = json_string_value(json_object_get(row, "sync"));

		if (sync && strlen(sync) == SYNC_ID_SIZE - 1)
			append(a, json_incref(row), json_array());
	}
}
