/*
 * Each client has one request at a time. Its answer is rows and a last packet with "end". Unsolicited packets
 * (follow.c) may stand between answers, too.
 */
#include "bpf/request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bpf/base/kernel_btf.h"
#include "bpf/client_event.h"
#include "bpf/client_row.h"
#include "bpf/ended_rows.h"
#include "bpf/event_recorder.h"
#include "bpf/follow.h"
#include "bpf/messages.h"
#include "bpf/metrics.h"
#include "bpf/packets.h"
#include "bpf/rdma/rdma.h"
#include "bpf/rows.h"
#include "bpf/span.h"
#include "bpf/tracer.h"
#include "bpf/watch_request.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

static int op_tag(struct request *q)
{
	struct meter *m = q->client->tracer->collector.meter;
	const json_t *dialled = json_object_get(q->json, "dialled");
	enum since since = SINCE_NOW;
	struct row *row;
	int r;

	if (q->fd < 0) {
		(void)snprintf(q->why, sizeof(q->why),
			       "the request must carry the descriptor of the socket");
		return -EINVAL;
	}
	if (dialled && !json_is_boolean(dialled)) {
		(void)snprintf(q->why, sizeof(q->why), "'dialled' must be true or false");
		return -EINVAL;
	}
	r = client_row_take(q, &row);
	if (r < 0)
		return r;
	if (dialled)
		since = json_is_true(dialled) ? SINCE_DIALLED : SINCE_ACCEPTED;
	r = m->kind->tag(m, q->fd, row->number, since);
	if (r == -ENOTSOCK)
		(void)snprintf(q->why, sizeof(q->why), "the descriptor is no TCP socket");
	if (r == -EXDEV)
		(void)snprintf(q->why, sizeof(q->why),
			       "the socket is in a network namespace that weightd-trace cannot enter, "
			       "which takes CAP_SYS_ADMIN");
	return r;
}

/* Answers with what all rows of a sync have now. */
static int read_rows(struct client *c, const char *sync)
{
	struct meter *m = c->tracer->collector.meter;
	struct reading now;
	struct row *row;
	int r;

	list_for_each(row, &c->rows, link) {
		if (strcmp(row->label.sync, sync) != 0)
			continue;
		r = rows_look(c, row, &now);
		if (r < 0)
			return r;
		packets_answer(c, row_json(row, "row", m, &now));
	}
	return 0;
}

/* Returns the request's "sync"; NULL, with a reason in the request: it has none that is valid. */
static const char *sync_name(struct request *q)
{
	const char *sync = json_string_value(json_object_get(q->json, "sync"));

	if (sync && *sync && strlen(sync) < ROW_TEXT_SIZE)
		return sync;
	(void)snprintf(q->why, sizeof(q->why), "'sync' must be a text of 1 to %d bytes",
		       ROW_TEXT_SIZE - 1);
	return NULL;
}

/*
 * Only root may see what other users have counted, and the user of the tracer, which could read it out of the
 * tracer's memory. Returns 0, or -EPERM with a reason in the request.
 */
static int check_observer(struct request *q)
{
	uid_t uid = q->client->uid, ours = geteuid();
	char also[64] = "";

	if (uid == 0 || (uid == ours && uid != OVERFLOW_UID))
		return 0;
	if (ours != 0 && ours != OVERFLOW_UID)
		(void)snprintf(also, sizeof(also), " and user %u, which runs weightd-trace,", ours);
	(void)snprintf(q->why, sizeof(q->why),
		       "only root%s may see what other users count or do: try it with sudo", also);
	return -EPERM;
}

static int op_begin(struct request *q)
{
	struct client *c = q->client;
	const char *sync = sync_name(q);
	uint64_t now_ns = num_now_ns();
	struct reading now;
	struct row *row;
	int r;

	if (!sync)
		return -EINVAL;
	if (rows_find_span(c, sync)) {
		(void)snprintf(q->why, sizeof(q->why), "'%s' has already begun", sync);
		return -EEXIST;
	}
	if (c->n_spans == SPANS_MAX) {
		(void)snprintf(q->why, sizeof(q->why),
			       "a client may have at most %u syncs that have begun; 'end' one",
			       SPANS_MAX);
		return -EDQUOT;
	}
	r = rows_mark(c->tracer);
	if (r < 0)
		return r;
	list_for_each(row, &c->rows, link) {
		if (strcmp(row->label.sync, sync) != 0)
			continue;
		r = rows_read(c->tracer, row, &now);
		if (r < 0)
			return r;
		row_begin(row, &now.totals, now_ns);
		row->n_misses = c->tracer->n_misses;
	}
	return span_new(c, sync, now_ns) ? 0 : -ENOMEM;
}

