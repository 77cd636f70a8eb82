/*
 * Phase times
 *
 * How long syncs stay in each phase: summed up for the metrics, and told to weightd-trace.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* NULL: that phase has no name, and its time is not counted. */
const char *phase_time_name(enum metrics_role role, unsigned phase);

/* Called after each event: adds up the time that syncs spent in phases that they left. */
void phase_time_step(struct agent *a);
