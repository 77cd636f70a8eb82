/*
 * Requests come one at a time from each client and are answered with rows and a last packet that
 * has "end". What follow.c tells comes between answers, too.
 */
#include "bpf/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/client_event.h"
#include "bpf/ended_rows.h"
#include "bpf/event/event.h"
#include "bpf/event/fd_passing.h"
#include "bpf/follow.h"
#include "bpf/messages.h"
#include "bpf/metrics.h"
#include "bpf/probe/probes.h"
#include "bpf/probe/usdt.h"
#include "bpf/rdma/rdma.h"
#include "bpf/tcp/meter-bpf.h"
#include "bpf/tcp/peer_totals.h"
#include "bpf/tracer.h"
#include "bpf/watch.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

/* Of what the request is about. */
static void init_process(struct process *p, const struct request *q)
{
	const struct client *c = q->client;

	if (q->cgroup) {
		*p = (struct process){.cgroup = strdup(q->cgroup)};
		return;
	}
	process_init(p, q->pid ? q->pid : c->pid);
	if (!q->pid)
		(void)strcpy(p->comm, c->comm);
}

int request_take_row(struct request *q, struct row **ret)
{
	struct client *c = q->client;
	struct meter *m = c->tracer->meter;
	cleanup(freep) struct row *row = NULL;
	const char *transport, *why;
	json_int_t expected;
	struct label label;
	int r;

	if (!label_parse(q->json, &label, &why) || !row_parse_expected(q->json, &expected, &why) ||
	    !row_parse_transport(q->json, &transport, &why)) {
		(void)snprintf(q->why, sizeof(q->why), "%s", why);
		return -EINVAL;
	}
	list_for_each(*ret, &c->rows, link)
		if (label_equal(&(*ret)->label, &label)) {
			if (expected >= 0)
				(*ret)->expected = expected;
			if (transport)
				(void)strcpy((*ret)->transport, transport);
			return 0;
		}
	if (c->n_rows == ROWS_MAX) {
		(void)snprintf(q->why, sizeof(q->why),
			       "no client may have more than %u rows; 'forget' a sync that is over",
			       ROWS_MAX);
		return -EDQUOT;
	}
	row = calloc(1, sizeof(*row));
	if (!row)
		return -ENOMEM;
	row->number = ++c->tracer->last_row;
	row->label = label;
	row->expected = expected;
	(void)strcpy(row->transport, transport ? transport : "tcp");
	row->began_ns = num_now_ns();
	row->n_misses = c->tracer->n_misses;
	r = m->kind->add_row(m, row->number);
	if (r < 0)
		return r;
	r = messages_take_row(c, row);
	if (r < 0) {
		m->kind->remove_row(m, row->number);
		return r;
	}
	init_process(&row->process, q);
	peer_totals_join(&c->tracer->metrics.peers, row);
	list_append(&c->rows, &row->link);
	c->n_rows++;
	*ret = take_ptr(row);
	return 0;
}

static int op_tag(struct request *q)
{
	struct meter *m = q->client->tracer->meter;
	const json_t *dialled = json_object_get(q->json, "dialled");
	enum since since = SINCE_NOW;
	struct row *row;
	int r;

	if (q->fd < 0) {
		(void)snprintf(q->why, sizeof(q->why),
			       "the descriptor of the socket has to come with the request");
		return -EINVAL;
	}
	if (dialled && !json_is_boolean(dialled)) {
		(void)snprintf(q->why, sizeof(q->why), "'dialled' has to be true or false");
		return -EINVAL;
	}
	r = request_take_row(q, &row);
	if (r < 0)
		return r;
	if (dialled)
		since = json_is_true(dialled) ? SINCE_DIALLED : SINCE_ACCEPTED;
	r = m->kind->tag(m, q->fd, row->number, since);
	if (r == -ENOTSOCK)
		(void)snprintf(q->why, sizeof(q->why), "the descriptor is none of a TCP socket");
	return r;
}

/* What all rows of a sync have now. */
static int read_rows(struct client *c, const char *sync)
{
	struct meter *m = c->tracer->meter;
	struct reading now;
	struct row *row;
	int r;

	list_for_each(row, &c->rows, link) {
		if (strcmp(row->label.sync, sync) != 0)
			continue;
		r = client_look(c, row, &now);
		if (r < 0)
			return r;
		client_answer(c, row_json(row, "row", m, &now));
	}
	return 0;
}

const char *request_sync(struct request *q)
{
	const char *sync = json_string_value(json_object_get(q->json, "sync"));

	if (sync && *sync && strlen(sync) < ROW_TEXT_SIZE)
		return sync;
	(void)snprintf(q->why, sizeof(q->why), "'sync' has to be a text of 1 to %d bytes",
		       ROW_TEXT_SIZE - 1);
	return NULL;
}

