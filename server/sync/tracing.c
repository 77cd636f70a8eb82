/*
 * A descriptor that waits here keeps its connection open when the engine is gone, which the node at its other end has to
 * hear of. So one at a time is given away, and those of a sync that breaks are shut.
 */
#include "server/sync/tracing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/base/json_packet.h"

#define RETRY_NS 1000000000u
#define RETRY_MAX_NS 32000000000u
#define QUEUE_MAX 4096 /* requests; a weightd-trace that is so far behind is given up */
#define ANSWER_NS 30000000000u /* the same; a busy machine is slow */

struct request {
	struct list link; /* tracing::queue */
	json_t *json;
	int fd;
};

static void request_free(struct tracing *t, struct request *q)
{
	list_remove(&q->link);
	t->n_queue--;
	json_decref(q->json);
	(void)fd_close(q->fd);
	free(q);
}

static void hang_up(struct tracing *t)
{
	struct request *q, *next;

	list_for_each_safe(q, next, &t->queue, link)
		request_free(t, q);
	json_decref(t->rows);
	t->rows = NULL;
	t->is_asked = false;
	timer_stop(&t->patience);
	loop_remove(&t->source);
	t->source.fd = fd_close(t->source.fd);
}

static void retry_later(struct tracing *t)
{
	timer_start(t->loop, &t->retry, num_now_ns() + t->retry_ns);
}

static void tracing_lose(struct tracing *t, const char *why)
{
	void *it;

	if (!t->is_loss_told)
		log_warning("weightd-trace at %s %s: it counts nothing of what is under way",
			    t->path, why);
	t->is_loss_told = true;
	t->is_lost = true;
	if (!t->is_heard && t->retry_ns < RETRY_MAX_NS)
		t->retry_ns *= 2;
	hang_up(t);
	for (it = json_object_iter(t->begun); it; it = json_object_iter_next(t->begun, it))
		(void)json_object_iter_set_new(t->begun, it, json_false());
	if (json_object_size(t->begun) > 0)
		retry_later(t);
}

static void tracing_on_silence(struct timer *timer)
{
	tracing_lose(container_of(timer, struct tracing, patience), "does not answer");
}

static bool is_of(const struct request *q, const char *op, const char *sync)
{
	const char *of = json_string_value(json_object_get(q->json, "op"));
	const char *about = json_string_value(json_object_get(q->json, "sync"));

	return of && about && !strcmp(of, op) && !strcmp(about, sync);
}

static void send_next(struct tracing *t)
{
	struct request *q = list_first(&t->queue, struct request, link);
	cleanup(json_freep) json_t *json = NULL;
	int r;

	if (t->is_asked || !q)
		return;
	json = json_copy(q->json);
	(void)json_object_del(json, "note"); /* a note may be longer than weightd-trace accepts */
	r = json_packet_send(t->source.fd, json, &q->fd, q->fd >= 0);
	if (r < 0) { /* there is room for one, always */
		tracing_lose(t, "is gone");
		return;
	}
	t->is_asked = true;
	timer_start(t->loop, &t->patience, num_now_ns() + ANSWER_NS);
	t->rows = json_array();
}

static void tracing_hear(struct tracing *t)
{
	if (t->is_heard)
		return;
	log_info("weightd-trace at %s counts what syncs carry", t->path);
	t->is_heard = true;
	t->is_loss_told = false;
	t->retry_ns = RETRY_NS;
}

/* The end of an answer. */
static void on_answer(struct tracing *t, const json_t *end)
{
	struct request *q = list_first(&t->queue, struct request, link);
	const char *error = json_string_value(json_object_get(end, "error"));
	cleanup(json_freep) json_t *rows = t->rows, *json = json_incref(q->json);
	const char *op = json_string_value(json_object_get(json, "op"));

	t->rows = NULL;
	t->is_asked = false;
	timer_stop(&t->patience);
	request_free(t, q);
	tracing_hear(t);
	if (error)
		log_warning("weightd-trace refuses '%s': %s", op, error);
	else if (!strcmp(op, "end"))
		t->events->on_rows(t->userdata, json, rows);
	if (tracing_is_on(t))
		send_next(t);
}

static void tracing_on_packet(struct source *source, uint32_t events)
{
	struct tracing *t = container_of(source, struct tracing, source);
	struct json_packet said;
	int r = json_packet_receive_plain(source->fd, MSG_DONTWAIT, &said);

	(void)events;
	if (r == -EAGAIN)
		return;
	if (r < 0 || !t->is_asked) {
		tracing_lose(t, r < 0 ? "is gone" : "speaks unasked");
		if (r == 0)
			json_packet_deinit(&said);
		return;
	}
	if (json_is_true(json_object_get(said.message, "end")))
		on_answer(t, said.message);
	else
		(void)json_array_append(t->rows, said.message);
	json_packet_deinit(&said);
}

