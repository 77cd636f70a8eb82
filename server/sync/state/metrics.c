/*
 * A family of samples is a row of FAMILIES: a function appends what there is of it. Packets of the control socket
 * are bounded, so a long family comes in several, each with its head.
 *
 * All are counters, or gauges of what can be read off the agent: node_exporter's textfile collector, which is how
 * most will read this, knows no other type of OpenMetrics.
 */
#include "server/sync/state/metrics.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/coordinator/sync.h"
#include "server/sync/participant/participant.h"
#include "server/sync/state/trace_span.h"

#define SAMPLES_MAX 24 /* in a packet: each may have a buffer's name and a group's, escaped */

static const char *const ROLES[N_ROLES] = {
	[ROLE_PUBLISHER] = "publisher",
	[ROLE_MEMBER] = "member",
};

static const char *const KINDS[N_KINDS] = {
	[KIND_PUSH] = "push",
	[KIND_REPAIR] = "repair",
	[KIND_AVERAGE] = "average",
	[KIND_RESHARD] = "reshard",
};
static const char *const RESULTS[N_RESULTS] = {
	[RESULT_COMMITTED] = "committed",
	[RESULT_FAILED] = "failed",
	[RESULT_PLANNED] = "planned",
};

static const char *const PHASES[N_ROLES][METRICS_PHASES] = {
	[ROLE_PUBLISHER] = {[PHASE_ATTACH] = "attach",
			    [PHASE_DIGEST] = "digest",
			    [PHASE_PREPARE] = "prepare",
			    [PHASE_COMPOSE] = "compose",
			    [PHASE_OPEN] = "open",
			    [PHASE_BYTES] = "bytes",
			    [PHASE_STOP] = "stop",
			    [PHASE_VERIFY] = "verify",
			    [PHASE_COMMIT] = "commit"},
	[ROLE_MEMBER] = {[PARTICIPANT_WANT] = "want",
			 [PARTICIPANT_CREATE] = "create",
			 [PARTICIPANT_READY] = "ready",
			 [PARTICIPANT_OPENING] = "opening",
			 [PARTICIPANT_OPEN] = "open",
			 [PARTICIPANT_MOVING] = "bytes",
			 [PARTICIPANT_VERIFYING] = "verify",
			 [PARTICIPANT_VERIFIED] = "verified",
			 [PARTICIPANT_RECORDING] = "record",
			 [PARTICIPANT_PUBLISHING] = "commit"},
};

/* --- Counting ----------------------------------------------------------------------------------- */

int metrics_init(struct agent *a)
{
	a->metrics.started_ns = a->env->time_ns(a->userdata);
	a->metrics.links = calloc(a->config->n_peers + 1, sizeof(*a->metrics.links));
	for (unsigned i = 0; a->metrics.links && i <= a->config->n_peers; i++)
		a->metrics.links[i].sent_traced = a->metrics.links[i].received_traced =
			BYTE_COUNT_UNKNOWN;
	return a->metrics.links ? 0 : -ENOMEM;
}

void metrics_deinit(struct agent *a)
{
	free(a->metrics.links);
}

static void stay(struct agent *a, enum metrics_role role, const char *sync, struct metrics_stay *s,
		 unsigned phase, uint64_t now)
{
	if (s->since_ns && s->phase == phase)
		return;
	if (s->since_ns) {
		a->metrics.phase_ns[role][s->phase] += now - s->since_ns;
		if (PHASES[role][s->phase])
			trace_span_phase(a, sync, ROLES[role], PHASES[role][s->phase], s->since_ns,
					 now);
	}
	*s = (struct metrics_stay){.phase = phase, .since_ns = now};
}

void metrics_step(struct agent *a)
{
	uint64_t now = agent_now(a);
	struct sync *s;
	struct participant *d;

	list_for_each(s, &a->syncs, link)
		stay(a, ROLE_PUBLISHER, s->id, &s->stay, s->phase, now);
	list_for_each(d, &a->participants, link)
		if (d->coordinator != AGENT_SELF)
			stay(a, ROLE_MEMBER, d->sync, &d->stay, d->state, now);
}

void metrics_on_end(struct agent *a, enum metrics_role role, enum sync_kind kind, const char *state)
{
	unsigned result = RESULT_COMMITTED;

	while (result < N_RESULTS - 1 && strcmp(RESULTS[result], state) != 0)
		result++;
	a->metrics.n_ended[role][kind][result]++;
}

const char *metrics_kind(enum sync_kind kind)
{
	return KINDS[kind];
}

/* A chain may lead over members that are no peers of ours. */
static struct metrics_links *links_of(struct agent *a, const char *name)
{
	unsigned peer = agent_peer_number(a, name);

	return &a->metrics.links[peer == NO_PEER ? a->config->n_peers : peer];
}

