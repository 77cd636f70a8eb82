/*
 * GPU memory
 *
 * What the server has of GPUs: a worker of their own, so that one that hangs holds up nobody else, and the
 * allocator, to which only that worker talks. weightd itself keeps descriptors, and neither loads libcuda nor
 * holds a context.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"
#include "server/backend/allocator.h"
#include "server/worker.h"

struct server;

struct cuda {
	struct server *server;
	struct worker worker; /* from the first time it is needed */
	bool has_worker;
	struct allocator allocator;
	struct job idle; /* looks whether the allocator is needed still */
	bool idle_submitted;
};

int cuda_init(struct cuda *c, struct server *server);
/* Nobody is waited for: what the worker has at hand fails. Behind it the server's own worker frees. */
void cuda_deinit(struct cuda *c);

/* NULL: no thread can be had. */
struct worker *cuda_worker(struct server *server);

#define CUDA_DEVICES_MAX 64

/*
 * On the worker: the GPUs there are, each with its state; where there are none, or they cannot be used, one
 * record "cuda" that says why. Returns how many.
 */
unsigned cuda_list(struct cuda *c, struct wire_device_record ret[CUDA_DEVICES_MAX]);