static int op_begin(struct request *q)
{
	struct client *c = q->client;
	const char *sync = request_sync(q);
	cleanup(freep) struct span *span = calloc(1, sizeof(*span));
	uint64_t now_ns = num_now_ns();
	struct reading now;
	struct row *row;
	int r;

	if (!sync)
		return -EINVAL;
	if (!span)
		return -ENOMEM;
	if (client_find_span(c, sync)) {
		(void)snprintf(q->why, sizeof(q->why), "'%s' has begun already", sync);
		return -EEXIST;
	}
	if (c->n_spans == SPANS_MAX) {
		(void)snprintf(q->why, sizeof(q->why),
			       "no client may have more than %u syncs that have begun; 'end' one",
			       SPANS_MAX);
		return -EDQUOT;
	}
	r = tracer_mark(c->tracer);
	if (r < 0)
		return r;
	list_for_each(row, &c->rows, link) {
		if (strcmp(row->label.sync, sync) != 0)
			continue;
		r = tracer_read(c->tracer, row, &now);
		if (r < 0)
			return r;
		row_begin(row, &now.totals, now_ns);
		row->n_misses = c->tracer->n_misses;
	}
	(void)strcpy(span->sync, sync);
	span->began_ns = now_ns;
	list_append(&c->spans, &span->link);
	c->n_spans++;
	follow_span_begins(c, take_ptr(span));
	tracer_count_spans(c->tracer, 1);
	c->tracer->metrics.begun_spans++;
	return 0;
}

static int op_read(struct request *q)
{
	const char *sync = request_sync(q);
	int r;

	if (!sync)
		return -EINVAL;
	r = tracer_mark(q->client->tracer);
	return r < 0 ? r : read_rows(q->client, sync);
}

static int op_end(struct request *q)
{
	const char *sync = request_sync(q);
	struct span *span;
	int r;

	if (!sync)
		return -EINVAL;
	span = client_find_span(q->client, sync);
	if (!span) {
		(void)snprintf(q->why, sizeof(q->why), "'%s' has not begun", sync);
		return -ENOENT;
	}
	tracer_take_tcp_events(q->client->tracer); /* which were before its end */
	r = op_read(q);
	if (r == 0)
		client_free_span(q->client, span);
	return r;
}

/* Rows go, with their span; sockets that were counted in them are counted no more. */
static int op_forget(struct request *q)
{
	struct client *c = q->client;
	const char *sync = request_sync(q);
	struct row *row, *next;
	struct span *span;

	if (!sync)
		return -EINVAL;
	span = client_find_span(c, sync);
	tracer_take_tcp_events(c->tracer);
	(void)tracer_mark(c->tracer); /* without it, less than there was is in the accounts */
	if (span)
		client_free_span(c, span);
	messages_free(messages_find(c, sync, false));
	list_for_each_safe(row, next, &c->rows, link)
		if (!strcmp(row->label.sync, sync))
			client_free_row(c, row);
	return 0;
}

static int op_messages(struct request *q)
{
	const struct tracer *t = q->client->tracer;
	json_int_t seconds = json_integer_value(json_object_get(q->json, "seconds"));
	const json_t *all = json_object_get(q->json, "all");
	const char *sync = request_sync(q);
	int r;

	if (!sync)
		return -EINVAL;
	if (all && !json_is_boolean(all)) {
		(void)snprintf(q->why, sizeof(q->why), "'all' has to be true or false");
		return -EINVAL;
	}
	if (json_is_true(all) && request_may_observe(q) < 0)
		return -EPERM;
	if (seconds < 1 || seconds > MESSAGES_SECONDS_MAX) {
		(void)snprintf(q->why, sizeof(q->why), "'seconds' has to be a number from 1 to %d",
			       MESSAGES_SECONDS_MAX);
		return -EINVAL;
	}
	if (!t->meter->kind->begin_calls) {
		(void)snprintf(q->why, sizeof(q->why), "calls are counted by BPF alone: %s",
			       t->why_not_bpf);
		return -EOPNOTSUPP;
	}
	r = messages_begin(q->client, sync, json_is_true(all), (unsigned)seconds);
	if (r == -ENOENT && json_is_true(all))
		(void)snprintf(q->why, sizeof(q->why), "nobody has a row of '%s' now", sync);
	else if (r == -ENOENT)
		(void)snprintf(q->why, sizeof(q->why),
			       "'%s' has no row; 'tag' or 'watch' what is to be counted first",
			       sync);
	else if (r == -EDQUOT)
		(void)snprintf(q->why, sizeof(q->why),
			       "no client but root's may have the calls of more than %u syncs counted; "
			       "wait for one to end, or 'forget' it",
			       MESSAGES_MAX);
	else if (r == -EOPNOTSUPP)
		(void)snprintf(q->why, sizeof(q->why),
			       "this kernel does not tell of calls; Linux 6.3 was the first to");
	return r;
}

static void answer_flow(const struct sample *s, void *context)
{
	const struct row *row = client_own_row(context, s->row);

	if (row)
		client_answer(context, row_sample_json(row, "flow", s));
}

static int op_flows(struct request *q)
{
	struct client *c = q->client;
	int r;

	r = c->tracer->meter->kind->mark(c->tracer->meter, answer_flow, c);
	return r;
}

