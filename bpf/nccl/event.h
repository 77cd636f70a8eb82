/*
 * Events: what NCCL's callbacks come down to
 *
 * They run in NCCL's threads, of which some move its data: they take no lock and make no call of the system but those
 * that read the clock and a socket's number.
 */
#pragma once

#include "bpf/nccl/abi.h"

/* What is asked for. Neither kernels nor control of the proxy: those cost NCCL more. */
#define EVENTS_ASKED (EVENT_COLL | EVENT_P2P | EVENT_NET | EVENT_CE_COLL)

/* The types that a version has, and their bits. */
int event_known_by(int api);

/* Which bits of a mask make NCCL tell of events of this type: it tells of what is above, too. */
int event_implied_by(uint64_t type);

/* Of those asked for; before any event. */
void event_set_mask(int mask);

void event_start(int api, void *context, void **ret_handle, const struct descr *d);
void event_stop(void *handle);
void event_record_state(void *handle, int state, union state_args *args);
