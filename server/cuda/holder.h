/*
 * The holder
 *
 * weightd-cuda as the owner of memory of the older kind, to which a cudaIpcMemHandle_t leads only
 * while its process lives. Each allocation has a pipe, of which the holder has the only writing
 * end: the reading ends hang up when the memory is lost. When the last reading end is closed
 * (weightd, its service manager and all readers have one), the holder frees the memory. So the
 * memory lives as long as it is used, even without weightd.
 */
#pragma once

#include <stdbool.h>

#include "ipc/base/list.h"
#include "server/cuda/gpu.h"
#include "server/cuda/protocol.h"

struct holder {
	struct gpus *gpus;
	struct list holdings;
	unsigned n;
	unsigned idle_s; /* the process ends when it has held nothing for so long */
};

void holder_init(struct holder *h, struct gpus *g);

/* Makes memory filled with zeros and holds it. Fills in the reply, and on success the pipe's reading end. */
void holder_make(struct holder *h, struct gpu *gpu, const struct allocator_request *q,
		 struct allocator_reply *ret, int *ret_fd);

/*
 * Frees memory without readers, until `fd` can be read; -1: there are no more requests. 1: it can
 * be read; 0: nothing is held and no request will follow, or none has for some time; or a negative
 * errno.
 */
int holder_wait(struct holder *h, int fd);
