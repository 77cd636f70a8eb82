/*
 * Each row of FAMILIES is a family of samples with a function that appends them. An unknown value has no sample.
 * Packets are bounded, so that a long family has several, each with its head.
 *
 * All families are counters or gauges, as those of weightd-sync are: every reader of OpenMetrics text has these two.
 */
#include "bpf/metrics.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bpf/base/programs.h"
#include "bpf/event/event.h"
#include "bpf/packets.h"
#include "bpf/rdma/rdma_port.h"
#include "bpf/rows.h"
#include "bpf/tcp/hook.h"
#include "bpf/tcp/meter-bpf.h"
#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/json/metric.h"

/* --- Counting ----------------------------------------------------------------------------------- */

void metrics_init(struct metrics *m)
{
	struct timespec now = {};

	(void)clock_gettime(CLOCK_REALTIME, &now); /* every kernel has it */
	*m = (struct metrics){.started_ns = (uint64_t)now.tv_sec * 1000000000 +
					    (uint64_t)now.tv_nsec};
	peer_totals_list_init(&m->peers);
}

void metrics_deinit(struct metrics *m)
{
	peer_totals_list_deinit(&m->peers);
}

void metrics_on_span_end(struct metrics *m, const struct span *span)
{
	m->ended_spans++;
	m->span_ns += num_now_ns() - span->began_ns;
}

