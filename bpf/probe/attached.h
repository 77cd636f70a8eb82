/*
 * Current attachments of processes, as far as they were seen: only weightd has the earlier ones
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bpf/base/process.h"
#include "bpf/probe/usdt.bpf.h"
#include "ipc/base/list.h"

#define ATTACHED_MAX 8192 /* the most that one answer holds */
#define ATTACHED_OF_USER_MAX 4096 /* limit for the weightds of any user but root */
#define ATTACHED_BUCKETS 1024

struct attachment {
	struct list link; /* attached::buckets */
	uint64_t lease; /* is one of that weightd */
	uint32_t weightd, weightd_uid;
	pid_t pid; /* 0: unknown here */
	uid_t uid;
	char comm[COMM_SIZE]; /* "": unknown */
	char name[USDT_NAME_SIZE], device[USDT_DEVICE_SIZE];
	uint64_t version, bytes;
	uint64_t ns; /* since then */
};

struct attached {
	struct list buckets[ATTACHED_BUCKETS];
	unsigned n;
	uint64_t swept_ns; /* when it was full, and ended attachments were dropped */
	uint64_t n_lost; /* there was no room for, or they were not seen to begin or to end */
};

void attached_init(struct attached *a);
void attached_deinit(struct attached *a);
/* A copy, if there is room. */
void attached_add(struct attached *a, const struct attachment *one);
/* NULL: it was not seen to begin. */
struct attachment *attached_find(const struct attached *a, uint32_t weightd, uint64_t lease);
void attached_remove(struct attached *a, struct attachment *one);
/*
 * Calls for each that may still be, unless `fn` is NULL; drops those of processes that have ended.
 */
void attached_each(struct attached *a, void (*fn)(void *context, const struct attachment *one),
		   void *context);
