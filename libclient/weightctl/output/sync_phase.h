/*
 * Phases of syncs, which weightd-sync reported to weightd-trace as events "sync_phase"
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct stay;

struct sync_phases {
	struct stay *stays; /* times in a phase, in the order of the reports */
	size_t n_stays;
};

/* Ignores all other packets of weightd-trace. */
void sync_phases_take(struct sync_phases *p, const json_t *packet);
/*
 * Prints a line for each program with a part in the sync: its time in it, by phase. A phase is reported at its end;
 * for a sync in progress the last one is missing, and the line notes that.
 */
void sync_phases_put(const struct sync_phases *p, const char *sync, bool is_over);
/* [{"pid", "comm", "role", "phase", "took_ns"}, ...]: a phase of a program once, however often it was in it. */
json_t *sync_phases_json(const struct sync_phases *p, const char *sync);
void sync_phases_deinit(struct sync_phases *p);
