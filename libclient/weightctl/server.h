/*
 * The connection to weightd, and the buffers that verbs attach through it
 */
#pragma once

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"

/* 0, or EXIT_FAILED after telling how to start a server, or that it has no such device. */
int server_connect(struct cli *cli);
/* The same, but waits as long for a server whose socket is missing, or has no listener. */
int server_connect_within(struct cli *cli, int timeout_ms);

/* Tells which version of the buffer it is now, as a line or as JSON. Returns 0. */
int server_print_version(struct cli *cli, const char *name, uint64_t version);

/* Attaches the target on the device asked for. 0, or EXIT_FAILED after telling why. */
int server_attach(struct cli *cli, const struct target *target, struct weightd_buffer **ret);

static inline void server_detachp(struct weightd_buffer **b)
{
	weightd_detach(*b);
}
