/*
 * Types that usdt.bpf.c and the collector share
 */
#pragma once

#include <linux/types.h>

/* The probe's cookie; weightd(8) lists the arguments. */
enum usdt_event_kind {
	USDT_ATTACH,
	USDT_DETACH,
	USDT_PUBLISH,
	USDT_FLIP,
	USDT_QUIESCE,
	N_USDT_EVENTS,
};

#define USDT_NAME_SIZE 128 /* bytes of a buffer's name */
#define USDT_DEVICE_SIZE 64
#define USDT_ARGS 4 /* behind these two */
#define USDT_EVENTS_PER_USER_MAX                                                                   \
	16384 /* a second that are reported, for the weightds of any user but root */

struct usdt_event {
	__u64 ns; /* CLOCK_MONOTONIC */
	__u64 args[USDT_ARGS];
	__u32 tgid, uid; /* those of weightd, as the kernel sees it */
	__u32 pid_namespace; /* the namespace of the pids in its arguments: number of the inode */
	__u32 kind; /* enum usdt_event_kind */
	char name[USDT_NAME_SIZE], device[USDT_DEVICE_SIZE]; /* "": could not be read */
};
