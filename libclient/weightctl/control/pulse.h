/*
 * Pulses
 *
 * Who waits for something that may take hours asks, whenever nothing came for as long as an answer may take, whether
 * the agent still answers at all: on a connection of its own, for next to nothing.
 */
#pragma once

#include "libclient/weightctl/control/agent.h"

struct pulse {
	const struct cli *cli;
	struct agent agent; /* fd -1: it is not being asked; for poll(), otherwise */
	uint64_t since_ns; /* when it was heard last, or asked */
};

void pulse_init(struct pulse *p, const struct cli *cli);
void pulse_deinit(struct pulse *p);

/* Something came of what is waited for. */
void pulse_heard(struct pulse *p);
/* How long poll() may wait. */
int pulse_timeout_ms(const struct pulse *p);
/* Afterwards: asks, or takes the answer. 0, or EXIT_FAILED after telling why. */
int pulse_look(struct pulse *p);
