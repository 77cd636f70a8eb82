/*
 * Types that mmap_watch.bpf.c and the collector share
 */
#pragma once

#include <linux/types.h>

#define MMAP_NAME_SIZE 256 /* NAME_MAX, with the NUL */

struct mmap_event {
	__u32 tgid;
	char name[MMAP_NAME_SIZE]; /* "": could not be read */
};
