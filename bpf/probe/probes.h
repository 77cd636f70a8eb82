/*
 * Probes: what processes ask of CUDA, NCCL and verbs, emitted as events
 *
 * Without the rights, or before Linux 6.6, there are none, and all else works.
 */
#pragma once

#include <stddef.h>

#include "bpf/base/collector.h"
#include "bpf/base/programs.h"
#include "bpf/base/support.h"

struct mmap_watch;
struct probed_files;
struct probes;
struct qps;
struct usdt;

/* Looks at all processes once. 0, or negative errno and why. */
int probes_open(struct collector *c, struct probes **ret, char ret_why[WHY_SIZE]);
/* Takes NULL. */
void probes_close(struct probes *p);
/* Counts lost calls and events of weightd, also while none is emitted. */
void probes_count_missed(struct probes *p);

/* Emits all calls that have returned, for a client that asks. */
void probes_take(struct probes *p);
/* The same but for calls that are counted, which are emitted no sooner for that. */
void probes_take_calls(struct probes *p);

/* The queue pairs that probes saw. */
struct qps *probes_qps(struct probes *p);
/* Weightd's own probes. */
struct usdt *probes_usdt(struct probes *p);
/* Adds what the kernel counts of all programs here. */
size_t probes_metrics(const struct probes *p, struct program ret[PROGRAMS_MAX], size_t n);

/* Returns all files, after a look at all processes. The doctor calls it. */
const struct probed_files *probes_sweep(struct probes *p);
/* The way in which mappings are watched, and why not in the way of that number in mmap_watch_kinds, which is better. */
const struct mmap_watch *probes_mmap_watch(const struct probes *p);
const char *probes_why_no_mmap_watch(const struct probes *p, size_t i);
