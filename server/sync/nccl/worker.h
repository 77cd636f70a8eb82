/*
 * The worker
 *
 * The thread that makes every call of the driver and of NCCL. It maps the memory, forms the
 * communicator, has the operation queue its bytes in buckets, with an event after each, and waits
 * until all nodes have confirmed. NCCL has no deadlines, and a driver may never return: the worker
 * polls, with deadlines of its own, and the loop checks that it still polls.
 */
#pragma once

#include "server/sync/base/merkle.h"
#include "server/sync/engine/nodes.h"
#include "server/sync/nccl/engine.h"

#define WORKER_DEPTH 4 /* buckets that are queued on the GPU */
#define WORKER_GATHER_MAX 512 /* bytes of one node */

struct bucket {
	cu_event event;
	uint64_t done, sent; /* bytes in place, and sent, once it has ended */
};

/*
 * Values that the GPU reads and writes when its stream reaches them. They are in pinned memory: a
 * copy from other memory may block until the work queued before it is done, and after the death of
 * a peer that work never ends. The GPU's scratch memory has the same layout.
 */
struct pinned {
	uint8_t ours[MERKLE_HASH_SIZE], theirs[MERKLE_HASH_SIZE];
	uint32_t one, count;
	uint8_t gathered[ENGINE_NODES_MAX * WORKER_GATHER_MAX]; /* one node's behind the other's */
	uint8_t leaf[MERKLE_LEAF_SIZE];
};
_Static_assert(sizeof(struct pinned) <= GPU_SCRATCH_SIZE, "gpu_open() pins as much");

struct worker {
	struct engine *e;
	nccl_comm comm; /* NULL: none yet */
	bool is_parted; /* nothing more is asked of it */
	nccl_result grouped; /* the first failure in the open group */
	struct pinned *pinned;
	struct bucket buckets[WORKER_DEPTH]; /* a ring; all other work shares one event */
	unsigned first, n;
	uint64_t done, sent; /* of all that was queued */
	uint64_t queued; /* bytes sent by buckets: the rate is of these */
	uint64_t moved_ns; /* time of the last progress */
};

int worker_start(struct engine *e, char why[ENGINE_ORDER_WHY_SIZE]);

/* --- Called by operations, on the worker's thread. False: the failure is reported ---------------- */

/* The address of a member of struct pinned in the scratch memory. */
static inline cu_ptr worker_scratch(const struct worker *w, size_t offset)
{
	return w->e->gpu.scratch + offset;
}

bool worker_map(struct worker *w, int fd, uint64_t map_size, bool is_read_only, cu_ptr *ret);
/* Reports a call of the driver that failed. */
bool worker_check(struct worker *w, cu_result result);
/* Waits until the communicator has completed the last call, which returned `result`. */
bool worker_settle(struct worker *w, nccl_result result);

/* Calls between begin and end become one for the communicator, which then completes them. */
bool worker_group_begin(struct worker *w);
void worker_group_add(struct worker *w, nccl_result result);
bool worker_group_end(struct worker *w);

/* Ends a bucket, which has so many bytes more. */
bool worker_end_bucket(struct worker *w, uint64_t n_done, uint64_t n_sent);
/* Waits until all queued work is done. */
bool worker_flush(struct worker *w);
/*
 * Exchanges `size` bytes with all nodes; pinned::gathered then has everybody's, in the order of the
 * ranks.
 */
bool worker_gather(struct worker *w, const void *ours, size_t size);
/* Copies from the GPU to pinned::leaf. */
bool worker_read_leaf(struct worker *w, cu_ptr from, size_t size);
