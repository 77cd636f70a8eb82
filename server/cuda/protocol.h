/*
 * The protocol between weightd and weightd-cuda
 *
 * One SOCK_SEQPACKET, descriptor 3 of weightd-cuda. weightd sends one request at a time, and
 * weightd-cuda replies; when weightd closes its end, weightd-cuda exits. Both must be of the same
 * release, and compare it: after a package is upgraded, a running weightd meets the newer program.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/wire.h"

#define ALLOCATOR_PROTOCOL 2
#define ALLOCATOR_FD 3
#define ALLOCATOR_WHY_SIZE 256

enum allocator_op {
	ALLOCATOR_DEVICE = 1, /* describes the GPU `index`; -ENOENT past the last */
	ALLOCATOR_ALLOCATE, /* `size` bytes of zeros; the reply carries their descriptor */
	ALLOCATOR_HOLD, /* likewise, of the older kind: its pipe and its handle; see holder.h */
	ALLOCATOR_FREE, /* how much memory the GPU has free */
	ALLOCATOR_OP_END,
};

struct allocator_request {
	uint32_t protocol;
	uint32_t op; /* enum allocator_op */
	uint64_t serial; /* repeated in the reply */
	uint64_t size;
	uint64_t reserve; /* bytes that must be left free */
	uint32_t index;
	uint32_t idle_s; /* with HOLD: it ends when it has held nothing for so long */
	uint8_t uuid[WIRE_UUID_SIZE]; /* UUID of the GPU, except with DEVICE */
};
static_assert(sizeof(struct allocator_request) == 56, "both ends agree on allocator_request");

struct allocator_reply {
	uint32_t protocol;
	uint32_t op;
	uint64_t serial;
	int32_t error; /* 0 or a negative errno, and then there is a `why` */
	uint32_t pad;
	uint64_t free,
		total; /* bytes of the GPU: of FREE, of ALLOCATE and HOLD and of their -ENOMEM */
	uint64_t needed; /* bytes the allocation takes of them: its size, rounded up */
	char name[WIRE_NAME_SIZE]; /* name of the GPU, likewise */
	uint8_t handle[WIRE_HANDLE_SIZE]; /* only with HOLD */
	char why[ALLOCATOR_WHY_SIZE]; /* a clause for a person */
	struct wire_device_record device; /* only with DEVICE */
};
static_assert(sizeof(struct allocator_reply) == 992, "both ends agree on allocator_reply");

/* True for a packet of the right size and number of descriptors, with all fields within their bounds. */
bool allocator_request_ok(const void *data, size_t size, unsigned n_fds);
bool allocator_reply_ok(const void *data, size_t size, unsigned n_fds);
