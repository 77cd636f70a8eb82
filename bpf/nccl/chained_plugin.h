/*
 * The next plug-in: NCCL loads one, and who has another one names it in WEIGHTD_NCCL_PROFILER_NEXT
 *
 * It hears what it would have heard from NCCL itself: by the newest of its tables that is none newer than NCCL's, of the
 * events that its mask asks for, with its own contexts and handles. What it does is its own.
 */
#pragma once

#include "bpf/nccl/abi.h"
#include "bpf/nccl/comm.h"

/*
 * A communicator of it, with the lock of plugin.c; opens the plug-in for the first. Adds to `mask` what it asks for. If
 * it cannot be had, `log` is told of that, once.
 */
void chained_plugin_init(struct comm *c, const struct comm_facts *f, int *mask, log_fn log);
void chained_plugin_finalize(struct comm *c);

/* Its handle, or NULL. Any thread, likewise the others; these take NULL. */
void *chained_plugin_start(int api, uint32_t comm, const struct descr *d);
void chained_plugin_stop(void *handle);
void chained_plugin_record_state(void *handle, int state, union state_args *args);
