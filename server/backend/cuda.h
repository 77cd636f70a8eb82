/*
 * GPU memory
 *
 * The server's state for GPUs: a worker of their own, so that a GPU that hangs delays nothing else,
 * and the allocator, which only that worker uses. weightd itself keeps descriptors. It neither
 * loads libcuda nor holds a context.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"
#include "server/backend/allocator.h"
#include "server/base/threads/worker.h"

struct backend_memory;
struct numa_policy;
struct server;

struct cuda {
	struct server *server;
	struct worker worker; /* from the first time it is needed */
	bool has_worker;
	struct allocator allocator;
	struct job idle; /* looks whether the allocator is needed still */
	bool idle_submitted;
	unsigned n_known; /* GPUs, as the worker found them last */
	struct wire_device_record *known; /* the loop's */
	struct list holders; /* one for each GPU that has memory of the older kind; see cuda-ipc.c */
};

int cuda_init(struct cuda *c, struct server *server);
/* Waits for nothing: the job in progress fails. Afterwards the server's own worker frees. */
void cuda_deinit(struct cuda *c);

/* NULL: no thread can be had. */
struct worker *cuda_worker(struct server *server);

#define CUDA_DEVICES_MAX 64

/*
 * On the worker: the GPUs there are, each with its state; where there are none, or they cannot be
 * used, one record "cuda" with the reason. Returns how many.
 */
unsigned cuda_list(struct cuda *c, struct wire_device_record ret[CUDA_DEVICES_MAX]);

/* --- used by cuda-ipc.c --- */

/* Asks an allocator for memory, by ALLOCATE or HOLD. As backend::provide. */
int cuda_ask(struct backend_memory *m, struct allocator *a, enum allocator_op op);

/* Common to both backends; see struct backend. */
bool cuda_has_device(const char *device);
int cuda_allocate(struct backend_memory *m, const struct numa_policy *numa);
int cuda_measure(struct backend_memory *m, uint64_t *ret_free);
int cuda_await_free(struct backend_memory *m, uint64_t wanted, uint64_t deadline_ns,
		    uint64_t *ret_free);
int cuda_duplicate(int fd, int *ret_fd);
int cuda_unknown(int fd);
int cuda_nothing_to_do(int fd, uint64_t size);

void cuda_ipc_deinit(struct cuda *c);

/* On the worker: waits for holders that are over. True: some are not. */
bool cuda_ipc_look(struct cuda *c);
