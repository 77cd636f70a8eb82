/*
 * The tracer: a meter, and the clients that ask it, on a socket
 */
#pragma once

#include "bpf/base/loop.h"
#include "bpf/base/timer.h"
#include "bpf/client.h"
#include "bpf/event/event_log.h"
#include "bpf/metrics.h"
#include "bpf/probe/probes.h"
#include "bpf/tcp/hook.h"
#include "bpf/tcp/meter.h"
#include "ipc/base/list.h"

struct tracer {
	int loop_fd;
	const char *sysfs; /* where the kernel tells of devices */
	struct meter *meter;
	char why_not_bpf[WHY_SIZE]; /* "": it is */
	struct waiter listener, tcp_events, signals;
	struct timer timer;
	struct list clients; /* struct client */
	struct list leaving; /* likewise, whose connections are not closed yet */
	unsigned n_clients; /* of both */
	struct closer *closer;
	struct event_log ended_rows; /* totals of rows */
	struct event_log events;
	struct metrics metrics;
	uint64_t last_event;
	struct probes *probes; /* NULL: there are none */
	char why_no_probes[WHY_SIZE];
	char why_no_need[N_PROBE_NEEDS][WHY_SIZE]; /* that the kernel has, as of the start; "": it has */
	struct fd_passing *fd_passing; /* likewise */
	char why_no_fd_passing[WHY_SIZE];
	struct findings findings;
	uint64_t n_misses; /* as of the last mark, see meter_misses() */
	unsigned n_spans; /* open, of all clients */
	uint32_t last_row;
	uint64_t last_client;
	uint64_t sent_ns; /* when those who follow were told last */
	bool stops;
};

enum probes_wanted {
	PROBES_WHERE_SAFE,
	PROBES_ON,
	PROBES_OFF,
};

struct tracer_options {
	const char *socket;
	const char *sysfs;
	const struct meter_kind *kind; /* NULL: the best there is */
	uint32_t ring_size;
	enum probes_wanted probes;
};

/* Serves until SIGTERM or SIGINT. 0, or negative errno; it has said why. */
int tracer_run(const struct tracer_options *o);

/* A span was opened, or ended: while there is one, the meter is marked every 100 ms. */
void tracer_count_spans(struct tracer *t, int change);
/* Who follows is told, within 100 ms, what it missed and what there is. */
void tracer_look_soon(struct tracer *t);
/* Tells of all events that are there: whose row is gone, nobody can be told of any more. */
void tracer_take_tcp_events(struct tracer *t);
/* Brings all rows up to now. 0, or negative errno. */
int tracer_mark(struct tracer *t);
/* What a row has, as of then or later. 0, or negative errno. */
int tracer_read(struct tracer *t, const struct row *row, struct reading *ret);
