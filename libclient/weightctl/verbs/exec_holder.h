/*
 * The process that holds a model directory for another one, and ends with it
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "libclient/weightctl/cli.h"

/*
 * Packets to the process that started the holder: a link for each version, then a directory. If the holder fails, it
 * prints why and closes the socket. A packet to the holder makes it end.
 */
struct exec_link {
	dev_t dev; /* file that the link leads to */
	ino_t ino;
	char path[PATH_MAX]; /* with the directory */
};

struct exec_directory {
	pid_t pid; /* of the holder */
	char path[PATH_MAX];
};

struct exec_holder {
	int fd; /* its socket */
	pid_t pid;
	int *weights; /* with `self_fd`: a descriptor for each version; else NULL */
	struct exec_link *links;
	size_t n;
	char path[PATH_MAX]; /* of the directory */
};

/*
 * Starts a holder for the calling process, which must have neither threads nor a connection; `self_fd` as in struct
 * weightd_model_dir_options. It is no child of the caller, which may become another program. 0, or EXIT_FAILED after
 * printing why.
 */
int exec_holder_start(struct exec_holder *h, struct cli *cli, const char *const *specs, size_t n,
		      int self_fd);

/* Makes the holder remove the directory, and waits for that. */
void exec_holder_end(struct exec_holder *h);
