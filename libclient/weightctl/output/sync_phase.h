/*
 * Phases that syncs went through, as weightd-sync told weightd-trace: acts "sync_phase"
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stay;

struct sync_phases {
	struct stay *stays; /* times in a phase, in the order in which they were told */
	size_t n_stays;
};

/* Of a packet of weightd-trace that is another one, nothing. */
void sync_phases_take(struct sync_phases *p, const json_t *packet);
/*
 * A line for each program that had a part in the sync: how long it took there, and what for. A phase is told when it
 * has ended: of a sync that goes on one is missing, and the line says so.
 */
void sync_phases_put(const struct sync_phases *p, const char *sync, bool is_over);
/* [{"pid", "comm", "role", "phase", "took_ns"}, ...]: a phase of a program once, however often it was in it. */
json_t *sync_phases_json(const struct sync_phases *p, const char *sync);
void sync_phases_deinit(struct sync_phases *p);
