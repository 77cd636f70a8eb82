/*
 * The connection to weightd, and the buffers that verbs attach through it
 */
#pragma once

#include "libclient/weightctl/cli.h"

/* 0, or EXIT_FAILED after printing how to start a server, or that it has no such device. */
int server_connect(struct cli *cli);
/* The same, but retries for that time while the socket is missing or has no listener. */
int server_connect_within(struct cli *cli, int timeout_ms);

/* Prints the current version of the buffer, as a line or as JSON. Returns 0. */
int server_print_version(struct cli *cli, const char *name, uint64_t version);

/* Attaches the target on the requested device. 0, or EXIT_FAILED after printing why. */
int server_attach(struct cli *cli, const struct target *target, struct weightd_buffer **ret);

/*
 * Fetches the files of the target, or fails with EXIT_FAILED after printing why. A target without a version gets that of
 * the current one.
 */
int server_files(struct cli *cli, struct target *target, struct weightd_files **ret);

/* The attributes, as the member "attributes" of the open object. `files` NULL: none. */
void server_put_attributes(const struct weightd_files *files, struct json *json);

static inline void server_files_freep(struct weightd_files **files)
{
	weightd_files_free(*files);
}

static inline void server_detachp(struct weightd_buffer **b)
{
	weightd_detach(*b);
}
