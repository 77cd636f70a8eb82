/*
 * Probes: what processes ask of CUDA, NCCL and verbs, told as acts
 *
 * Without the rights, or before Linux 6.6, there are none, and all else works.
 */
#pragma once

#include <stdint.h>

#include "bpf/probe/probes.bpf.h"
#include "bpf/rdma/qp.h"
#include "bpf/request.h"

#define N_PROBE_NEEDS 3 /* uprobe_multi, iter/task_vma, arrivals */

struct mmap_watch;
struct bpf_object;
struct probes;
struct usdt;

/* Looks at all processes once. `ring_size` of its calls in bytes. 0, or negative errno and why. */
int probes_open(struct tracer *t, uint32_t ring_size, struct probes **ret, char ret_why[WHY_SIZE]);
void probes_close(struct probes *p);
/* Tries each thing that they need alone: why the kernel refuses it, or "". */
void probes_look_for_needs(char ret_why[N_PROBE_NEEDS][WHY_SIZE]);
/* What there was no room for is counted when something is told, and by this where nothing is. */
void probes_count_missed(struct probes *p);

/* Tells of all calls that have returned, which nobody has to wait for then. Takes NULL. */
void probes_take(struct probes *p);
/* Likewise, but for those that are counted, which are told no sooner for that. */
void probes_take_calls(struct probes *p);

/* Which queue pairs there are. */
struct qps *probes_qps(struct probes *p);
/* Of weightd's own probes. */
struct usdt *probes_usdt(struct probes *p);
const struct mmap_watch *probes_mmap_watch(const struct probes *p);
/* Its programs; those of these are usdt_object() and mmap_watch_object(). */
const struct bpf_object *probes_object(const struct probes *p);

/* Answers what of it works, and which files are probed. */
void probes_doctor(struct request *q);
