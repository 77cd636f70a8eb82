/*
 * The holder of a model directory: this process, until an event
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "libclient/weightctl/cli.h"

struct holder {
	struct cli *cli;
	struct weightd_model_dir *dir;
	struct weightd_watch *watch; /* NULL: none */
	int restart_fd; /* readable once the server has restarted */
	pthread_t thread; /* waits for restarts, if there is a watch */
};

/* Connects and makes the directory. 0, or EXIT_FAILED after printing why. */
int holder_open(struct holder *h, struct cli *cli, const char *const *specs, size_t n,
		const struct weightd_model_dir_options *options);

/* Paths of the directory lead nowhere without. */
bool holder_has_proc(void);

/* Keeps the leases, also over restarts of the server, until `fd` is readable. */
void holder_keep(struct holder *h, int fd);

/* Removes the directory. */
void holder_close(struct holder *h);