static int op_follow(struct request *q)
{
	follow_begin(q->client, &q->client->follows);
	return 0;
}

int request_may_observe(struct request *q)
{
	uid_t uid = q->client->uid, ours = geteuid();
	char also[64] = "";

	if (uid == 0 || (uid == ours && uid != OVERFLOW_UID))
		return 0;
	if (ours != 0 && ours != OVERFLOW_UID)
		(void)snprintf(also, sizeof(also), " and to user %u, who runs weightd-trace", ours);
	(void)snprintf(q->why, sizeof(q->why),
		       "what others have counted, or did, is shown to root%s: try it with sudo",
		       also);
	return -EPERM;
}

/* Of all clients. */
static int op_rows(struct request *q)
{
	struct client *c = q->client, *owner;
	struct reading now;
	struct row *row;
	int r = request_may_observe(q);

	if (r == 0)
		r = tracer_mark(c->tracer);
	if (r < 0)
		return r;
	list_for_each(owner, &c->tracer->clients, link)
		list_for_each(row, &owner->rows, link) {
			r = client_look(owner, row, &now);
			if (r < 0)
				return r;
			client_answer(c, follow_row_json(owner, row, "row", &now));
		}
	if (json_is_true(json_object_get(q->json, "ports")))
		rdma_answer_ports(c);
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
			client_answer(c, follow_span_json(owner, span, "begin", span->began_ns));
	follow_begin(c, &c->observes);
	return 0;
}

static int op_doctor(struct request *q)
{
	struct client *c = q->client;
	struct tracer *t = c->tracer;
	char blind[WHY_SIZE] = "";

	hooks_look(&t->findings);
	for (size_t i = 0; i < N_HOOKS; i++) {
		const char *why = t->findings.why_not[i];

		client_answer(c, json_pack("{ss ss sb ss? ss}", "kind", "hook", "hook",
					   hooks[i].name, "on", !*why, "why", *why ? why : NULL,
					   "lost", hooks[i].lost));
	}
	probes_doctor(q);
	fd_passing_doctor(q);
	if (t->meter->kind->check)
		(void)t->meter->kind->check(t->meter, blind);
	client_answer(c, json_pack("{ss ss ss? ss? ss?}", "kind", "meter", "meter",
				   t->meter->kind->name, "why",
				   *t->why_not_bpf ? t->why_not_bpf : NULL, "limits",
				   *t->meter->limits ? t->meter->limits : NULL, "blind",
				   *blind ? blind : NULL));
	rdma_answer_doctor(c);
	return 0;
}

static const struct operation {
	const char *name;
	int (*fn)(struct request *q);
} operations[] = {
	{"tag", op_tag},         {"watch", watch_op},       {"begin", op_begin},
	{"read", op_read},       {"end", op_end},           {"forget", op_forget},
	{"flows", op_flows},     {"follow", op_follow},     {"rows", op_rows},
	{"observe", op_observe}, {"messages", op_messages}, {"doctor", op_doctor},
	{"past", ended_rows_op}, {"acts", event_op},        {"tell", client_event_op},
	{"metrics", metrics_op}, {"rdma", rdma_op},         {"attached", usdt_op},
};

/* Nothing is counted in them: they would say 0 of what nobody knows. */
static void drop_rows_since(struct client *c, uint32_t last)
{
	struct row *row, *next;

	list_for_each_safe(row, next, &c->rows, link)
		if (row->number > last)
			client_free_row(c, row);
}

static void list_operations(char *why, size_t size)
{
	size_t n = (size_t)snprintf(why, size, "'op' has to be one of ");

	for (size_t i = 0; i < ARRAY_LEN(operations) && n < size; i++)
		n += (size_t)snprintf(why + n, size - n, "%s%s", i ? ", " : "", operations[i].name);
}

static int perform(struct request *q)
{
	const char *op = json_string_value(json_object_get(q->json, "op"));
	uint32_t last_row = q->client->tracer->last_row;
	int r;

	for (size_t i = 0; op && i < ARRAY_LEN(operations); i++) {
		if (strcmp(operations[i].name, op) != 0)
			continue;
		r = operations[i].fn(q);
		if (r < 0)
			drop_rows_since(q->client, last_row);
		return r;
	}
	list_operations(q->why, sizeof(q->why));
	return -EINVAL;
}

json_t *request_serve(struct client *c, const char *text, size_t size, int fd)
{
	cleanup(json_decrefp) json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	struct request q = {.client = c, .json = json, .fd = fd};
	int r = -EBADMSG;

	c->cut = 0;
	if (json_is_object(json))
		r = perform(&q);
	else
		(void)snprintf(
			q.why, sizeof(q.why),
			"a request has to be an object of JSON of less than %d bytes, with one descriptor "
			"at most",
			PACKET_MAX);
	if (r < 0)
		return json_pack("{sb ss}", "end", 1, "error", *q.why ? q.why : strerror(-r));
	if (c->cut > 0)
		return json_pack("{sb sI}", "end", 1, "cut", (json_int_t)c->cut);
	return json_pack("{sb}", "end", 1);
}