void metrics_on_sent(struct agent *a, const char *to, uint64_t planned, const json_t *out)
{
	byte_count_add(&links_of(a, to)->sent, planned, out);
}

void metrics_on_received(struct agent *a, const char *from, uint64_t planned, const json_t *in)
{
	byte_count_add(&links_of(a, from)->received, planned, in);
}

static void add_traced(uint64_t *sum, uint64_t n)
{
	*sum = *sum == BYTE_COUNT_UNKNOWN ? n : *sum + n;
}

void metrics_on_sent_traced(struct agent *a, const char *to, uint64_t n_bytes)
{
	add_traced(&links_of(a, to)->sent_traced, n_bytes);
}

void metrics_on_received_traced(struct agent *a, const char *from, uint64_t n_bytes)
{
	add_traced(&links_of(a, from)->received_traced, n_bytes);
}

/* --- Telling ------------------------------------------------------------------------------------ */

struct family {
	const char *name;
	const char *type;
	const char *unit; /* what the name ends with; NULL: none */
	const char *help;
	void (*append)(const struct agent *a, const struct family *f, json_t *rows);
	size_t offset; /* in struct metrics or metrics_links, where `append` wants one */
	uint64_t (*of_replica)(const struct replica *h);
};

/* The samples of the last packet, if it is of this family and has room. */
static json_t *samples_for(const struct family *f, json_t *rows)
{
	const json_t *last = json_array_get(rows, json_array_size(rows) - 1);
	const char *name = json_string_value(json_object_get(last, "metric"));
	json_t *samples = json_object_get(last, "samples");

	if (name && strcmp(name, f->name) == 0 && json_array_size(samples) < SAMPLES_MAX)
		return samples;
	samples = json_array();
	json_array_append_new(rows, json_pack("{s:s, s:s, s:s?, s:s, s:o}", "metric", f->name,
					      "type", f->type, "unit", f->unit, "help", f->help,
					      "samples", samples));
	return samples;
}

/* Takes `labels`. A sample of seconds is told in nanoseconds. */
static void append(const struct family *f, json_t *rows, json_t *labels, uint64_t value)
{
	const char *key = f->unit && strcmp(f->unit, "seconds") == 0 ? "value_ns" : "value";

	json_array_append_new(samples_for(f, rows),
			      json_pack("{s:o, s:I}", "labels", labels, key, (json_int_t)value));
}

static void append_one(const struct agent *a, const struct family *f, json_t *rows)
{
	const void *at = (const char *)&a->metrics + f->offset;

	append(f, rows, json_object(), *(const uint64_t *)at);
}

static void append_ended(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned i = 0; i < N_ROLES * N_KINDS * N_RESULTS; i++) {
		unsigned role = i / N_KINDS / N_RESULTS, kind = i / N_RESULTS % N_KINDS;
		unsigned result = i % N_RESULTS;

		append(f, rows,
		       json_pack("{s:s, s:s, s:s}", "role", ROLES[role], "kind", KINDS[kind],
				 "result", RESULTS[result]),
		       a->metrics.n_ended[role][kind][result]);
	}
}

static void append_active(const struct agent *a, const struct family *f, json_t *rows)
{
	uint64_t n[N_ROLES][N_KINDS] = {};
	struct sync *s;
	struct participant *d;

	list_for_each(s, &a->syncs, link)
		n[ROLE_PUBLISHER][s->kind] += s->phase != PHASE_ENDED;
	list_for_each(d, &a->participants, link)
		n[ROLE_MEMBER][d->kind] += d->coordinator != AGENT_SELF &&
					   d->state != PARTICIPANT_ENDED;
	for (unsigned i = 0; i < N_ROLES * N_KINDS; i++)
		append(f, rows,
		       json_pack("{s:s, s:s}", "role", ROLES[i / N_KINDS], "kind",
				 KINDS[i % N_KINDS]),
		       n[i / N_KINDS][i % N_KINDS]);
}

static void append_phases(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned role = 0; role < N_ROLES; role++)
		for (unsigned i = 0; i < METRICS_PHASES; i++)
			if (PHASES[role][i])
				append(f, rows,
				       json_pack("{s:s, s:s}", "role", ROLES[role], "phase",
						 PHASES[role][i]),
				       a->metrics.phase_ns[role][i]);
}

static void append_links(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned i = 0; i <= a->config->n_peers; i++) {
		const void *at = (const char *)&a->metrics.links[i] + f->offset;
		uint64_t value = *(const uint64_t *)at;

		if (value != BYTE_COUNT_UNKNOWN && (i < a->config->n_peers || value))
			append(f, rows,
			       json_pack("{s:s}", "peer",
					 i < a->config->n_peers ? a->config->peers[i] : "(other)"),
			       value);
	}
}

