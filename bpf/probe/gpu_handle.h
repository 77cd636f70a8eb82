/*
 * Handles that processes exported, for others to open
 *
 * A key, whatever bytes it is made of, finds the handle that was exported last under it. There is a limit, and one
 * for each user, beyond which the oldest is dropped.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "bpf/event/event_cause.h"
#include "ipc/base/list.h"

#define GPU_HANDLES_MAX 2048
#define GPU_HANDLES_PER_USER_MAX 512 /* no user takes the room of all others */
#define GPU_HANDLE_KEY_SIZE 64

/* Without padding: it is compared as it lies in memory. */
struct gpu_handle_key {
	uint64_t kind; /* keys of different kinds differ */
	uint8_t bytes[GPU_HANDLE_KEY_SIZE];
};

struct gpu_handle {
	struct list link; /* gpu_handles::all */
	struct gpu_handle_key key;
	struct event_cause cause;
	uint64_t size; /* UINT64_MAX: unknown */
	uid_t uid;
};

struct gpu_handles {
	struct list all; /* struct gpu_handle, the oldest first */
	unsigned n;
};

void gpu_handles_init(struct gpu_handles *e);
void gpu_handles_deinit(struct gpu_handles *e);
/* A copy; what had this key has it no more. Without memory there is none. */
void gpu_handles_add(struct gpu_handles *e, const struct gpu_handle *handle);
/* NULL: it was not seen. */
const struct gpu_handle *gpu_handles_find(const struct gpu_handles *e,
					  const struct gpu_handle_key *key);
void gpu_handles_remove(struct gpu_handles *e, const struct gpu_handle_key *key);
