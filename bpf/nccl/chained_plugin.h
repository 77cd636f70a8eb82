/*
 * The chained plug-in: NCCL loads one plug-in, and WEIGHTD_NCCL_PROFILER_NEXT names another one
 *
 * It gets the calls that it would have from NCCL itself: through the newest of its tables that is not newer than
 * NCCL's, for the events in its mask, with its own contexts and handles.
 */
#pragma once

#include "bpf/nccl/abi.h"
#include "bpf/nccl/comm.h"

/*
 * Opens a communicator of it, with the lock of plugin.c, and the plug-in before the first. Adds to `mask` the events
 * that it wants. If it cannot be loaded, `log` gets the reason, once.
 */
void chained_plugin_init(struct comm *c, const struct comm_facts *f, int *mask, log_fn log);
void chained_plugin_finalize(struct comm *c);

/* Its handle, or NULL. Any thread, likewise the others; these take NULL. */
void *chained_plugin_start(int api, uint32_t comm, const struct descr *d);
void chained_plugin_stop(void *handle);
void chained_plugin_record_state(void *handle, int state, union state_args *args);
