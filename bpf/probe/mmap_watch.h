/*
 * A watch of mappings: processes that begin to map an executable file
 *
 * The kernel reports every such mapping on the machine: when a program starts, and when a running one loads a
 * library. There is more than one way to get these reports, and all have the same content, except for pid namespaces:
 * perf has pids of ours, fentry those of the first. All need CAP_PERFMON, and change nothing in any process.
 */
#pragma once

#include <sys/types.h>

#include "bpf/base/support.h"

#define N_MMAP_WATCH_KINDS 2

struct bpf_object;

struct mmap_watch {
	const struct mmap_watch_kind *kind;
};

typedef void (*mmap_watch_fn)(void *context, pid_t pid, const char *name);

struct mmap_watch_kind {
	const char *hook;
	int (*open)(struct mmap_watch **ret, char ret_why[WHY_SIZE]);
	void (*close)(struct mmap_watch *a);
	int (*fd)(const struct mmap_watch *a);
	int (*take)(struct mmap_watch *a, mmap_watch_fn fn, void *context);
};

extern const struct mmap_watch_kind mmap_watch_perf, mmap_watch_fentry;
/* The best first. */
extern const struct mmap_watch_kind *const mmap_watch_kinds[N_MMAP_WATCH_KINDS];

/* The first kind that the kernel allows, and why none of those before it. Negative errno: it allows none. */
int mmap_watch_open(struct mmap_watch **ret, char ret_why[N_MMAP_WATCH_KINDS][WHY_SIZE]);
/* In one sentence, where it allows none. */
void mmap_watch_explain(const char why[N_MMAP_WATCH_KINDS][WHY_SIZE], char ret_why[WHY_SIZE]);
/* Takes NULL. */
void mmap_watch_close(struct mmap_watch *a);
/*
 * Readable when there is one; perhaps no more so once that was asked, as by epoll_ctl(), whether it was taken or not.
 */
int mmap_watch_fd(const struct mmap_watch *a);
/*
 * Calls for all that are there, with the process and the file's name without its folders. Returns the number of
 * reports, of any kind; -ENOBUFS: the kernel had no room for some, which are lost.
 */
int mmap_watch_take(struct mmap_watch *a, mmap_watch_fn fn, void *context);

/* Its programs; NULL of a kind that has none. */
const struct bpf_object *mmap_watch_object(const struct mmap_watch *a);
