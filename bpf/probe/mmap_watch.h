/*
 * Arrivals: processes that begin to map a file of which they may execute what is in it
 *
 * The kernel tells of every such mapping on the machine: when a program starts, and when a library is loaded by one that
 * runs. It does so in more than one way, and says the same in each; of processes, too, in the first namespace of these:
 * perf has their numbers in ours, fentry those in the first. All need CAP_PERFMON, and change nothing in any process.
 */
#pragma once

#include <sys/types.h>

#include "bpf/tcp/meter.h"

#define N_ARRIVALS_KINDS 2

struct bpf_object;

struct arrivals {
	const struct arrivals_kind *kind;
};

typedef void (*arrivals_fn)(void *context, pid_t pid, const char *name);

struct arrivals_kind {
	const char *hook;
	int (*open)(struct arrivals **ret, char ret_why[WHY_SIZE]);
	void (*close)(struct arrivals *a);
	int (*fd)(const struct arrivals *a);
	int (*take)(struct arrivals *a, arrivals_fn fn, void *context);
};

extern const struct arrivals_kind arrivals_perf, arrivals_fentry;
/* The best first. */
extern const struct arrivals_kind *const arrivals_kinds[N_ARRIVALS_KINDS];

/* The first kind that the kernel allows, and why none of those before it. Negative errno: it allows none. */
int arrivals_open(struct arrivals **ret, char ret_why[N_ARRIVALS_KINDS][WHY_SIZE]);
/* In one sentence, where it allows none. */
void arrivals_say_why(const char why[N_ARRIVALS_KINDS][WHY_SIZE], char ret_why[WHY_SIZE]);
/* Takes NULL. */
void arrivals_close(struct arrivals *a);
/*
 * Readable when there is one; perhaps no more so once that was asked, as by epoll_ctl(), whether it was taken or not.
 */
int arrivals_fd(const struct arrivals *a);
/*
 * All that there are: the process, and the file's name without its folders. How many times the kernel told of anything;
 * -ENOBUFS: it had no room for some, of which nobody knows.
 */
int arrivals_take(struct arrivals *a, arrivals_fn fn, void *context);

/* Its programs; NULL of a kind that has none. */
const struct bpf_object *arrivals_object(const struct arrivals *a);
