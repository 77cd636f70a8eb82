/*
 * Refusals of repairs
 *
 * The answer of a node that was asked to repair another one, and does not.
 */
#pragma once

#include "server/sync/state/agent_state.h"

void repair_refusal_send(struct agent *a, unsigned peer, const char *buffer, const char *code,
			 const char *why);
