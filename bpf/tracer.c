/*
 * One thread. No row is polled while no span is open; while one is, each look takes at most a tenth of the time: with
 * very many connections looks are less often than every 100 ms.
 */
#include "bpf/tracer.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "bpf/base/kernel_btf.h"
#include "bpf/ended_rows.h"
#include "bpf/event/fd_passing.h"
#include "bpf/event_recorder.h"
#include "bpf/follow.h"
#include "bpf/probe/probe_question.h"
#include "bpf/rdma/rdma.h"
#include "bpf/rows.h"
#include "bpf/tcp/tcp_question.h"
#include "ipc/base/fd.h"
#include "ipc/base/libsystemd.h"
#include "ipc/base/num.h"

#define SHARE 10 /* a look may take one part in so many of the time */
#define BACKLOG CLIENTS_MAX

static int log_error(const char *what, int r)
{
	(void)fprintf(stderr, "weightd-trace: %s: %s\n", what, strerror(-r));
	return r;
}

static void on_tcp_events(struct source *s, uint32_t events)
{
	(void)events;
	follow_take_tcp_events(container_of(s, struct tracer, tcp_events), false);
}

static void on_period(struct timer *timer)
{
	struct tracer *t = container_of(timer, struct tracer, timer);
	uint64_t began = num_now_ns(), took;

	loop_modify(&t->listener, EPOLLIN);
	if (t->n_spans > 0) {
		(void)rows_mark(t); /* a client that asks gets the error */
		metrics_look(t);
	}
	follow_send_all(t);
	t->sent_ns = num_now_ns();
	for (size_t i = 0; i < N_QUESTIONS; i++)
		if (t->questions[i]->kind->count_missed && !*t->questions[i]->why)
			t->questions[i]->kind->count_missed(t->questions[i]);
	took = t->sent_ns - began;
	if (t->n_spans > 0)
		timer_start_once(&t->loop, &t->timer,
				 took * SHARE > ROWS_PERIOD_NS ? took * SHARE : ROWS_PERIOD_NS);
}

static void on_connect(struct source *s, uint32_t events)
{
	struct tracer *t = container_of(s, struct tracer, listener);
	int fd, r;

	(void)events;
	fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
		/* The connection waits, and epoll would report it again and again. */
		loop_modify(&t->listener, 0);
		timer_start_once(&t->loop, &t->timer, ROWS_PERIOD_NS);
	}
	if (fd < 0)
		return; /* or the client has closed it */
	r = client_add(t, fd);
	if (r < 0)
		(void)log_error("a client was refused", r);
}

static void tracer_on_signal(struct source *s, uint32_t events)
{
	(void)events;
	loop_quit(&container_of(s, struct tracer, signals)->loop);
}

