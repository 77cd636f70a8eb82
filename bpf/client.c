/*
 * Requests come one at a time from each client and are answered with rows and a last packet that
 * has "end". What follow.c tells comes between answers, too.
 */
#include "bpf/client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/follow.h"
#include "bpf/messages.h"
#include "bpf/meter-bpf.h"
#include "bpf/row.h"
#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define PACKET_MAX 4096 /* of a request */
#define OVERFLOW_UID 65534u /* of any user whom this namespace does not know */
#define QUEUE_MAX 8192 /* packets */

struct packet {
	struct list link; /* client::queue */
	char *text;
};

/* A process whose sockets are counted. */
struct watch {
	struct list link; /* client::watches */
	struct client *client;
	struct waiter waiter; /* of its end */
	pid_t pid;
};

struct request {
	struct client *client;
	const json_t *json;
	int fd; /* that came with it, or -1 */
	char why[2 * WHY_SIZE]; /* of a refusal */
};

static void packet_free(struct client *c, struct packet *p)
{
	list_remove(&p->link);
	c->n_queue--;
	free(p->text);
	free(p);
}

/* What is broken ends with the next event of its descriptor, when nobody is in the middle of it. */
static void flush(struct client *c)
{
	struct packet *p, *next;

	list_for_each_safe(p, next, &c->queue, link) {
		if (send(c->waiter.fd, p->text, strlen(p->text), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
		    errno == EAGAIN)
			break;
		packet_free(c, p);
	}
	loop_modify(c->tracer->loop_fd, &c->waiter, list_empty(&c->queue) ? EPOLLIN : EPOLLOUT);
}

void client_say(struct client *c, json_t *json, unsigned queue_max)
{
	cleanup(json_decrefp) json_t *owned = json;
	struct packet *p = c->n_queue < queue_max ? malloc(sizeof(*p)) : NULL;

	if (p)
		p->text = json ? json_dumps(json, JSON_COMPACT) : NULL;
	if (!p || !p->text) {
		free(p);
		c->lost++;
		return;
	}
	list_append(&c->queue, &p->link);
	c->n_queue++;
	flush(c);
}

static void answer(struct client *c, json_t *json)
{
	client_say(c, json, QUEUE_MAX);
}

/* For which there is room always: it is waited for. */
static void answer_end(struct client *c, json_t *json)
{
	client_say(c, json, UINT_MAX);
}

static struct row *find_row(const struct client *c, uint32_t number)
{
	struct row *row;

	list_for_each(row, &c->rows, link)
		if (row->number == number)
			return row;
	return NULL;
}

struct row *client_find_row(const struct tracer *t, uint32_t number, struct client **ret_owner)
{
	struct client *c;
	struct row *row;

	list_for_each(c, &t->clients, link) {
		row = find_row(c, number);
		if (row) {
			*ret_owner = c;
			return row;
		}
	}
	return NULL;
}

struct span *client_find_span(const struct client *c, const char *sync)
{
	struct span *span;

	list_for_each(span, &c->spans, link)
		if (!strcmp(span->sync, sync))
			return span;
	return NULL;
}

static void row_free(struct client *c, struct row *row)
{
	struct meter *m = c->tracer->meter;

	messages_end_row(m, row);
	m->kind->remove_row(m, row->number);
	list_remove(&row->link);
	c->n_rows--;
	free(row->calls);
	free(row);
}

/* While its rows are there still: who observes is told what is in them. */
static void span_free(struct client *c, struct span *span)
{
	follow_span_ends(c, span);
	tracer_count_spans(c->tracer, -1);
	list_remove(&span->link);
	c->n_spans--;
	free(span);
}

static void watch_free(struct watch *w)
{
	struct tracer *t = w->client->tracer;

	t->meter->kind->unwatch(t->meter, w->pid);
	loop_remove(t->loop_fd, &w->waiter);
	(void)fd_close(w->waiter.fd);
	list_remove(&w->link);
	free(w);
}

void client_free(struct client *c)
{
	struct messages *messages, *next_messages;
	struct packet *p, *next_packet;
	struct watch *w, *next_watch;
	struct span *span, *next_span;
	struct row *row, *next_row;

	list_for_each_safe(w, next_watch, &c->watches, link)
		watch_free(w);
	if (c->n_spans > 0)
		(void)tracer_mark(c->tracer);
	list_for_each_safe(span, next_span, &c->spans, link)
		span_free(c, span);
	list_for_each_safe(messages, next_messages, &c->messages, link)
		messages_free(messages);
	list_for_each_safe(row, next_row, &c->rows, link)
		row_free(c, row);
	list_for_each_safe(p, next_packet, &c->queue, link)
		packet_free(c, p);
	loop_remove(c->tracer->loop_fd, &c->waiter);
	(void)fd_close(c->waiter.fd);
	list_remove(&c->link);
	c->tracer->n_clients--;
	free(c);
}

/* The row of that label, which may be new. */
static int take_row(struct request *q, struct row **ret)
{
	struct client *c = q->client;
	struct meter *m = c->tracer->meter;
	cleanup(freep) struct row *row = NULL;
	json_int_t expected;
	struct label label;
	const char *why;
	int r;

	if (!label_parse(q->json, &label, &why) || !row_parse_expected(q->json, &expected, &why)) {
		(void)snprintf(q->why, sizeof(q->why), "%s", why);
		return -EINVAL;
	}
	list_for_each(*ret, &c->rows, link)
		if (label_equal(&(*ret)->label, &label)) {
			if (expected >= 0)
				(*ret)->expected = expected;
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
	row->began_ns = num_now_ns();
	r = m->kind->add_row(m, row->number);
	if (r < 0)
		return r;
	r = messages_take_row(c, row);
	if (r < 0) {
		m->kind->remove_row(m, row->number);
		return r;
	}
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
	r = take_row(q, &row);
	if (r < 0)
		return r;
	if (dialled)
		since = json_is_true(dialled) ? SINCE_DIALLED : SINCE_ACCEPTED;
	r = m->kind->tag(m, q->fd, row->number, since);
	if (r == -ENOTSOCK)
		(void)snprintf(q->why, sizeof(q->why), "the descriptor is none of a TCP socket");
	return r;
}

/* The process is gone, and its number is another's soon. */
static void on_exit_of_watched(struct waiter *w, uint32_t events)
{
	(void)events;
	watch_free(container_of(w, struct watch, waiter));
}

/* Its number cannot become another's while `ret_fd` says that it lives. */
static int open_process(struct request *q, pid_t pid, int *ret_fd)
{
	cleanup(fd_closep) int fd = pidfd_open(pid, 0);
	char path[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), "/proc/%d", pid);
	if (fd < 0 || stat(path, &st) < 0) {
		(void)snprintf(q->why, sizeof(q->why), "there is no process %d", pid);
		return -ESRCH;
	}
	if (q->client->uid != 0 && (q->client->uid != st.st_uid || q->client->uid == OVERFLOW_UID)) {
		(void)snprintf(q->why, sizeof(q->why),
			       "process %d is another user's: only root may watch it", pid);
		return -EPERM;
	}
	*ret_fd = take_fd(fd);
	return 0;
}

static int op_watch(struct request *q)
{
	struct tracer *t = q->client->tracer;
	json_int_t pid = json_integer_value(json_object_get(q->json, "pid"));
	cleanup(freep) struct watch *w = calloc(1, sizeof(*w));
	struct row *row;
	int r;

	if (!w)
		return -ENOMEM;
	if (!t->meter->kind->watch) {
		(void)snprintf(q->why, sizeof(q->why),
			       "sockets of processes are followed by BPF alone: %s", t->why_not_bpf);
		return -EOPNOTSUPP;
	}
	if (pid <= 0 || pid > INT32_MAX) {
		(void)snprintf(q->why, sizeof(q->why), "'pid' has to be the number of a process");
		return -EINVAL;
	}
	w->client = q->client;
	w->pid = (pid_t)pid;
	w->waiter = (struct waiter){.fd = -1, .ready = on_exit_of_watched};
	r = open_process(q, w->pid, &w->waiter.fd);
	if (r == 0)
		r = take_row(q, &row);
	if (r == 0)
		r = t->meter->kind->watch(t->meter, w->pid, row->number);
	if (r == -EEXIST)
		(void)snprintf(q->why, sizeof(q->why), "process %d is watched already", w->pid);
	if (r == 0) {
		r = loop_add(t->loop_fd, &w->waiter);
		if (r < 0)
			t->meter->kind->unwatch(t->meter, w->pid);
	}
	if (r < 0) {
		(void)fd_close(w->waiter.fd);
		return r;
	}
	list_append(&q->client->watches, &w->link);
	(void)take_ptr(w);
	return 0;
}

/* What all rows of a sync have now. */
static int read_rows(struct client *c, const char *sync)
{
	bool is_in_span = client_find_span(c, sync) != NULL;
	struct meter *m = c->tracer->meter;
	struct reading now;
	struct row *row;
	int r;

	list_for_each(row, &c->rows, link) {
		if (strcmp(row->label.sync, sync) != 0)
			continue;
		r = m->kind->read(m, row->number, &now);
		if (r < 0)
			return r;
		row_look(row, &now, is_in_span);
		answer(c, row_json(row, "row", m, &now));
	}
	return 0;
}

static const char *sync_of(struct request *q)
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
	struct meter *m = c->tracer->meter;
	const char *sync = sync_of(q);
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
		r = m->kind->read(m, row->number, &now);
		if (r < 0)
			return r;
		row->before = now.totals;
		row->began_ns = now_ns;
		row->stall.since_ns = 0;
	}
	(void)strcpy(span->sync, sync);
	span->began_ns = now_ns;
	list_append(&c->spans, &span->link);
	c->n_spans++;
	follow_span_begins(c, take_ptr(span));
	tracer_count_spans(c->tracer, 1);
	return 0;
}

