/*
 * Events of NCCL's profiler, as its callbacks record them
 *
 * Callbacks run in NCCL's threads, some of which move its data: they take no lock, and make no system call except
 * those that read the clock and a socket's number.
 */
#pragma once

#include "bpf/nccl/abi.h"

/* The events that we want. Neither kernels nor control of the proxy: those cost NCCL more. */
#define EVENTS_ASKED (EVENT_COLL | EVENT_P2P | EVENT_NET | EVENT_CE_COLL)

/* The types that a version has, and their bits. */
int event_known_by(int api);

/* The bits of a mask that make NCCL report events of this type: it reports those above it, too. */
int event_implied_by(uint64_t type);

/* Sets the events that are wanted; before any event. */
void event_set_mask(int mask);

void event_start(int api, void *context, void **ret_handle, const struct descr *d);
void event_stop(void *handle);
void event_record_state(void *handle, int state, union state_args *args);