static bool is_no_socket(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

static int listen_on(const char *path, int *ret_fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = -1, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	/* connect() to a file that is no socket fails as with a socket without a listener. */
	if (is_no_socket(path))
		return -EEXIST;
	(void)strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* A socket without a listener is left over from a process that was killed. */
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		r = -EADDRINUSE;
	else
		r = errno == ECONNREFUSED && unlink(path) < 0 ? -errno : 0;
	if (r == 0 && (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
		       chmod(path, 0660) < 0 || listen(fd, BACKLOG) < 0))
		r = -errno;
	if (r < 0) {
		(void)fd_close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* BPF, and sock_diag where that cannot be had, unless one was asked for. */
static int open_meter(struct tracer *t, const struct tracer_options *o)
{
	const struct meter_kind *kind = o->kind ? o->kind : &meter_bpf;
	char why[WHY_SIZE] = "";
	int r = kind->open(o->ring_size, &t->collector.meter, why);

	if (r < 0 && !o->kind) {
		(void)strcpy(t->collector.why_not_bpf, why);
		(void)fprintf(stderr,
			      "weightd-trace: without BPF: %s; only sockets of this network "
			      "namespace are counted, and the last bytes of those that end may be "
			      "missing (weightctl trace doctor)\n",
			      why);
		r = meter_diag.open(o->ring_size, &t->collector.meter, why);
	} else if (o->kind == &meter_diag) {
		(void)strcpy(t->collector.why_not_bpf,
			     "weightd-trace was started with --meter=diag");
	}
	if (r < 0 || (t->collector.meter->kind->check &&
		      t->collector.meter->kind->check(t->collector.meter, why) < 0))
		(void)fprintf(stderr, "weightd-trace: %s\n", *why ? why : strerror(-r));
	return r;
}

/* In the order in which the doctor answers. */
static const struct question_kind *const question_kinds[N_QUESTIONS] = {
	[QUESTION_HOOKS] = &question_hooks,
	[QUESTION_PROBES] = &question_probes,
	[QUESTION_FD_PASSING] = &question_fd_passing,
	[QUESTION_METER] = &question_meter,
	[QUESTION_RDMA] = &question_rdma,
};

/* A question that the kernel refuses holds up none of the others. */
static int open_questions(struct tracer *t, const struct tracer_options *o)
{
	const char *off = o->probes == PROBES_OFF  ? "weightd-trace was started with --probes=off"
			  : o->kind == &meter_diag ? t->collector.why_not_bpf
						   : "";
	struct question *q;

	for (size_t i = 0; i < N_QUESTIONS; i++) {
		q = question_kinds[i]->open(&t->collector, off);
		if (!q)
			return -ENOMEM;
		t->questions[i] = q;
		if (q->is_refused && strcmp(q->why, t->collector.why_not_bpf) != 0)
			(void)fprintf(stderr, "weightd-trace: %s: %s\n", q->kind->unseen, q->why);
	}
	return 0;
}

static void close_questions(struct tracer *t)
{
	for (size_t i = 0; i < N_QUESTIONS; i++)
		if (t->questions[i])
			t->questions[i]->kind->close(t->questions[i]);
}

/* Notifies systemd, if it started the tracer, that the tracer serves. */
static int report_ready(void)
{
	const struct libsystemd *systemd;
	const char *why;
	int r;

	if (!getenv("NOTIFY_SOCKET"))
		return 0;
	systemd = libsystemd_open(&why);
	if (!systemd) {
		(void)fprintf(stderr, "weightd-trace: cannot notify systemd: %s\n", why);
		return -ENOSYS;
	}
	r = systemd->notify(true, "READY=1");
	return r < 0 ? log_error("cannot notify systemd", r) : 0;
}

static int tracer_open(struct tracer *t, const struct tracer_options *o)
{
	sigset_t signals;
	int fd, r;

	(void)fd_raise_limit(); /* each process that is watched takes one */
	r = open_meter(t, o);
	if (r < 0)
		return r;
	(void)sigemptyset(&signals);
	(void)sigaddset(&signals, SIGTERM);
	(void)sigaddset(&signals, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &signals, NULL);
	r = loop_init(&t->loop);
	if (r == 0)
		r = closer_new(&t->loop, &t->closer);
	if (r == 0) {
		t->signals_fd = signalfd(-1, &signals, SFD_CLOEXEC);
		r = t->signals_fd < 0 ? -errno
				      : loop_add(&t->loop, &t->signals, t->signals_fd, EPOLLIN,
						 tracer_on_signal);
	}
	fd = t->collector.meter->kind->events_fd(t->collector.meter);
	if (r == 0 && fd >= 0)
		r = loop_add(&t->loop, &t->tcp_events, fd, EPOLLIN, on_tcp_events);
	if (r < 0)
		return log_error("cannot wait for events", r);
	r = open_questions(t, o);
	if (r < 0)
		return log_error("cannot begin", r);
	r = listen_on(o->socket, &t->listener_fd);
	if (r == 0)
		r = loop_add(&t->loop, &t->listener, t->listener_fd, EPOLLIN, on_connect);
	if (r < 0)
		return log_error(o->socket, r);
	return report_ready();
}

static void tracer_close(struct tracer *t, const char *path)
{
	struct client *c, *next;

	if (t->closer)
		closer_end(t->closer);
	list_for_each_safe(c, next, &t->clients, link)
		client_free(c);
	closer_free(t->closer);
	close_questions(t);
	event_log_deinit(&t->ended_rows);
	event_log_deinit(&t->events);
	metrics_deinit(&t->metrics);
	if (t->listener_fd >= 0)
		(void)unlink(
			path); /* exit closes the listener, and the connections that were not accepted */
	timer_stop(&t->timer);
	(void)fd_close(t->signals_fd);
	loop_deinit(&t->loop);
	if (t->collector.meter)
		t->collector.meter->kind->close(t->collector.meter);
}

int tracer_run(const struct tracer_options *o)
{
	struct tracer t = {
		.collector = {.ops = &event_recorder_ops,
			      .loop = &t.loop,
			      .ring_size = o->ring_size,
			      .sysfs = o->sysfs,
			      .is_forced = o->probes == PROBES_ON},
		.loop = {.epoll_fd = -1},
		.listener_fd = -1,
		.signals_fd = -1,
	};
	int r;

	timer_init(&t.timer, on_period);
	list_init(&t.loop.chores); /* the loop begins after the meter, which may be refused */
	list_init(&t.clients);
	list_init(&t.leaving);
	event_log_init(&t.ended_rows, ENDED_ROWS_MAX);
	event_log_init(&t.events, EVENTS_MAX);
	metrics_init(&t.metrics);
	t.sent_ns = num_now_ns();
	kernel_btf_hold();
	r = tracer_open(&t, o);
	kernel_btf_drop();
	if (r == 0) {
		(void)printf("weightd-trace: counts by %s on %s\n", t.collector.meter->kind->name,
			     o->socket);
		(void)fflush(stdout);
	}
	if (r == 0)
		r = loop_run(&t.loop);
	tracer_close(&t, o->socket);
	return r;
}