static void append_up(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned i = 0; i < a->config->n_peers; i++)
		append(f, rows, json_pack("{s:s}", "peer", a->config->peers[i]), a->peers[i].up);
}

static void append_replicas(const struct agent *a, const struct family *f, json_t *rows)
{
	struct replica *h;

	list_for_each(h, &a->replicas, link)
		if (h->document)
			append(f, rows,
			       json_pack("{s:s, s:s}", "buffer", h->buffer, "group", h->group),
			       f->of_replica(h));
}

static uint64_t replica_term(const struct replica *h)
{
	return h->document->version_id.term;
}

static uint64_t replica_number(const struct replica *h)
{
	return h->document->version_id.number;
}

static uint64_t replica_serving(const struct replica *h)
{
	return replica_done_with(h).number != 0;
}

static uint64_t replica_bytes(const struct replica *h)
{
	return h->document->n_bytes;
}

static uint64_t replica_signed_ns(const struct replica *h)
{
	return h->document->time_ns;
}

/* clang-format off */
#define COUNTER(name_, unit_, help_, append_, ...) \
	{.name = "weightd_sync_" name_, .type = "counter", .unit = (unit_), .help = (help_), .append = (append_), __VA_ARGS__}
#define GAUGE(name_, unit_, help_, append_, ...) \
	{.name = "weightd_sync_" name_, .type = "gauge", .unit = (unit_), .help = (help_), .append = (append_), __VA_ARGS__}
#define OF_METRICS(member) .offset = offsetof(struct metrics, member)
#define OF_LINKS(member) .offset = offsetof(struct metrics_links, member)

static const struct family FAMILIES[] = {
	GAUGE("start_time_seconds", "seconds", "When the agent began, since 1970.", append_one, OF_METRICS(started_ns)),
	COUNTER("syncs", NULL, "Syncs that ended here.", append_ended),
	GAUGE("active_syncs", NULL, "Syncs under way here.", append_active),
	COUNTER("phase_seconds", "seconds", "Time that syncs spent in a phase, of those that left it.", append_phases),
	COUNTER("epochs", NULL, "Attempts to move bytes that this node coordinated.", append_one, OF_METRICS(n_epochs)),
	COUNTER("broken_epochs", NULL, "Those of them that broke.", append_one, OF_METRICS(n_broken)),
	COUNTER("corrupt_bytes", "bytes", "Bytes that came here and were not those that were signed.", append_one,
		OF_METRICS(corrupt_bytes)),
	COUNTER("sent_bytes", "bytes", "Bytes to the sockets of engines of a peer.", append_links, OF_LINKS(sent.bytes)),
	COUNTER("sent_kernel_bytes", "bytes", "The same as the kernel counts them.", append_links, OF_LINKS(sent.kernel)),
	COUNTER("sent_payload_bytes", "bytes", "Of them, what is not TLS.", append_links, OF_LINKS(sent.payload)),
	COUNTER("sent_planned_bytes", "bytes", "The payload as computed before.", append_links, OF_LINKS(sent.planned)),
	COUNTER("sent_traced_bytes", "bytes", "Bytes to them as weightd-trace saw them.", append_links, OF_LINKS(sent_traced)),
	COUNTER("received_bytes", "bytes", "Bytes from the sockets of engines of a peer.", append_links, OF_LINKS(received.bytes)),
	COUNTER("received_kernel_bytes", "bytes", "The same as the kernel counts them.", append_links, OF_LINKS(received.kernel)),
	COUNTER("received_payload_bytes", "bytes", "Of them, what is not TLS.", append_links, OF_LINKS(received.payload)),
	COUNTER("received_planned_bytes", "bytes", "The payload as computed before.", append_links, OF_LINKS(received.planned)),
	COUNTER("received_traced_bytes", "bytes", "Bytes from them as weightd-trace saw them.", append_links, OF_LINKS(received_traced)),
	GAUGE("peer_up", NULL, "Whether the agent of a peer is connected.", append_up),
	GAUGE("head_term", NULL, "Term of the version that is committed here.", append_replicas, .of_replica = replica_term),
	GAUGE("head_number", NULL, "Number of the version that is committed here.", append_replicas, .of_replica = replica_number),
	GAUGE("head_serving", NULL, "Whether the local weightd serves it.", append_replicas, .of_replica = replica_serving),
	GAUGE("head_size_bytes", "bytes", "Bytes of it.", append_replicas, .of_replica = replica_bytes),
	GAUGE("head_timestamp_seconds", "seconds", "When its publisher signed it, since 1970.", append_replicas,
	      .of_replica = replica_signed_ns),
};
/* clang-format on */

json_t *agent_metrics(const struct agent *a)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(FAMILIES[0]); i++)
		FAMILIES[i].append(a, &FAMILIES[i], rows);
	return rows;
}
