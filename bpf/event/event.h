/*
 * Acts: what a process of this node did that is no byte on a socket: it attached, it exported a handle of its
 * memory, it opened one, it called a collective
 *
 * An act is an object of JSON: "kind" is "act", "act" is a word that says which, "ns" (CLOCK_MONOTONIC) is when it
 * was over, "took_ns" how long it took or null; "pid", "uid" and "comm" are whose it was, null where that is not
 * known; "number" is by which other acts may name it. What else is in it depends on the word.
 */
#pragma once

#include "bpf/request.h"

#define EVENTS_MAX 4096 /* that are kept */

/* To those that observe, and kept; it is given its number, tracer::last_event from then on. Takes `act`, which may be NULL where memory ran out. */
void event_emit(struct tracer *t, json_t *event);
void event_set_number(json_t *event, const char *key, uint64_t number);

/* Those that are kept, the oldest first; their kind is "acted". */
int event_op(struct request *q);