static int op_read(struct request *q)
{
	const char *sync = sync_of(q);
	int r;

	if (!sync)
		return -EINVAL;
	r = tracer_mark(q->client->tracer);
	return r < 0 ? r : read_rows(q->client, sync);
}

static int op_end(struct request *q)
{
	const char *sync = sync_of(q);
	struct span *span;
	int r;

	if (!sync)
		return -EINVAL;
	span = client_find_span(q->client, sync);
	if (!span) {
		(void)snprintf(q->why, sizeof(q->why), "'%s' has not begun", sync);
		return -ENOENT;
	}
	r = op_read(q);
	if (r == 0)
		span_free(q->client, span);
	return r;
}

/* Rows go, with their span; sockets that were counted in them are counted no more. */
static int op_forget(struct request *q)
{
	struct client *c = q->client;
	const char *sync = sync_of(q);
	struct row *row, *next;
	struct span *span;

	if (!sync)
		return -EINVAL;
	span = client_find_span(c, sync);
	if (span) {
		(void)tracer_mark(c->tracer);
		span_free(c, span);
	}
	messages_free(messages_find(c, sync));
	list_for_each_safe(row, next, &c->rows, link)
		if (!strcmp(row->label.sync, sync))
			row_free(c, row);
	return 0;
}

static int op_messages(struct request *q)
{
	const struct tracer *t = q->client->tracer;
	json_int_t seconds = json_integer_value(json_object_get(q->json, "seconds"));
	const char *sync = sync_of(q);
	int r;

	if (!sync)
		return -EINVAL;
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
	r = messages_begin(q->client, sync, (unsigned)seconds);
	if (r == -ENOENT)
		(void)snprintf(q->why, sizeof(q->why),
			       "'%s' has no row; 'tag' or 'watch' what is to be counted first",
			       sync);
	else if (r == -EOPNOTSUPP)
		(void)snprintf(q->why, sizeof(q->why),
			       "this kernel does not tell of calls; Linux 6.3 was the first to");
	return r;
}

