/*
 * Events: actions of a process of this node that put no byte on a socket: it attached, exported a handle of its
 * memory, opened one, or called a collective
 *
 * An event is an object of JSON: "kind" is "act", "act" is the word for the action, "ns" (CLOCK_MONOTONIC) is when it
 * ended, "took_ns" how long it took or null; "pid", "uid" and "comm" name the process, null if unknown; other events
 * refer to it by "number". The word decides what else is in it.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "bpf/base/collector.h"

/* As a gap names them. */
extern const char *const event_source_names[N_EVENT_SOURCES];

/* Gives the event the next number. Observers receive it, and it is kept. Takes `event`; NULL: memory ran out. */
void event_emit(struct collector *c, json_t *event);
/* Reports to observers that so many events had no room. */
void event_count_lost(struct collector *c, uint64_t n, enum event_source source);
/*
 * Reports to observers that calls into this file were not seen since then, however many there were.
 */
void event_report_unseen(struct collector *c, const char *path, uint64_t since_ns,
			 enum event_source source);

void event_set_number(json_t *event, const char *key, uint64_t number);
