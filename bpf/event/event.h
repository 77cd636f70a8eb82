/*
 * Events: what a process of this node did that is no byte on a socket: it attached, it exported a handle of its memory, it
 * opened one, it called a collective
 *
 * An event is an object of JSON: "kind" is "act", "act" is a word that says which, "ns" (CLOCK_MONOTONIC) is when it was
 * over, "took_ns" how long it took or null; "pid", "uid" and "comm" name the process, null where that is not known;
 * "number" is how other events refer to it. The word decides what else is in it.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "bpf/base/collector.h"

/* As a gap names them. */
extern const char *const event_source_names[N_EVENT_SOURCES];

/* Gives the event the next number. Observers receive it, and it is kept. Takes `event`; NULL: memory ran out. */
void event_emit(struct collector *c, json_t *event);
/* Observers learn that there was no room for so many. */
void event_count_lost(struct collector *c, uint64_t n, enum event_source source);
/* Observers learn that calls into this file went unseen since then, however many there were. */
void event_report_unseen(struct collector *c, const char *path, uint64_t since_ns,
			 enum event_source source);

void event_set_number(json_t *event, const char *key, uint64_t number);