static void answer_flow(const struct sample *s, void *context)
{
	const struct row *row = find_row(context, s->row);

	if (row)
		answer(context, row_sample_json(row, "flow", s));
}

/* `what` did not fit into the queue, if any was lost since. */
static int check_all_told(struct request *q, uint64_t lost, const char *what)
{
	if (q->client->lost == lost)
		return 0;
	q->client->lost = lost;
	(void)snprintf(q->why, sizeof(q->why), "%s than the %u that can be told", what, QUEUE_MAX);
	return -EMSGSIZE;
}

static int op_flows(struct request *q)
{
	struct client *c = q->client;
	uint64_t lost = c->lost;
	int r;

	r = c->tracer->meter->kind->mark(c->tracer->meter, answer_flow, c);
	return r < 0 ? r : check_all_told(q, lost, "it has more connections");
}

static int op_follow(struct request *q)
{
	follow_begin(q->client, &q->client->follows);
	return 0;
}

/* What others have counted is for root, and for whom the tracer runs as, who could read it out of its memory. */
static int may_observe(struct request *q)
{
	uid_t uid = q->client->uid;

	if (uid == 0 || (uid == geteuid() && uid != OVERFLOW_UID))
		return 0;
	(void)snprintf(q->why, sizeof(q->why),
		       "what others have counted is shown to root and to user %u, who runs "
		       "weightd-trace: try it with sudo",
		       geteuid());
	return -EPERM;
}

/* Of all clients. */
static int op_rows(struct request *q)
{
	struct client *c = q->client, *owner;
	uint64_t lost = c->lost;
	struct reading now;
	struct row *row;
	int r = may_observe(q);

	if (r == 0)
		r = tracer_mark(c->tracer);
	if (r < 0)
		return r;
	list_for_each(owner, &c->tracer->clients, link)
		list_for_each(row, &owner->rows, link) {
			r = c->tracer->meter->kind->read(c->tracer->meter, row->number, &now);
			if (r < 0)
				return r;
			answer(c, follow_row_json(owner, row, "row", &now));
		}
	return check_all_told(q, lost, "there are more rows");
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
			answer(c, follow_span_json(owner, span, "begin", span->began_ns));
	follow_begin(c, &c->observes);
	return 0;
}

