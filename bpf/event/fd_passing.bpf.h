/*
 * Types that fd_passing.bpf.c and the collector share
 */
#pragma once

#include <linux/types.h>

#define PASSED_COMM_SIZE 16
#define PASSED_NAME_SIZE 256 /* NAME_MAX, with the NUL */
#define PASSED_OF_USER_MAX                                                                         \
	4096 /* a second that are reported for each user, of those that it receives */

/* The kind of memory behind a descriptor. */
enum memory {
	MEMORY_NONE,
	MEMORY_MEMFD,
	MEMORY_HUGETLB, /* a memfd of huge pages, or a file of hugetlbfs */
	MEMORY_TMPFS,
	MEMORY_DMA_BUF,
	MEMORY_NVIDIA, /* the kind through which CUDA shares memory that it has allocated */
	N_MEMORIES,
};

/* The way in which it was passed. */
enum by {
	BY_OTHER,
	BY_MESSAGE, /* SCM_RIGHTS */
	BY_PIDFD, /* pidfd_getfd() */
	N_BYS,
};

/* The process that had it before. */
struct giver {
	__u64 ns; /* CLOCK_MONOTONIC, when it was sent */
	__u32 tgid, uid;
	char comm[PASSED_COMM_SIZE];
};

/* A descriptor that a process has received. */
struct passed_fd {
	__u64 ns; /* CLOCK_MONOTONIC */
	__u64 bytes, ino;
	struct giver from;
	__u32 tgid, tid, uid;
	__s32 fd;
	__u8 memory; /* enum memory */
	__u8 by; /* enum by */
	__u8 has_from;
	__u8 is_memfd; /* its name begins with "memfd:" */
	char comm[PASSED_COMM_SIZE];
	char name[PASSED_NAME_SIZE]; /* "": could not be read */
};

/* Descriptors that were received and are not reported. */
struct unreported {
	__u64 ring; /* it had no room */
	__u64 limited; /* its user had as many as it may */
};
