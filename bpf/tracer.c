/*
 * One thread. Nothing is polled while no span is open; while one is, each look takes at most a tenth of the
 * time: with very many connections it is less often than every 100 ms.
 */
#include "bpf/tracer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bpf/ended_rows.h"
#include "bpf/event/event.h"
#include "bpf/event/fd_passing.h"
#include "bpf/follow.h"
#include "bpf/probe/probes.h"
#include "bpf/probe/uprobe_multi.h"
#include "bpf/ready.h"
#include "bpf/tcp/meter-bpf.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define PERIOD_NS 100000000u
#define SHARE 10 /* of the time that a look may take, one in so many */
#define BACKLOG CLIENTS_MAX

static int complain(const char *what, int r)
{
	(void)fprintf(stderr, "weightd-trace: %s: %s\n", what, strerror(-r));
	return r;
}

void tracer_look_soon(struct tracer *t)
{
	timer_begin(&t->timer, PERIOD_NS);
}

void tracer_count_spans(struct tracer *t, int change)
{
	t->n_spans += (unsigned)change;
	if (t->n_spans > 0)
		timer_begin(&t->timer, PERIOD_NS);
}

static void take_sample(const struct sample *s, void *context)
{
	struct client *owner;
	struct row *row = client_find_row(context, s->row, &owner);

	if (!row)
		return;
	socket_census_see(&row->census);
	if (s->srtt_us > row->rtt_us)
		row->rtt_us = s->srtt_us;
}

/* Of all rows, in a look that has ended. */
static void end_census(struct tracer *t)
{
	uint64_t now_ns = num_now_ns();
	struct reading now;
	struct client *c;
	struct row *row;

	list_for_each(c, &t->clients, link)
		list_for_each(row, &c->rows, link)
			if (t->meter->kind->read(t->meter, row->number, &now) == 0)
				socket_census_end(&row->census, &now.totals, now_ns);
}

int tracer_mark(struct tracer *t)
{
	struct client *c;
	struct row *row;
	int r;

	list_for_each(c, &t->clients, link)
		list_for_each(row, &c->rows, link) {
			row->rtt_us = 0;
			socket_census_begin(&row->census);
		}
	r = t->meter->kind->mark(t->meter, take_sample, t);
	t->n_misses = meter_misses(t->meter);
	if (r == 0 && t->meter->kind->is_told_of_ends)
		end_census(t);
	return r;
}

static void doubt(enum quality *q)
{
	if (*q == QUALITY_EXACT)
		*q = QUALITY_SAMPLED;
}

int tracer_read(struct tracer *t, const struct row *row, struct reading *ret)
{
	int r = t->meter->kind->read(t->meter, row->number, ret);

	if (r < 0)
		return r;
	ret->totals.closed += row->census.lost;
	if (!socket_census_is_short(&row->census) && row->n_misses == t->n_misses)
		return 0;
	for (int i = 0; i < N_COUNTERS; i++)
		doubt(&ret->quality[i]);
	doubt(&ret->opened);
	doubt(&ret->ended);
	return 0;
}

static void on_tcp_event(const struct tcp_event *e, void *context)
{
	follow_send_tcp_event(context, e);
}

/* There may have been more of them than there was room for, which is looked for soon. */
static void take_events(struct tracer *t, bool all)
{
	t->meter->kind->take_events(t->meter, all, on_tcp_event, t);
	tracer_look_soon(t);
}

void tracer_take_tcp_events(struct tracer *t)
{
	if (t->tcp_events.fd >= 0)
		take_events(t, true);
}

static void on_tcp_events(struct waiter *w, uint32_t events)
{
	(void)events;
	take_events(container_of(w, struct tracer, tcp_events), false);
}