/* True for a word as our own code writes them. */
static bool is_word(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	return n > 0 && n < METRICS_WORD_SIZE &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

void metrics_on_event(struct metrics *m, const char *word)
{
	struct metrics_word *w = m->events;

	while (word && w < m->events + m->n_words && strcmp(w->word, word) != 0)
		w++;
	if (!is_word(word) || w == m->events + METRICS_WORDS_MAX) {
		m->other_events++;
		return;
	}
	if (w == m->events + m->n_words) {
		(void)strcpy(w->word, word);
		m->n_words++;
	}
	w->n++;
}

void metrics_look(struct tracer *t)
{
	struct reading now;
	struct client *c;
	struct row *row;

	list_for_each(c, &t->clients, link)
		list_for_each(row, &c->rows, link)
			if (rows_find_span(c, row->label.sync))
				(void)rows_look(c, row, &now); /* a client that asks gets the error */
}

/* --- Answering -------------------------------------------------------------------------------- */

struct metrics_answer {
	const struct tracer *tracer;
	unsigned n_rows[QUALITY_EXACT + 1]; /* rows of that quality */
	struct rdma_port *ports;
	size_t n_ports;
	struct program programs[PROGRAMS_MAX];
	size_t n_programs;
	bool has_runs; /* the kernel counts them */
	json_t *packets;
};

struct family {
	struct metric metric;
	void (*append)(struct metrics_answer *a, const struct family *f);
	size_t offset; /* in struct metrics, peer_totals or program, where `append` wants one */
	int rdma_port_counts; /* this kind of rdma_port_counts */
};

static void sample_append(const struct metrics_answer *a, const struct family *f, json_t *labels,
			  uint64_t value)
{
	metric_append(a->packets, &f->metric, labels, value);
}

static void append_one(struct metrics_answer *a, const struct family *f)
{
	const char *at = (const char *)&a->tracer->metrics + f->offset;

	sample_append(a, f, json_object(), *(const uint64_t *)at);
}

static void append_meter(struct metrics_answer *a, const struct family *f)
{
	sample_append(a, f, json_pack("{ss}", "meter", a->tracer->collector.meter->kind->name), 1);
}

static void append_hooks(struct metrics_answer *a, const struct family *f)
{
	for (size_t i = 0; i < N_HOOKS; i++)
		sample_append(a, f,
			      json_pack("{ss ss}", "hook", hooks[i].name, "program",
					hooks[i].program),
			      hook_is_on(a->tracer->collector.meter, &hooks[i]));
}

static void append_clients(struct metrics_answer *a, const struct family *f)
{
	sample_append(a, f, json_object(), a->tracer->n_clients);
}

static void append_rows(struct metrics_answer *a, const struct family *f)
{
	static const char *const names[] = {"absent", "sampled", "exact"};

	for (unsigned i = 0; i < ARRAY_LEN(a->n_rows); i++)
		sample_append(a, f, json_pack("{ss}", "quality", names[i]), a->n_rows[i]);
}

static void append_spans(struct metrics_answer *a, const struct family *f)
{
	sample_append(a, f, json_object(), a->tracer->n_spans);
}

/* Returns the peers that have samples, from NULL to NULL; the others are last. */
static const struct peer_totals *next_peer(const struct metrics_answer *a,
					   const struct peer_totals *sums)
{
	const struct peer_totals_list *all = &a->tracer->metrics.peers;
	const struct list *link = sums ? sums->link.next : all->list.next;

	if (sums == &all->others[1])
		return NULL;
	if (sums == &all->others[0])
		sums = &all->others[1];
	else if (link != &all->list)
		return container_of(link, const struct peer_totals, link);
	else
		sums = &all->others[0];
	return sums->n_rows || sums->opened ? sums : next_peer(a, sums);
}

static json_t *labels_of(const struct peer_totals *sums)
{
	return json_pack("{ss ss}", "peer", sums->peer, "role",
			 sums->is_payload ? "payload" : "control");
}

static const uint64_t *counter_at(const struct peer_totals *sums, const struct family *f)
{
	return (const uint64_t *)((const char *)sums + f->offset);
}

static void append_peers(struct metrics_answer *a, const struct family *f)
{
	for (const struct peer_totals *sums = NULL; (sums = next_peer(a, sums));)
		sample_append(a, f, labels_of(sums), *counter_at(sums, f));
}

/* This meter does not always see what a connection carried before it ended. */
static const char *quality(const struct tracer *t)
{
	return t->collector.meter->kind == &meter_bpf ? "exact" : "sampled";
}

static void append_counters(struct metrics_answer *a, const struct family *f)
{
	json_t *labels;

	for (const struct peer_totals *sums = NULL; (sums = next_peer(a, sums));) {
		if (!sums->is_known)
			continue;
		labels = labels_of(sums);
		(void)json_object_set_new(labels, "quality", json_string(quality(a->tracer)));
		sample_append(a, f, labels, *counter_at(sums, f));
	}
}

static void append_limits(struct metrics_answer *a, const struct family *f)
{
	json_t *labels;

	for (const struct peer_totals *sums = NULL; (sums = next_peer(a, sums));)
		for (int i = 0; sums->has_sent && i < N_LIMITS; i++) {
			labels = labels_of(sums);
			(void)json_object_set_new(labels, "limit", json_string(limit_names[i]));
			(void)json_object_set_new(labels, "quality", json_string("sampled"));
			sample_append(a, f, labels, counter_at(sums, f)[i]);
		}
}

static void append_open(struct metrics_answer *a, const struct family *f)
{
	for (const struct peer_totals *sums = NULL; (sums = next_peer(a, sums));)
		sample_append(a, f, labels_of(sums), sums->opened - sums->closed);
}

static const enum question_number sources[N_EVENT_SOURCES] = {
	[EVENTS_OF_PROBES] = QUESTION_PROBES,
	[EVENTS_OF_WEIGHTD] = QUESTION_PROBES,
	[EVENTS_OF_DESCRIPTORS] = QUESTION_FD_PASSING,
};

static void append_lost(struct metrics_answer *a, const struct family *f)
{
	const struct tracer *t = a->tracer;
	uint64_t n = 0;

	for (const struct peer_totals *sums = NULL; (sums = next_peer(a, sums));)
		n += sums->lost;
	if (t->tcp_events.loop)
		sample_append(a, f, json_pack("{ss}", "source", "ring"), n);
	sample_append(a, f, json_pack("{ss}", "source", "client"), t->metrics.lost_packets);
	for (int i = 0; i < N_EVENT_SOURCES; i++)
		if (!*t->questions[sources[i]]->why)
			sample_append(a, f, json_pack("{ss}", "source", event_source_names[i]),
				      t->metrics.lost_events[i]);
}

static void append_events(struct metrics_answer *a, const struct family *f)
{
	const struct metrics *m = &a->tracer->metrics;

	for (unsigned i = 0; i < m->n_words; i++)
		sample_append(a, f, json_pack("{ss}", "act", m->events[i].word), m->events[i].n);
	if (m->other_events)
		sample_append(a, f, json_pack("{ss}", "act", PEER_OTHER), m->other_events);
}

static json_t *labels_of_port(const struct rdma_port *p)
{
	return json_pack("{ss so}", "device", p->device, "port", json_sprintf("%u", p->number));
}

static void append_port_up(struct metrics_answer *a, const struct family *f)
{
	for (size_t i = 0; i < a->n_ports; i++)
		if (*a->ports[i].state)
			sample_append(a, f, labels_of_port(&a->ports[i]),
				      !strcmp(a->ports[i].state, "active"));
}

static void append_port_rate(struct metrics_answer *a, const struct family *f)
{
	for (size_t i = 0; i < a->n_ports; i++)
		if (a->ports[i].rate_bits != RDMA_PORT_UNKNOWN)
			sample_append(a, f, labels_of_port(&a->ports[i]), a->ports[i].rate_bits / 8);
}

/* True for a count of that family: traffic has bytes, and packets. */
static bool is_of(const struct rdma_port_count *c, const struct family *f)
{
	return (int)c->kind == f->rdma_port_counts &&
	       (c->kind != RDMA_PORT_TRAFFIC || (c->unit > 1) == (f->metric.unit != NULL));
}

static json_t *labels_of_count(const struct rdma_port *p, const struct rdma_port_count *c)
{
	json_t *labels = labels_of_port(p);

	if (c->kind == RDMA_PORT_TRAFFIC) /* "xmit", "recv" */
		(void)json_object_set_new(labels, "direction",
					  json_stringn(c->key, strcspn(c->key, "_")));
	else
		(void)json_object_set_new(labels, "event", json_string(c->key));
	return labels;
}

static void append_ports(struct metrics_answer *a, const struct family *f)
{
	for (const struct rdma_port *p = a->ports; p < a->ports + a->n_ports; p++)
		for (int i = 0; rdma_port_counts[i].key; i++)
			if (is_of(&rdma_port_counts[i], f) && p->counts[i] != RDMA_PORT_UNKNOWN)
				sample_append(a, f, labels_of_count(p, &rdma_port_counts[i]),
					      p->counts[i]);
}

static void append_programs(struct metrics_answer *a, const struct family *f)
{
	for (const struct program *p = a->programs; a->has_runs && p < a->programs + a->n_programs;
	     p++)
		sample_append(a, f, json_pack("{ss}", "program", p->name),
			      *(const uint64_t *)((const char *)p + f->offset));
}

static void append_misses(struct metrics_answer *a, const struct family *f)
{
	for (const struct program *p = a->programs; p < a->programs + a->n_programs; p++)
		if (p->misses != MISSES_UNKNOWN)
			sample_append(a, f, json_pack("{ss}", "program", p->name), p->misses);
}

/* clang-format off */
#define COUNTER(name_, unit_, help_, append_, ...) \
	{.metric = {"weightd_trace_" name_, "counter", (unit_), (help_)}, .append = (append_), __VA_ARGS__}
#define GAUGE(name_, unit_, help_, append_, ...) \
	{.metric = {"weightd_trace_" name_, "gauge", (unit_), (help_)}, .append = (append_), __VA_ARGS__}
#define OF_METRICS(member) .offset = offsetof(struct metrics, member)
#define OF_PEER(member) .offset = offsetof(struct peer_totals, member)
#define OF_PROGRAM(member) .offset = offsetof(struct program, member)
#define OF_COUNTER(i) .offset = offsetof(struct peer_totals, counter) + (i) * sizeof(uint64_t)

static const struct family FAMILIES[] = {
	GAUGE("start_time_seconds", "seconds", "Start time of weightd-trace, since 1970.", append_one, OF_METRICS(started_ns)),
	GAUGE("meter_info", NULL, "The meter in use.", append_meter),
	GAUGE("hook_on", NULL, "1 if a program is attached there, or may be.", append_hooks),
	COUNTER("program_runs", NULL, "Runs of programs, while the kernel counted them.", append_programs, OF_PROGRAM(runs)),
	COUNTER("program_run_seconds", "seconds", "Time of these, without the way into the program.", append_programs, OF_PROGRAM(ns)),
	COUNTER("program_misses", NULL, "Runs that the kernel left out, as the program had interrupted itself.", append_misses),
	GAUGE("clients", NULL, "Clients that are connected.", append_clients),
	GAUGE("rows", NULL, "Rows of all clients, by the quality of their bytes.", append_rows),
	GAUGE("open_spans", NULL, "Spans that have begun and not ended.", append_spans),
	COUNTER("begun_spans", NULL, "Spans that began.", append_one, OF_METRICS(begun_spans)),
	COUNTER("ended_spans", NULL, "Spans that ended.", append_one, OF_METRICS(ended_spans)),
	COUNTER("span_seconds", "seconds", "Duration of the ended spans.", append_one, OF_METRICS(span_ns)),
	GAUGE("open_connections", NULL, "Connections that are open and counted.", append_open),
	COUNTER("opened_connections", NULL, "Connections that were counted.", append_peers, OF_PEER(opened)),
	COUNTER("closed_connections", NULL, "Of these, those that are counted no more.", append_peers, OF_PEER(closed)),
	COUNTER("submitted_bytes", "bytes", "Bytes handed to the kernel for a peer.", append_counters, OF_COUNTER(COUNTER_SUBMITTED)),
	COUNTER("delivered_bytes", "bytes", "Of these, acknowledged by it.", append_counters, OF_COUNTER(COUNTER_DELIVERED)),
	COUNTER("received_bytes", "bytes", "Bytes received from a peer, each once.", append_counters, OF_COUNTER(COUNTER_RECEIVED)),
	COUNTER("consumed_bytes", "bytes", "Of these, read by the program.", append_counters, OF_COUNTER(COUNTER_CONSUMED)),
	COUNTER("wire_bytes", "bytes", "Bytes that were sent, those sent again included.", append_counters, OF_COUNTER(COUNTER_WIRE)),
	COUNTER("retransmitted_bytes", "bytes", "Bytes that were sent again.", append_counters, OF_COUNTER(COUNTER_RETRANS_BYTES)),
	COUNTER("retransmitted_segments", NULL, "The segments that they were in.", append_counters,
		OF_COUNTER(COUNTER_RETRANS_SEGMENTS)),
	COUNTER("limited_seconds", "seconds", "Time of connections that send, by limit.", append_limits, OF_PEER(limit_ns)),
	COUNTER("stalled_seconds", "seconds", "Time in which no byte of a row in a span was delivered, by its largest limit.", append_limits,
		OF_PEER(stalled_ns)),
	COUNTER("lost_events", NULL, "Events that were lost.", append_lost),
	COUNTER("late_probes", NULL, "Files that a process could use before they were probed: its calls until then are unknown.",
		append_one, OF_METRICS(late_probes)),
	COUNTER("acts", NULL, "Acts of processes of this node that were seen.", append_events),
	GAUGE("rdma_port_up", NULL, "1 if a port of an RDMA device is active.", append_port_up),
	GAUGE("rdma_port_rate_bytes", "bytes", "Bytes a second that the port can carry.", append_port_rate),
	COUNTER("rdma_port_bytes", "bytes", "Bytes that the port carried, by its own count.", append_ports, .rdma_port_counts = RDMA_PORT_TRAFFIC),
	COUNTER("rdma_port_packets", NULL, "Packets that the port carried.", append_ports, .rdma_port_counts = RDMA_PORT_TRAFFIC),
	COUNTER("rdma_port_congestion_events", NULL, "Congestion that the port counted.", append_ports, .rdma_port_counts = RDMA_PORT_CONGESTION),
	COUNTER("rdma_port_errors", NULL, "Errors that the port counted.", append_ports, .rdma_port_counts = RDMA_PORT_ERROR),
};
/* clang-format on */

static size_t read_programs(const struct tracer *t, struct program ret[PROGRAMS_MAX])
{
	size_t n = 0;

	for (size_t i = 0; i < N_QUESTIONS; i++)
		if (t->questions[i]->kind->metrics && !*t->questions[i]->why)
			n = t->questions[i]->kind->metrics(t->questions[i], ret, n);
	return n;
}

/*
 * Updates all rows, for which a program runs. If no program has run more often than before, the kernel does
 * not count runs.
 */
static int metrics_mark(struct tracer *t, struct metrics_answer *a)
{
	struct program before[PROGRAMS_MAX];
	size_t n = read_programs(t, before);
	int r = rows_mark(t);

	a->n_programs = read_programs(t, a->programs);
	for (size_t i = 0; i < n; i++)
		a->has_runs |= a->programs[i].runs != before[i].runs;
	return r;
}

/* Adds what rows have to the totals of their peers. */
static int count_rows(struct tracer *t, struct metrics_answer *a)
{
	struct reading now;
	struct client *c;
	struct row *row;
	int r;

	list_for_each(c, &t->clients, link)
		list_for_each(row, &c->rows, link) {
			r = rows_look(c, row, &now);
			if (r < 0)
				return r;
			peer_totals_take(row, &now);
			a->n_rows[now.quality[COUNTER_SUBMITTED]]++;
		}
	return 0;
}

int metrics_op(struct request *q)
{
	struct client *c = q->client;
	cleanup(json_decrefp) json_t *packets = json_array();
	struct metrics_answer a = {.tracer = c->tracer, .packets = packets};
	json_t *packet, *row;
	size_t i;
	int r = metrics_mark(c->tracer, &a);

	if (r == 0)
		r = count_rows(c->tracer, &a);
	if (r < 0)
		return r;
	(void)rdma_ports_read(c->tracer->collector.sysfs, &a.ports,
			      &a.n_ports); /* most machines have none */
	for (i = 0; i < ARRAY_LEN(FAMILIES); i++)
		FAMILIES[i].append(&a, &FAMILIES[i]);
	free(a.ports);
	json_array_foreach(packets, i, packet)
	{
		row = json_pack("{ss}", "kind", "metric");
		(void)json_object_update(row, packet);
		packets_answer(c, row);
	}
	return 0;
}