static int op_read(struct request *q)
{
	const char *sync = sync_name(q);
	int r;

	if (!sync)
		return -EINVAL;
	r = rows_mark(q->client->tracer);
	return r < 0 ? r : read_rows(q->client, sync);
}

static int op_end(struct request *q)
{
	const char *sync = sync_name(q);
	struct span *span;
	int r;

	if (!sync)
		return -EINVAL;
	span = rows_find_span(q->client, sync);
	if (!span) {
		(void)snprintf(q->why, sizeof(q->why), "'%s' has not begun", sync);
		return -ENOENT;
	}
	follow_take_tcp_events(q->client->tracer, true); /* events before its end */
	r = op_read(q);
	if (r == 0)
		span_free(q->client, span);
	return r;
}

/* Rows go, with their span; sockets that were counted in them are counted no more. */
static int op_forget(struct request *q)
{
	struct client *c = q->client;
	const char *sync = sync_name(q);
	struct row *row, *next;
	struct span *span;

	if (!sync)
		return -EINVAL;
	span = rows_find_span(c, sync);
	follow_take_tcp_events(c->tracer, true);
	(void)rows_mark(c->tracer); /* without it, the totals of peers would lack bytes */
	if (span)
		span_free(c, span);
	messages_free(messages_find(c, sync, false));
	list_for_each_safe(row, next, &c->rows, link)
		if (!strcmp(row->label.sync, sync))
			client_row_free(c, row);
	return 0;
}

static int op_messages(struct request *q)
{
	const struct tracer *t = q->client->tracer;
	json_int_t seconds = json_integer_value(json_object_get(q->json, "seconds"));
	const json_t *all = json_object_get(q->json, "all");
	const char *sync = sync_name(q);
	int r;

	if (!sync)
		return -EINVAL;
	if (all && !json_is_boolean(all)) {
		(void)snprintf(q->why, sizeof(q->why), "'all' must be true or false");
		return -EINVAL;
	}
	if (json_is_true(all) && check_observer(q) < 0)
		return -EPERM;
	if (seconds < 1 || seconds > MESSAGES_SECONDS_MAX) {
		(void)snprintf(q->why, sizeof(q->why), "'seconds' must be a number from 1 to %d",
			       MESSAGES_SECONDS_MAX);
		return -EINVAL;
	}
	if (!t->collector.meter->kind->begin_calls) {
		(void)snprintf(q->why, sizeof(q->why), "only BPF can count calls: %s",
			       t->collector.why_not_bpf);
		return -EOPNOTSUPP;
	}
	r = messages_begin(q->client, sync, json_is_true(all), (unsigned)seconds);
	if (r == -ENOENT && json_is_true(all))
		(void)snprintf(q->why, sizeof(q->why), "no client has a row of '%s' now", sync);
	else if (r == -ENOENT)
		(void)snprintf(q->why, sizeof(q->why),
			       "'%s' has no row; 'tag' a socket or 'watch' a process first", sync);
	else if (r == -EDQUOT)
		(void)snprintf(q->why, sizeof(q->why),
			       "a client that is not root's may count the calls of at most %u syncs; "
			       "wait for one to end, or 'forget' it",
			       MESSAGES_MAX);
	else if (r == -EOPNOTSUPP)
		(void)snprintf(q->why, sizeof(q->why),
			       "this kernel has no tracepoints of calls, which need Linux 6.3");
	return r;
}

static void answer_flow(const struct sample *s, void *context)
{
	const struct row *row = rows_own(context, s->row);

	if (row)
		packets_answer(context, row_sample_json(row, "flow", s));
}

static int op_flows(struct request *q)
{
	struct client *c = q->client;
	int r;

	r = c->tracer->collector.meter->kind->mark(c->tracer->collector.meter, answer_flow, c);
	return r;
}

static int op_follow(struct request *q)
{
	follow_begin(q->client, &q->client->follows);
	return 0;
}

/* Answers with the rows of all clients. */
static int op_rows(struct request *q)
{
	struct client *c = q->client, *owner;
	struct reading now;
	struct row *row;
	int r = rows_mark(c->tracer);

	if (r < 0)
		return r;
	list_for_each(owner, &c->tracer->clients, link)
		list_for_each(row, &owner->rows, link) {
			r = rows_look(owner, row, &now);
			if (r < 0)
				return r;
			packets_answer(c, follow_row_json(owner, row, "row", &now));
		}
	if (json_is_true(json_object_get(q->json, "ports")))
		rdma_add_ports(c->tracer->collector.sysfs, &q->answer);
	return 0;
}

