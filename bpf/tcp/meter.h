/*
 * Meters: readers of the kernel's counters of sockets
 *
 * A row is all that its owner adds up under one number, never 0. The numbers mean the same in every meter; each meter
 * has its quality.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bpf/base/support.h"
#include "bpf/tcp/meter.bpf.h"

enum quality {
	QUALITY_ABSENT, /* unknown: the number means nothing */
	QUALITY_SAMPLED, /* as of the last look */
	QUALITY_EXACT,
};

struct reading {
	struct totals totals;
	enum quality quality[N_COUNTERS];
	enum quality opened, ended; /* quality of totals::sockets and of totals::closed */
};

struct meter {
	const struct meter_kind *kind;
	char limits[WHY_SIZE]; /* flaws of the best kind of meter; "": none */
};

typedef void (*meter_sample_fn)(const struct sample *s, void *context);
typedef void (*meter_event_fn)(const struct tcp_event *e, void *context);

/* Functions return 0, or negative errno. */
struct meter_kind {
	const char *name;
	bool sees_ends; /* and may miss one; else it looks for what has ended */
	/* `ring_size`: bytes for its events. A failure is explained in `ret_why`. */
	int (*open)(uint32_t ring_size, struct meter **ret, char ret_why[WHY_SIZE]);
	void (*close)(struct meter *m);
	/* Checks that it can count now, or explains in `ret_why` why not; NULL: it always can. */
	int (*check)(struct meter *m, char ret_why[WHY_SIZE]);
	int (*add_row)(struct meter *m, uint32_t row);
	void (*remove_row)(struct meter *m, uint32_t row);
	/* Counts this socket in that row. -ENOTSOCK: no TCP socket. `fd` remains the caller's. */
	int (*tag)(struct meter *m, int fd, uint32_t row, enum since since);
	/* All sockets of a process, those that it has and those that it will have; NULL where it cannot. */
	int (*watch)(struct meter *m, pid_t pid, uint32_t row);
	void (*unwatch)(struct meter *m, pid_t pid);
	/* The same of all processes in a control group of version 2, by the kernel's number of it, and below. */
	int (*watch_cgroup)(struct meter *m, uint64_t cgroup, uint32_t row);
	void (*unwatch_cgroup)(struct meter *m, uint64_t cgroup);
	/*
	 * Counts the calls on the sockets of a row, from 0; NULL: it cannot. end_calls() frees all
	 * of that, and must precede remove_row().
	 */
	int (*begin_calls)(struct meter *m, uint32_t row);
	int (*read_calls)(struct meter *m, uint32_t row, struct calls *ret);
	void (*end_calls)(struct meter *m, uint32_t row);
	/*
	 * Updates all rows, and calls `fn`, which may be NULL, for each open connection.
	 */
	int (*mark)(struct meter *m, meter_sample_fn fn, void *context);
	/* As of the last mark, or later. */
	int (*read)(struct meter *m, uint32_t row, struct reading *ret);
	/* Readable while there are events, or -1; and takes some of these, or all that are there. */
	int (*events_fd)(struct meter *m);
	void (*take_events)(struct meter *m, bool all, meter_event_fn fn, void *context);
};

extern const struct meter_kind meter_bpf, meter_diag;
