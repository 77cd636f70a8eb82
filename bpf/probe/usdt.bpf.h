/*
 * What usdt.bpf.c and the collector tell each other
 */
#pragma once

#include <linux/types.h>

/* What the probe's cookie says it is; weightd(8) has their arguments. */
enum said_kind {
	SAID_ATTACH,
	SAID_DETACH,
	SAID_PUBLISH,
	SAID_FLIP,
	SAID_QUIESCE,
	N_SAID,
};

#define SAID_NAME_SIZE 128 /* of a buffer */
#define SAID_DEVICE_SIZE 64
#define SAID_ARGS 4 /* behind these two */
#define SAID_OF_USER_MAX 16384 /* a second that are told, of the weightds of any user but root */

struct said {
	__u64 ns; /* CLOCK_MONOTONIC */
	__u64 args[SAID_ARGS];
	__u32 tgid, uid; /* of weightd, as the kernel itself knows it */
	__u32 pid_namespace; /* whose pids are in what it says: number of the inode */
	__u32 kind; /* enum said_kind */
	char name[SAID_NAME_SIZE], device[SAID_DEVICE_SIZE]; /* "": could not be read */
};