static void on_timer(struct waiter *w, uint32_t events)
{
	struct tracer *t = container_of(w, struct tracer, timer.waiter);
	uint64_t began = num_now_ns(), took;

	(void)events;
	if (!timer_end(&t->timer))
		return;
	loop_modify(t->loop_fd, &t->listener, EPOLLIN);
	if (t->n_spans > 0) {
		(void)tracer_mark(t); /* who asks is told why it fails */
		metrics_look(t);
	}
	follow_send_all(t);
	t->sent_ns = num_now_ns();
	probes_count_missed(t->probes);
	fd_passing_count_missed(t->fd_passing);
	took = t->sent_ns - began;
	if (t->n_spans > 0)
		timer_begin(&t->timer, took * SHARE > PERIOD_NS ? took * SHARE : PERIOD_NS);
}

static void on_connect(struct waiter *w, uint32_t events)
{
	struct tracer *t = container_of(w, struct tracer, listener);
	int fd, r;

	(void)events;
	fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
		/* It waits, and would be told of again and again. */
		loop_modify(t->loop_fd, &t->listener, 0);
		timer_begin(&t->timer, PERIOD_NS);
	}
	if (fd < 0)
		return; /* or it went away again */
	r = client_add(t, fd);
	if (r < 0)
		(void)complain("a client was sent away", r);
}

static void on_signal(struct waiter *w, uint32_t events)
{
	(void)events;
	container_of(w, struct tracer, signals)->stops = true;
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
	/* To connect() a file is a socket that nobody listens on. */
	if (is_no_socket(path))
		return -EEXIST;
	(void)strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* One that nobody listens on is of a process that was killed. */
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
	int r = kind->open(o->ring_size, &t->meter, why);

	if (r < 0 && !o->kind) {
		(void)strcpy(t->why_not_bpf, why);
		(void)fprintf(
			stderr,
			"weightd-trace: without BPF: %s; sockets of this network namespace alone are counted, and "
			"not to their last byte where they end (weightctl trace doctor)\n",
			why);
		r = meter_diag.open(o->ring_size, &t->meter, why);
	} else if (o->kind == &meter_diag) {
		(void)strcpy(t->why_not_bpf, "weightd-trace was started with --meter=diag");
	}
	if (r < 0 || (t->meter->kind->check && t->meter->kind->check(t->meter, why) < 0))
		(void)fprintf(stderr, "weightd-trace: %s\n", *why ? why : strerror(-r));
	return r;
}

/* Without them all else goes on. */
static void open_probes(struct tracer *t, const struct tracer_options *o)
{
	struct utsname kernel;
	int r = 0;

	if (o->probes == PROBES_OFF)
		(void)strcpy(t->why_no_probes, "weightd-trace was started with --probes=off");
	else if (o->kind == &meter_diag)
		(void)strcpy(t->why_no_probes, t->why_not_bpf);
	else if (o->probes != PROBES_ON &&
		 (uname(&kernel) < 0 || !uprobe_multi_is_safe(kernel.release)))
		(void)strcpy(
			t->why_no_probes,
			"before 6.12.14, 6.13.3 and 6.14 a kernel since 6.11 lets seccomp kill "
			"processes that return to a probe; --probes=on says that this one does not");
	else
		r = probes_open(t, o->ring_size, &t->probes, t->why_no_probes);
	if (r < 0)
		probes_look_for_needs(t->why_no_need);
	else if (!t->probes)
		for (size_t i = 0; i < N_PROBE_NEEDS; i++)
			(void)strcpy(t->why_no_need[i], t->why_no_probes);
	if (r < 0 && strcmp(t->why_no_probes, t->why_not_bpf) != 0)
		(void)fprintf(stderr,
			      "weightd-trace: what processes ask of CUDA, NCCL and verbs, and what "
			      "weightd says, is not seen: %s\n",
			      t->why_no_probes);
}

