/*
 * Memory
 *
 * The bytes of a slot as this process maps them. A kind of memory is a const table and a row in kinds[]: mmap() for
 * host memory, the CUDA driver for memory of a GPU. Addresses are constant from the first map to the last unmap:
 * publishing, swapping and returning the memory for a while change only the memory behind them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/hash.h"
#include "ipc/wire.h"
#include "libclient/connection/sentence.h"
#include "weightd.h"

enum memory_access {
	MEMORY_READ,
	MEMORY_WRITE, /* and read */
};

struct memory {
	const struct memory_kind *kind; /* NULL: never mapped */
	struct wire_location location;
	void *data; /* first byte of the data; on a GPU, an address of that GPU */
	uint64_t offset; /* of the data in an image; 0: the slot has the flat form */
	uint64_t size; /* bytes from there to the end; in the flat form with the table of leaf digests */
	bool is_mapped; /* else `data` is only kept */
	enum memory_access access;
	int device; /* ordinal of the GPU that maps it, in this process; -1: host memory */
	void *state; /* the kind's own, NULL where it has none */
};

struct memory_request {
	struct wire_location location;
	uint64_t offset; /* like memory::offset */
	uint64_t size; /* likewise */
	enum memory_access access;
	int fd; /* descriptor received with the location; the caller owns it */
	int device; /* map: the GPU that is to map it; -1: the one that has it */
	void *stream; /* replace: waited for after all steps that can fail, before the old memory is unmapped */
};

/* The sentence of a failure is a clause, "out of memory": the caller adds the subject. */
struct memory_kind {
	/* Maps it at a free address. */
	int (*map)(struct memory *m, const struct memory_request *q, struct sentence *s);

	/*
	 * Maps other memory of the same size and kind at the address of `m`, mapped or only reserved. A failure leaves
	 * `m` unchanged.
	 */
	int (*replace)(struct memory *m, const struct memory_request *q, struct sentence *s);

	/* Maps the same memory with another access, in place, by a descriptor that allows it. Likewise. */
	int (*protect)(struct memory *m, const struct memory_request *q, struct sentence *s);

	/* Unmaps the memory and keeps the address. */
	int (*let_go)(struct memory *m, struct sentence *s);

	/* Unmaps and frees it, in any state. */
	void (*unmap)(struct memory *m);

	/* Copies bytes out and in, blocking until they are there. */
	int (*read)(const struct memory *m, uint64_t offset, void *to, uint64_t n,
		    struct sentence *s);
	int (*write)(struct memory *m, uint64_t offset, const void *from, uint64_t n,
		     struct sentence *s);

	/*
	 * The digests of leaves [first, first + n) of the `data_size` bytes at the start, where the bytes are:
	 * by the GPU for its own. From any thread, also from several at once.
	 */
	int (*digest)(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		      uint8_t (*ret)[HASH_SIZE], struct sentence *s);

	/* Waits for the work queued so far in `stream` (or in all streams of the process on that GPU). */
	int (*synchronize)(const struct memory *m, void *stream, struct sentence *s);

	/* Records a mark behind the work queued so far in `stream`; queries the mark, or waits for it. */
	int (*mark)(struct memory *m, void *stream, struct sentence *s);
	bool (*has_passed)(const struct memory *m, bool wait);

	/* -EIO if the memory was lost with its process. NULL: that cannot happen. */
	int (*check)(const struct memory *m, struct sentence *s);
};

/* A kind for each enum wire_memory. */
extern const struct memory_kind host_memory;
extern const struct memory_kind cuda_memory;
extern const struct memory_kind cuda_ipc_memory;

/*
 * The functions of the kind; all return 0 or a negative errno with its clause. -EADDRNOTAVAIL: only the address
 * is reserved; -ERANGE: not within the memory.
 */
int memory_map(struct memory *m, const struct memory_request *q, struct sentence *s);
int memory_replace(struct memory *m, const struct memory_request *q, struct sentence *s);
int memory_protect(struct memory *m, const struct memory_request *q, struct sentence *s);
int memory_let_go(struct memory *m, struct sentence *s);
void memory_unmap(struct memory *m); /* a zeroed one is fine; afterwards it is zeroed */
int memory_read(const struct memory *m, uint64_t offset, void *to, uint64_t n, struct sentence *s);
int memory_write(struct memory *m, uint64_t offset, const void *from, uint64_t n,
		 struct sentence *s);
int memory_digest(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		  uint8_t (*ret)[HASH_SIZE], struct sentence *s);
int memory_synchronize(const struct memory *m, void *stream, struct sentence *s);
int memory_mark(struct memory *m, void *stream, struct sentence *s);
bool memory_has_passed(const struct memory *m, bool wait);
int memory_check(const struct memory *m, struct sentence *s);

/* True if the form of the slot and the place of the data in a page allow memory_replace(). */
bool memory_is_congruent(const struct memory *m, uint64_t offset);

/* True if the descriptor that accompanies the location is of the bytes, for other processes to map. */
static inline bool memory_has_descriptor(const struct memory *m)
{
	return m->location.memory != WIRE_MEMORY_CUDA_IPC;
}
