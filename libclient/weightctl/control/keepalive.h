/*
 * Pulses
 *
 * Who waits for something that may take hours asks, whenever nothing came for as long as an answer may take, whether
 * the agent still answers at all: on a connection of its own, for next to nothing.
 */
#pragma once

#include "libclient/weightctl/control/control_client.h"

struct keepalive {
	const struct cli *cli;
	struct control_client control; /* fd -1: it is not being asked; for poll(), otherwise */
	uint64_t since_ns; /* when it was heard last, or asked */
};

void keepalive_init(struct keepalive *p, const struct cli *cli);
void keepalive_deinit(struct keepalive *p);

/* Something came of what is waited for. */
void keepalive_reset(struct keepalive *p);
/* How long poll() may wait. */
int keepalive_timeout_ms(const struct keepalive *p);
/* Afterwards: asks, or takes the answer. 0, or EXIT_FAILED after telling why. */
int keepalive_check(struct keepalive *p);