/* Likewise. Functions of the kernel are seen whatever a process's seccomp filter is. */
static void open_fd_passing(struct tracer *t, const struct tracer_options *o)
{
	if (o->probes == PROBES_OFF)
		(void)strcpy(t->why_no_fd_passing, "weightd-trace was started with --probes=off");
	else if (o->kind == &meter_diag)
		(void)strcpy(t->why_no_fd_passing, t->why_not_bpf);
	else if (fd_passing_open(t, o->ring_size, &t->fd_passing, t->why_no_fd_passing) < 0 &&
		 strcmp(t->why_no_fd_passing, t->why_not_bpf) != 0)
		(void)fprintf(stderr,
			      "weightd-trace: which process hands memory to which is not seen: %s\n",
			      t->why_no_fd_passing);
}

static int open_all(struct tracer *t, const struct tracer_options *o)
{
	sigset_t signals;
	int r;

	(void)fd_raise_limit(); /* each process that is watched takes one */
	r = open_meter(t, o);
	if (r < 0)
		return r;
	(void)sigemptyset(&signals);
	(void)sigaddset(&signals, SIGTERM);
	(void)sigaddset(&signals, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &signals, NULL);
	t->signals.fd = signalfd(-1, &signals, SFD_CLOEXEC);
	t->tcp_events.fd = t->meter->kind->events_fd(t->meter);
	r = t->signals.fd < 0 ? -errno : loop_open(&t->loop_fd);
	if (r == 0)
		r = closer_new(t->loop_fd, &t->closer);
	if (r == 0)
		r = loop_add(t->loop_fd, &t->signals);
	if (r == 0)
		r = timer_open(&t->timer, t->loop_fd);
	if (r == 0 && t->tcp_events.fd >= 0)
		r = loop_add(t->loop_fd, &t->tcp_events);
	if (r < 0)
		return complain("cannot wait for events", r);
	open_probes(t, o);
	open_fd_passing(t, o);
	r = listen_on(o->socket, &t->listener.fd);
	if (r == 0)
		r = loop_add(t->loop_fd, &t->listener);
	if (r < 0)
		return complain(o->socket, r);
	r = ready_notify();
	return r < 0 ? complain("cannot tell systemd that it serves", r) : 0;
}

static void close_all(struct tracer *t, const char *path)
{
	struct client *c, *next;

	if (t->closer)
		closer_end(t->closer);
	list_for_each_safe(c, next, &t->clients, link)
		client_free(c);
	closer_free(t->closer);
	probes_close(t->probes);
	fd_passing_close(t->fd_passing);
	event_log_deinit(&t->ended_rows);
	event_log_deinit(&t->events);
	metrics_deinit(&t->metrics);
	if (t->listener.fd >= 0)
		(void)unlink(
			path); /* it is closed with the process, and with it whom nobody accepted */
	timer_close(&t->timer, t->loop_fd);
	(void)fd_close(t->signals.fd);
	(void)fd_close(t->loop_fd);
	if (t->meter)
		t->meter->kind->close(t->meter);
}

int tracer_run(const struct tracer_options *o)
{
	struct tracer t = {
		.loop_fd = -1,
		.sysfs = o->sysfs,
		.listener = {.fd = -1, .ready = on_connect},
		.timer = TIMER(on_timer),
		.tcp_events = {.fd = -1, .ready = on_tcp_events},
		.signals = {.fd = -1, .ready = on_signal},
	};
	int r;

	list_init(&t.clients);
	list_init(&t.leaving);
	event_log_init(&t.ended_rows, ENDED_ROWS_MAX);
	event_log_init(&t.events, EVENTS_MAX);
	metrics_init(&t.metrics);
	t.sent_ns = num_now_ns();
	r = open_all(&t, o);
	if (r == 0) {
		(void)printf("weightd-trace: counts by %s on %s\n", t.meter->kind->name, o->socket);
		(void)fflush(stdout);
	}
	while (r == 0 && !t.stops)
		r = loop_turn(t.loop_fd);
	close_all(&t, o->socket);
	return r;
}
