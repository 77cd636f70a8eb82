/*
 * Acts that a client tells of itself: what NCCL does in its process, which the plug-in of NCCL's profiler sees there, and
 * what weightd-sync did for a sync
 *
 * It is a client's word and not the kernel's, which each act says by its "source". Whose it is the tracer says itself.
 */
#pragma once

#include "bpf/request.h"

#define CLIENT_EVENTS_MAX 1000 /* acts of one client in a second */

int client_event_op(struct request *q);