/* That there is none is as usual. */
static void note_error(struct tracing *t, int r)
{
	if (r < 0 && r != t->last_error && r != -ENOENT && r != -ECONNREFUSED)
		log_warning("weightd-trace cannot be asked at %s: %s", t->path, strerror(-r));
	t->last_error = r;
}

static int open_socket(const char *path, int *ret)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	cleanup(fd_closep) int fd = -1;

	if (strlen(path) >= sizeof(at.sun_path))
		return -ENAMETOOLONG;
	(void)strcpy(at.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof(at)) < 0)
		return -errno;
	*ret = take_fd(fd);
	return 0;
}

static void connect_to_it(struct tracing *t)
{
	int fd = -1, r = open_socket(t->path, &fd);

	if (r == 0)
		r = loop_add(t->loop, &t->source, fd, EPOLLIN, tracing_on_packet);
	note_error(t, r);
	if (r < 0) {
		(void)fd_close(fd);
		t->source.fd = -1;
		return;
	}
	t->is_lost = false;
	t->is_heard = false;
	t->events->on_connect(t->userdata);
}

static void tracing_enqueue(struct tracing *t, const json_t *json, int fd)
{
	struct request *q = calloc(1, sizeof(*q));

	if (!q)
		return; /* a number is missing then, and nothing else */
	*q = (struct request){.json = json_deep_copy(json), .fd = -1};
	list_append(&t->queue, &q->link);
	t->n_queue++;
	if (fd >= 0)
		q->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (!q->json || (fd >= 0 && q->fd < 0))
		request_free(t, q);
}

static const char *find_missing(const struct tracing *t)
{
	const char *sync;
	json_t *is_known;

	json_object_foreach(t->begun, sync, is_known)
	{
		if (json_is_false(is_known))
			return sync;
	}
	return NULL;
}

static void tracing_on_retry(struct timer *timer)
{
	struct tracing *t = container_of(timer, struct tracing, retry);
	const char *sync;

	if (find_missing(t) && !tracing_is_on(t))
		connect_to_it(t);
	while (tracing_is_on(t) && (sync = find_missing(t))) {
		char *missing = strdup(sync); /* it may end of this */

		(void)json_object_set_new(t->begun, sync, json_true());
		if (missing)
			t->events->on_missing(t->userdata, missing);
		free(missing);
	}
	if (find_missing(t))
		retry_later(t);
}

/* Requests for a tracer that was never there are not missed. */
static void tracing_note(struct tracing *t, const char *op, const json_t *request)
{
	const char *sync = json_string_value(json_object_get(request, "sync"));
	bool is_known = tracing_is_on(t) || !t->is_lost;

	if (!strcmp(op, "forget"))
		(void)json_object_del(t->begun, sync);
	if (strcmp(op, "begin") != 0)
		return;
	(void)json_object_set_new(t->begun, sync, json_boolean(is_known));
	if (!is_known)
		retry_later(t);
}

/* The timer looks for a tracer that went amid a sync, as the sync has to begin anew then. */
static bool tracing_begins(const struct tracing *t, const char *op)
{
	return !strcmp(op, "begin") || (!t->is_lost && !strcmp(op, "tell"));
}

void tracing_ask(struct tracing *t, const json_t *request, int fd)
{
	const char *op = json_string_value(json_object_get(request, "op"));

	if (t->n_queue == QUEUE_MAX)
		tracing_lose(t, "takes too long to answer");
	if (t->path && !tracing_is_on(t) && tracing_begins(t, op))
		connect_to_it(t);
	if (t->path)
		tracing_note(t, op, request);
	if (!tracing_is_on(t))
		return;
	tracing_enqueue(t, request, fd);
	send_next(t);
}

void tracing_drop(struct tracing *t, const char *sync)
{
	cleanup(json_freep) json_t *forget = json_pack("{s:s, s:s}", "op", "forget", "sync", sync);
	const struct request *asked = list_first(&t->queue, struct request, link);
	struct request *q, *next;

	list_for_each_safe(q, next, &t->queue, link) {
		if (!is_of(q, "tag", sync) && !is_of(q, "watch", sync))
			continue;
		if (q->fd >= 0)
			(void)shutdown(q->fd, SHUT_RDWR); /* also where it is on its way */
		if (q != asked || !t->is_asked)
			request_free(t, q);
	}
	if (forget)
		tracing_ask(t, forget, -1);
}

void tracing_init(struct tracing *t, struct loop *loop, const char *path,
		  const struct tracing_events *events, void *userdata)
{
	*t = (struct tracing){
		.loop = loop,
		.path = path,
		.events = events,
		.userdata = userdata,
		.source.fd = -1,
		.retry_ns = RETRY_NS,
	};
	list_init(&t->queue);
	t->begun = json_object();
	timer_init(&t->patience, tracing_on_silence);
	timer_init(&t->retry, tracing_on_retry);
}

void tracing_deinit(struct tracing *t)
{
	hang_up(t);
	timer_stop(&t->retry);
	json_decref(t->begun);
}
