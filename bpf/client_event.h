/*
 * Events that a client reports about itself: NCCL's work in its process, from the plug-in of NCCL's profiler, and
 * what weightd-sync did for a sync
 *
 * The kernel vouches for none of it, which each event shows by its "source". The tracer itself adds the identity of
 * the client.
 */
#pragma once

#include "bpf/request.h"

#define CLIENT_EVENTS_MAX 1000 /* events of one client in a second */

int client_event_op(struct request *q);