static int op_doctor(struct request *q)
{
	struct client *c = q->client;
	const struct tracer *t = c->tracer;
	char why[WHY_SIZE];

	for (size_t i = 0; i < n_hooks; i++) {
		bool works = hook_probe(&hooks[i], why) == 0;

		answer(c, json_pack("{ss ss sb ss? ss}", "kind", "hook", "hook", hooks[i].name,
				    "on", works, "why", works ? NULL : why, "lost", hooks[i].lost));
	}
	answer(c, json_pack("{ss ss ss?}", "kind", "meter", "meter", t->meter->kind->name, "why",
			    *t->why_not_bpf ? t->why_not_bpf : NULL));
	return 0;
}

static const struct operation {
	const char *name;
	int (*fn)(struct request *q);
} operations[] = {
	{"tag", op_tag},         {"watch", op_watch},       {"begin", op_begin},
	{"read", op_read},       {"end", op_end},           {"forget", op_forget},
	{"flows", op_flows},     {"follow", op_follow},     {"rows", op_rows},
	{"observe", op_observe}, {"messages", op_messages}, {"doctor", op_doctor},
};

/* Nothing is counted in them: they would say 0 of what nobody knows. */
static void drop_rows_since(struct client *c, uint32_t last)
{
	struct row *row, *next;

	list_for_each_safe(row, next, &c->rows, link)
		if (row->number > last)
			row_free(c, row);
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
	(void)snprintf(
		q->why, sizeof(q->why),
		"'op' has to be tag, watch, begin, read, end, forget, flows, follow, rows, observe, "
		"messages or doctor");
	return -EINVAL;
}

/* One packet, and the descriptor that came with it: more than one is none. 0 at the end. */
static ssize_t receive(int fd, char text[PACKET_MAX], int *ret_fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_LEN(sizeof(int))]; /* CMSG_SPACE has room for two */
	struct iovec iov = {.iov_base = text, .iov_len = PACKET_MAX};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	const struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);

	*ret_fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	if (n > 0 && m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		*ret_fd = fd_close(*ret_fd);
		return -EBADMSG;
	}
	return n < 0 ? -errno : n;
}

/* Closes the descriptor before it answers: who has the answer finds that it is not kept. */
static void serve(struct client *c, const char *text, size_t size, int *fd)
{
	cleanup(json_decrefp) json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	struct request q = {.client = c, .json = json, .fd = *fd};
	int r = -EBADMSG;

	if (json_is_object(json))
		r = perform(&q);
	else
		(void)snprintf(
			q.why, sizeof(q.why),
			"a request has to be an object of JSON of less than %d bytes, with one descriptor "
			"at most",
			PACKET_MAX);
	*fd = fd_close(*fd);
	if (r < 0)
		answer_end(c,
			   json_pack("{sb ss}", "end", 1, "error", *q.why ? q.why : strerror(-r)));
	else
		answer_end(c, json_pack("{sb}", "end", 1));
}

static void on_ready(struct waiter *w, uint32_t events)
{
	struct client *c = container_of(w, struct client, waiter);
	cleanup(fd_closep) int fd = -1;
	char text[PACKET_MAX];
	ssize_t n;

	if (events & EPOLLOUT && !(events & (EPOLLHUP | EPOLLERR))) {
		flush(c);
		if (c->is_behind)
			follow_catch_up(c);
		return;
	}
	n = receive(w->fd, text, &fd);
	if (n == -EAGAIN)
		return;
	if (n > 0 || n == -EBADMSG)
		serve(c, text, n > 0 ? (size_t)n : 0, &fd);
	else
		client_free(c);
}

/* As it was when it connected: "" where that cannot be known. */
static void read_comm(struct client *c)
{
	cleanup(fd_closep) int fd = -1;
	char path[32];
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/%d/comm", c->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, c->comm, sizeof(c->comm));
	c->comm[n > 0 ? n - 1 : 0] = '\0'; /* its line feed */
}

int client_add(struct tracer *t, int fd)
{
	struct client *c = calloc(1, sizeof(*c));
	struct ucred peer;
	socklen_t n = sizeof(peer);
	int r = -ENOMEM;

	if (c && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
		r = -errno;
	else if (c && t->n_clients == CLIENTS_MAX)
		r = -EUSERS;
	else if (c) {
		c->waiter = (struct waiter){.fd = fd, .ready = on_ready};
		r = loop_add(t->loop_fd, &c->waiter);
	}
	if (r < 0) {
		(void)fd_close(fd);
		free(c);
		return r;
	}
	c->tracer = t;
	c->number = ++t->last_client;
	c->uid = peer.uid;
	c->pid = peer.pid;
	read_comm(c);
	list_init(&c->rows);
	list_init(&c->spans);
	list_init(&c->watches);
	list_init(&c->messages);
	list_init(&c->queue);
	list_append(&t->clients, &c->link);
	t->n_clients++;
	return 0;
}
