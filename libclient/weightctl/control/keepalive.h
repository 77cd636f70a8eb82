/*
 * Keepalive
 *
 * A verb that waits for something that may take hours sends a small request on a connection of its own, whenever it
 * has received nothing for as long as a reply may take, to detect an agent that hangs.
 */
#pragma once

#include "libclient/weightctl/control/control_client.h"

struct keepalive {
	const struct cli *cli;
	struct control_client control; /* fd -1: it is not being asked; for poll(), otherwise */
	uint64_t since_ns; /* when it last received or sent something */
};

void keepalive_init(struct keepalive *p, const struct cli *cli);
void keepalive_deinit(struct keepalive *p);

/* The awaited connection has received something. */
void keepalive_reset(struct keepalive *p);
/* How long poll() may wait. */
int keepalive_timeout_ms(const struct keepalive *p);
/* Call it after that time: sends the request, or receives the reply. 0, or EXIT_FAILED after printing why. */
int keepalive_check(struct keepalive *p);
