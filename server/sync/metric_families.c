/*
 * A family of samples is a row of FAMILIES; a function appends its samples.
 *
 * All are counters, or gauges of the agent's state: node_exporter's textfile collector, the usual
 * reader, supports no other type of OpenMetrics.
 */
#include "server/sync/agent.h"

#include <stddef.h>

#include "server/base/json/metric.h"
#include "server/sync/coordinator/sync.h"
#include "server/sync/participant/participant.h"
#include "server/sync/phase_time.h"

struct family {
	struct metric metric;
	void (*append)(const struct agent *a, const struct family *f, json_t *rows);
	size_t offset; /* in struct metrics or metrics_links, if `append` uses one */
	uint64_t (*of_replica)(const struct replica *rep);
};

static void append_one(const struct agent *a, const struct family *f, json_t *rows)
{
	const void *at = (const char *)&a->metrics + f->offset;

	metric_append(rows, &f->metric, json_object(), *(const uint64_t *)at);
}

static void append_ended(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned i = 0; i < N_ROLES * N_KINDS * N_RESULTS; i++) {
		unsigned role = i / N_KINDS / N_RESULTS, kind = i / N_RESULTS % N_KINDS;
		unsigned result = i % N_RESULTS;

		metric_append(rows, &f->metric,
			      json_pack("{s:s, s:s, s:s}", "role", metrics_role(role), "kind",
					metrics_kind(kind), "result", metrics_result(result)),
			      a->metrics.n_ended[role][kind][result]);
	}
}

static void append_active(const struct agent *a, const struct family *f, json_t *rows)
{
	uint64_t n[N_ROLES][N_KINDS] = {};
	struct sync *s;
	struct participant *p;

	list_for_each(s, &a->syncs, link)
		n[ROLE_PUBLISHER][s->kind] += s->phase != PHASE_ENDED;
	list_for_each(p, &a->participants, link)
		n[ROLE_MEMBER][p->kind] += p->coordinator != AGENT_SELF &&
					   p->state != PARTICIPANT_ENDED;
	for (unsigned i = 0; i < N_ROLES * N_KINDS; i++)
		metric_append(rows, &f->metric,
			      json_pack("{s:s, s:s}", "role", metrics_role(i / N_KINDS), "kind",
					metrics_kind(i % N_KINDS)),
			      n[i / N_KINDS][i % N_KINDS]);
}

static void append_phases(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned role = 0; role < N_ROLES; role++)
		for (unsigned i = 0; i < METRICS_PHASES; i++)
			if (phase_time_name(role, i))
				metric_append(rows, &f->metric,
					      json_pack("{s:s, s:s}", "role", metrics_role(role),
							"phase", phase_time_name(role, i)),
					      a->metrics.phase_ns[role][i]);
}

static void append_links(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned i = 0; i <= a->config->n_peers; i++) {
		const void *at = (const char *)&a->metrics.links[i] + f->offset;
		uint64_t value = *(const uint64_t *)at;

		if (value != BYTE_COUNT_UNKNOWN && (i < a->config->n_peers || value))
			metric_append(rows, &f->metric,
				      json_pack("{s:s}", "peer",
						i < a->config->n_peers ? a->config->peers[i]
								       : "(other)"),
				      value);
	}
}

static void append_up(const struct agent *a, const struct family *f, json_t *rows)
{
	for (unsigned i = 0; i < a->config->n_peers; i++)
		metric_append(rows, &f->metric, json_pack("{s:s}", "peer", a->config->peers[i]),
			      a->peers[i].up);
}

static void append_replicas(const struct agent *a, const struct family *f, json_t *rows)
{
	struct replica *rep;

	list_for_each(rep, &a->replicas, link)
		if (rep->document)
			metric_append(rows, &f->metric,
				      json_pack("{s:s, s:s}", "buffer", rep->buffer, "group",
						rep->group),
				      f->of_replica(rep));
}

static uint64_t replica_term(const struct replica *rep)
{
	return rep->document->version_id.term;
}

static uint64_t replica_number(const struct replica *rep)
{
	return rep->document->version_id.number;
}

static uint64_t replica_serving(const struct replica *rep)
{
	return replica_done_with(rep).number != 0;
}

static uint64_t replica_bytes(const struct replica *rep)
{
	return rep->document->n_bytes;
}

static uint64_t replica_signed_ns(const struct replica *rep)
{
	return rep->document->time_ns;
}

/* clang-format off */
#define COUNTER(name_, unit_, help_, append_, ...) \
	{.metric = {"weightd_sync_" name_, "counter", (unit_), (help_)}, .append = (append_), __VA_ARGS__}
#define GAUGE(name_, unit_, help_, append_, ...) \
	{.metric = {"weightd_sync_" name_, "gauge", (unit_), (help_)}, .append = (append_), __VA_ARGS__}
#define OF_METRICS(member) .offset = offsetof(struct metrics, member)
#define OF_LINKS(member) .offset = offsetof(struct metrics_links, member)

static const struct family FAMILIES[] = {
	GAUGE("start_time_seconds", "seconds", "When the agent began, since 1970.", append_one, OF_METRICS(started_ns)),
	GAUGE("certificate_expiry_seconds", "seconds", "When the certificate of this node expires, since 1970.", append_one,
	      OF_METRICS(certificate_end_ns)),
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
	GAUGE("peer_up", NULL, "1 if the agent of a peer is connected.", append_up),
	GAUGE("head_term", NULL, "Term of the version that is committed here.", append_replicas, .of_replica = replica_term),
	GAUGE("head_number", NULL, "Number of the version that is committed here.", append_replicas, .of_replica = replica_number),
	GAUGE("head_serving", NULL, "1 if the local weightd serves it.", append_replicas, .of_replica = replica_serving),
	GAUGE("head_size_bytes", "bytes", "Bytes of it.", append_replicas, .of_replica = replica_bytes),
	GAUGE("head_timestamp_seconds", "seconds", "When its publisher signed it, since 1970.", append_replicas,
	      .of_replica = replica_signed_ns),
};
/* clang-format on */

void agent_set_certificate_end(struct agent *a, uint64_t end_ns)
{
	a->metrics.certificate_end_ns = end_ns;
}

json_t *agent_metrics(const struct agent *a)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(FAMILIES[0]); i++)
		FAMILIES[i].append(a, &FAMILIES[i], rows);
	return rows;
}
