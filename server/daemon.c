#include "server/daemon.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/buffers/buffer.h"
#include "server/buffers/lost_memory.h"
#include "server/buffers/retention.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/groups/writer_group.h"
#include "server/memory/slot.h"
#include "server/recovery.h"
#include "server/requests/connection.h"
#include "server/requests/event_watch.h"
#include "server/restart/inherit.h"
#include "server/state/session.h"

#define DESCRIPTORS_SPARE 256 /* our own, and some clients' */

static void daemon_on_signal(struct source *source, uint32_t events)
{
	struct daemon *d = container_of(source, struct daemon, signals);
	struct signalfd_siginfo info;

	(void)events;
	if (read(source->fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGHUP) {
		reload_start(&d->reload);
		return;
	}
	log_info("stopping: %s", strsignal((int)info.ssi_signo));
	d->server.final = info.ssi_signo == SIGINT;
	fault_point("stop-begun");
	loop_quit(&d->server.loop);
}

static int catch_signals(struct daemon *d)
{
	sigset_t set;
	int fd, r;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	r = loop_add(&d->server.loop, &d->signals, fd, EPOLLIN, daemon_on_signal);
	if (r < 0)
		(void)fd_close(fd);
	return r;
}

static void release_signals(struct daemon *d)
{
	loop_remove(&d->signals);
	d->signals.fd = fd_close(d->signals.fd);
}

/* The path on the command line, in the file, or NULL for the environment's. */
static const char *socket_path(const struct server *s, const struct daemon_options *options)
{
	if (options->socket)
		return options->socket;
	return s->config.socket[0] ? s->config.socket : NULL;
}

/* Threads. */
static int start_workers(struct daemon *d)
{
	struct server *s = &d->server;
	const struct {
		struct worker *worker;
		unsigned n_threads;
	} workers[] = {{&s->worker, 1}, {&s->freer, 4}, {&s->sealer, 4}, {&s->wake_worker, 2}};
	unsigned n = 0;
	int r = 0;

	freeings_init(&s->freeings);
	crew_init(&s->crew);
	while (r == 0 && n < ARRAY_LEN(workers)) {
		r = worker_init_threads(workers[n].worker, &s->loop, workers[n].n_threads);
		worker_charge(workers[n++].worker, cost_worked, s);
	}
	if (r == 0)
		r = client_fds_init(&d->client_fds, s);
	else
		n--;
	if (r == 0) {
		r = cuda_init(&d->cuda, s);
		if (r == 0)
			return 0;
		(void)client_fds_deinit(&d->client_fds); /* there were no clients yet */
	}
	log_error("cannot start a thread: %s", strerror(-r));
	while (n > 0)
		worker_deinit(workers[--n].worker);
	crew_deinit(&s->crew);
	return r;
}

/* Measures the resources that users share. A manager may keep fewer descriptors than [store] max. */
static void measure_wholes(struct server *s)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	(void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for this resource */
	s->max_descriptors = limit.rlim_cur;
	quota_set_wholes(&s->quota, limit.rlim_cur,
			 s->store.max ? s->store.max : s->config.store_max);
}

/* All that is kept must be passed to us at the next start, and clients want some too. */
static void check_descriptor_limit(const struct server *s)
{
	struct rlimit limit;

	if (store_is_expected(&s->store) && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
	    limit.rlim_cur < s->store.max + DESCRIPTORS_SPARE)
		log_warning("the limit of %lu open descriptors is too low for the %u that can be "
			    "kept and for clients: raise LimitNOFILE= (ulimit -n), or lower "
			    "[store] max",
			    (unsigned long)limit.rlim_cur, s->store.max);
}

/* Recovers what an earlier weightd left, and then accepts clients. */
static int take_over(struct daemon *d, const struct daemon_options *options)
{
	struct server *s = &d->server;
	struct recovery result;
	struct inherit in;
	int r = inherit_init(&in);

	if (r < 0)
		return r;
	fault_point("start-inherited");
	r = listener_init(&d->listener, s, &in, socket_path(s, options),
			  (mode_t)s->config.socket_mode);
	if (r == 0) {
		fault_point("start-listening");
		recovery_run(s, &in, &result);
		fault_point("start-recovered");
		s->n_quarantined = result.n_quarantined;
		if (result.n_buffers || result.n_jobs || result.n_quarantined)
			log_info("recovered: %u buffers, %u versions, %u of them being written; %u "
				 "jobs; %u descriptors quarantined",
				 result.n_buffers, result.n_versions, result.n_writers,
				 result.n_jobs, result.n_quarantined);
	}
	inherit_deinit(&in);
	return r;
}

static void slot_freed(struct server *s)
{
	(void)reaper_look(s->reaper); /* it is at work until nothing is left */
}

static uint64_t slot_bytes_on(const struct server *s, const char *device)
{
	return buffers_bytes(s, device) + buffers_bytes_being_freed(s, device);
}

static const struct slot_ops slot_ops = {
	.lost = lost_memory_handle,
	.freed = slot_freed,
	.bytes_on = slot_bytes_on,
};

int daemon_init(struct daemon *d, const struct daemon_options *options)
{
	struct server *s = &d->server;
	struct timespec now;
	int r;

	*s = (struct server){
		.started_ns = num_now_ns(),
		.config = *options->config,
		.cuda = &d->cuda,
		.layout_window = &d->layout_window,
		.client_fds = &d->client_fds,
		.reaper = &d->reaper,
		.held_killer = &d->held_killer,
		.held_changed = held_killer_start,
		.events = &d->events,
		.slot_ops = &slot_ops,
	};
	s->config.overrides = NULL;
	s->config.n_overrides = 0;
	s->config.names = NULL;
	s->config.subordinates = (struct subordinates){0};
	list_init(&s->sessions);
	list_init(&s->refusals);
	list_init(&s->buffers);
	list_init(&s->removed);
	list_init(&s->untallied);
	list_init(&s->held);
	list_init(&s->groups);
	list_init(&s->removed_groups);
	list_init(&s->waiters);
	list_init(&s->paused_readers);
	quota_init(&s->quota);
	costs_init(&s->costs);
	turns_init(&s->turns, &s->loop, connection_serve);
	server_apply_config(s, options->config);
	reaper_init(&d->reaper, s);
	held_killer_init(&d->held_killer, s);
	reload_init(&d->reload, s, &options->source);
	if (getrandom(&s->instance, sizeof(s->instance), 0) != sizeof(s->instance))
		return -EIO;
	s->last_id = s->instance >> 1; /* so that an id of an earlier server names nothing here */
	(void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
	s->started_real_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	r = events_init(&d->events, event_watch_tell);
	if (r < 0)
		return r;
	r = loop_init(&s->loop);
	if (r < 0) {
		log_error("cannot make an event loop: %s", strerror(-r));
		goto fail_events;
	}
	r = catch_signals(d);
	if (r < 0) {
		log_error("cannot catch signals: %s", strerror(-r));
		goto fail_loop;
	}
	r = start_workers(d);
	if (r < 0)
		goto fail_signals;
	r = notify_init(&s->notify, &s->loop);
	if (r == 0) {
		notify_charge(&s->notify, cost_looped, s);
		store_init(&s->store, &s->loop, &s->notify, (unsigned)s->config.store_max);
		check_descriptor_limit(s);
		measure_wholes(s);
		r = take_over(d, options);
	}
	if (r == 0)
		return 0;
	notify_deinit(&s->notify);
	(void)client_fds_deinit(&d->client_fds); /* there were no clients yet */
	cuda_deinit(s->cuda);
	worker_deinit(&s->wake_worker);
	worker_deinit(&s->sealer);
	worker_deinit(&s->worker);
	crew_deinit(&s->crew);
	worker_deinit(&s->freer);
fail_signals:
	release_signals(d);
fail_loop:
	loop_deinit(&s->loop);
fail_events:
	events_deinit(&d->events);
	return r;
}

/* Those of clients that are yet to be refused, too. */
static void close_connections(struct server *s)
{
	struct session *session;

	while ((session = list_first(&s->sessions, struct session, link)) ||
	       (session = list_first(&s->refusals, struct session, link)))
		connection_close(session);
}

/* Leaves the store to the successor: clients are disconnected, and all else stays as it is. */
static void daemon_leave(struct server *s)
{
	s->stopping = true;
	close_connections(s);
	worker_deinit(&s->wake_worker);
	worker_deinit(&s->sealer);
	cuda_deinit(s->cuda);
	worker_deinit(&s->worker);
	crew_deinit(&s->crew);
	worker_deinit(&s->freer);
	fault_point("stop-left");
	notify_deinit(&s->notify);
}

/* Ends writers that wait for their client to return, or for the store. */
static void end_writers(struct list *buffers)
{
	struct buffer *b, *tmp;

	list_for_each_safe(b, tmp, buffers, link)
		if (b->writer)
			writer_end(b->writer);
}

/* Takes their names away, and waits for nothing. */
static void end_groups(struct server *s)
{
	struct writer_group *g, *tmp;

	while ((g = list_first(&s->groups, struct writer_group, link)))
		writer_group_drop(g, "weightd ends");
	list_for_each_safe(g, tmp, &s->removed_groups, link)
		writer_group_end(g);
}

static void free_all(struct list *buffers)
{
	struct buffer *b, *tmp;
	struct version *v;

	list_for_each_safe(b, tmp, buffers, link) {
		buffer_ref(b);
		while ((v = list_first(&b->leaving, struct version, link)))
			version_free(v); /* readers that map it are not counted any more */
		buffer_unref(b);
	}
}

void daemon_deinit(struct daemon *d)
{
	struct server *s = &d->server;
	struct buffer *buffer;
	bool nothing_stuck, survives = store_works(&s->store) && !s->final;

	listener_deinit(&d->listener, survives);
	if (survives) {
		daemon_leave(s);
		return;
	}
	close_connections(s);
	end_writers(&s->buffers);
	end_writers(&s->removed);
	while ((buffer = list_first(&s->buffers, struct buffer, link)))
		buffer_drop(buffer);
	end_groups(s);
	worker_deinit(&s->wake_worker);
	worker_deinit(&s->sealer); /* before the freer, which frees what it ends */
	cuda_deinit(s->cuda); /* likewise */
	worker_deinit(&s->worker); /* before memory that its jobs were providing is freed */
	crew_deinit(&s->crew);
	free_all(&s->removed);
	worker_deinit(&s->freer);
	held_killer_deinit(&d->held_killer);
	reaper_deinit(&d->reaper);
	notify_deinit(&s->notify);
	nothing_stuck = client_fds_deinit(&d->client_fds);
	assert(list_empty(&s->waiters) && list_empty(&s->removed) &&
	       list_empty(&s->removed_groups) && s->n_slot_bytes == 0);
	events_deinit(&d->events);
	release_signals(d);
	turns_deinit(&s->turns);
	loop_deinit(&s->loop);
	if (nothing_stuck)
		quota_deinit(&s->quota);
	config_deinit(&s->config);
	costs_deinit(&s->costs);
	id_index_deinit(&s->slots);
	id_index_deinit(&s->host_memory);
}

int daemon_run(struct daemon *d)
{
	struct server *s = &d->server;
	char status[128];
	int r;

	(void)snprintf(status, sizeof(status), "serving %" PRIu64 " buffers", s->n_buffers);
	notify_keep_order(&s->notify);
	notify_ready(&s->notify, status);
	if (!store_is_expected(&s->store))
		log_info("nothing keeps the buffers: they end with this process; run weightd under systemd, or with "
			 "--keeper");
	r = loop_run(&s->loop);
	if (r < 0)
		log_error("the event loop failed: %s", strerror(-r));
	(void)notify_send(&s->notify, NOTIFY_OURS, "STOPPING=1",
			  -1); /* there is nowhere to report a failure */
	return r;
}
