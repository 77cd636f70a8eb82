/*
 * The tracer: a meter, and the clients that ask it, on a socket
 */
#pragma once

#include "bpf/base/collector.h"
#include "bpf/base/question.h"
#include "bpf/client.h"
#include "bpf/event/event_log.h"
#include "bpf/metrics.h"
#include "bpf/tcp/meter.h"
#include "ipc/base/list.h"
#include "server/base/loop.h"

enum question_number {
	QUESTION_HOOKS,
	QUESTION_PROBES,
	QUESTION_FD_PASSING,
	QUESTION_METER,
	QUESTION_RDMA,
	N_QUESTIONS,
};

struct tracer {
	struct collector collector; /* the part that questions see */
	struct loop loop;
	struct source listener, tcp_events, signals;
	int listener_fd, signals_fd;
	struct timer timer;
	struct list clients; /* struct client */
	struct list leaving; /* struct client, until their connections are closed */
	unsigned n_clients; /* in both lists */
	struct closer *closer;
	struct event_log ended_rows; /* totals of rows */
	struct event_log events;
	struct metrics metrics;
	struct question *questions[N_QUESTIONS];
	uint64_t n_misses; /* as of the last mark, see meter_misses() */
	unsigned n_spans; /* open, of all clients */
	uint32_t last_row;
	uint64_t last_client;
	uint64_t sent_ns; /* when followers received rows last */
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

/* Serves until SIGTERM or SIGINT. 0, or negative errno, which it has logged. */
int tracer_run(const struct tracer_options *o);
