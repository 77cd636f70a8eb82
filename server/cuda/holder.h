/*
 * The holder
 *
 * weightd-cuda as the owner of memory of the older kind, which a cudaIpcMemHandle_t leads to as long as the
 * process lives that made it. Each allocation has a pipe, of which only we have the writing end: whoever has
 * the reading end sees it hang up when the memory is no more; and when nobody has it any more, weightd, its
 * service manager and all readers, we see that, and free the memory. So it lives as long as it is wanted,
 * whatever becomes of weightd.
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
 * Frees what nobody wants any more, until `fd` can be read; -1: nobody asks any more. 1: it can; 0: nothing is
 * held, and nobody will ask, or has for some time; or a negative errno.
 */
int holder_wait(struct holder *h, int fd);