/* As of now, and from then on what changes. */
static int op_observe(struct request *q)
{
	struct client *c = q->client, *owner;
	struct span *span;
	int r = op_rows(q);

	if (r < 0)
		return r;
	list_for_each(owner, &c->tracer->clients, link)
		list_for_each(span, &owner->spans, link)
			packets_answer(c, follow_span_json(owner, span, "begin", span->began_ns));
	follow_begin(c, &c->observes);
	return 0;
}

static int op_doctor(struct request *q)
{
	struct question *const *questions = q->client->tracer->questions;

	kernel_btf_hold();
	for (size_t i = 0; i < N_QUESTIONS; i++)
		questions[i]->kind->doctor(questions[i], &q->answer);
	kernel_btf_drop();
	return 0;
}

static int question_ask(struct request *q, enum question_number number)
{
	struct question *question = q->client->tracer->questions[number];

	return question->kind->answer(question, &q->answer);
}

static int op_rdma(struct request *q)
{
	return question_ask(q, QUESTION_RDMA);
}

static int op_attached(struct request *q)
{
	return question_ask(q, QUESTION_PROBES);
}

static const struct operation {
	const char *name;
	int (*fn)(struct request *q);
	bool observes; /* it is for those that may */
} operations[] = {
	{"tag", op_tag, false},           {"watch", watch_request_op, false},
	{"begin", op_begin, false},       {"read", op_read, false},
	{"end", op_end, false},           {"forget", op_forget, false},
	{"flows", op_flows, false},       {"follow", op_follow, false},
	{"rows", op_rows, true},          {"observe", op_observe, true},
	{"messages", op_messages, false}, {"doctor", op_doctor, false},
	{"past", ended_rows_op, true},    {"acts", event_recorder_op, true},
	{"tell", client_event_op, false}, {"metrics", metrics_op, true},
	{"rdma", op_rdma, false},         {"attached", op_attached, true},
};

/*
 * Frees rows that a failed request made: they have no counts, and would show 0 for unknown bytes.
 */
static void drop_rows_since(struct client *c, uint32_t last)
{
	struct row *row, *next;

	list_for_each_safe(row, next, &c->rows, link)
		if (row->number > last)
			client_row_free(c, row);
}

static void list_operations(char *why, size_t size)
{
	size_t n = (size_t)snprintf(why, size, "'op' must be one of ");

	for (size_t i = 0; i < ARRAY_LEN(operations) && n < size; i++)
		n += (size_t)snprintf(why + n, size - n, "%s%s", i ? ", " : "", operations[i].name);
}

static int request_perform(struct request *q)
{
	const char *op = json_string_value(json_object_get(q->json, "op"));
	uint32_t last_row = q->client->tracer->last_row;
	int r;

	for (size_t i = 0; op && i < ARRAY_LEN(operations); i++) {
		if (strcmp(operations[i].name, op) != 0)
			continue;
		r = operations[i].observes ? check_observer(q) : 0;
		if (r == 0)
			r = operations[i].fn(q);
		if (r < 0)
			drop_rows_since(q->client, last_row);
		return r;
	}
	list_operations(q->why, sizeof(q->why));
	return -EINVAL;
}

static void add_row(struct answer *a, json_t *row)
{
	packets_answer(container_of(a, struct request, answer)->client, row);
}

json_t *request_serve(struct client *c, const char *text, size_t size, int fd)
{
	cleanup(json_decrefp) json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	struct request q = {.client = c, .json = json, .fd = fd};
	int r = -EBADMSG;

	c->cut = 0;
	q.answer = (struct answer){.request = json,
				   .may_observe = check_observer(&q) == 0,
				   .add = add_row,
				   .why = q.why,
				   .why_size = sizeof(q.why)};
	*q.why = 0;
	if (json_is_object(json))
		r = request_perform(&q);
	else
		(void)snprintf(q.why, sizeof(q.why),
			       "a request must be an object of JSON of less than %d bytes, with at "
			       "most one descriptor",
			       PACKET_MAX);
	if (r < 0)
		return json_pack("{sb ss}", "end", 1, "error", *q.why ? q.why : strerror(-r));
	if (c->cut > 0)
		return json_pack("{sb sI}", "end", 1, "cut", (json_int_t)c->cut);
	return json_pack("{sb}", "end", 1);
}
