/*
 * Backends
 *
 * Where the bytes of a slot live. A backend is a const table and a row in backends[]; a slot's memory
 * is always one descriptor, which keeps it alive. Memory is made on the backend's own worker, so that
 * a device which is slow, or hangs, holds up no other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/numa.h"
#include "ipc/wire.h"
#include "server/base/headroom.h"

struct server;
struct worker;

#define BACKEND_WHY_SIZE 320

struct backend_progress {
	uint64_t done; /* bytes that have their memory */
	uint64_t huge; /* in huge pages */
	uint64_t allowed; /* bytes up to which there was room for all, when that was last looked at */
	uint64_t missing; /* with -ENOMEM: how much more the device would have to have free */
};

/* The memory of one slot, in the making and made. */
struct backend_memory {
	struct server *server; /* a backend may have state there */
	uint64_t size;
	const char *label; /* a name that /proc shows, or NULL: only on the host, for allocate */
	int fd; /* writable; -1: none yet, or given up */
	struct wire_location location;
	struct backend_progress progress;
	char why[BACKEND_WHY_SIZE]; /* describes a failure: the end of a sentence for a person, may be empty */
	char nodes[NUMA_TEXT_MAX]; /* at -ENOMEM: the nodes that it must be on, if these are short of it; "": others are */
	char limit[HEADROOM_LIMIT_MAX]; /* as headroom::limit; only on the host, measured or at -ENOMEM */
};

struct backend {
	enum wire_memory memory; /* sent to clients */

	/*
	 * Descriptors of such memory show neither its users nor its content: leases are believed,
	 * and so is what the store returned after a restart.
	 */
	bool opaque;

	/* Such memory dies with the process that holds it: its descriptor hangs up then. See lost_memory.h. */
	bool mortal;

	/* True for the spelling of a device of this backend: "host". */
	bool (*has_device)(const char *device);

	/* The worker for its blocking work. NULL: no thread can be started. */
	struct worker *(*worker)(struct server *server);

	/*
	 * Makes `m->fd`, for bytes that have no memory yet, without blocking; or leaves that to provide. `numa` places memory
	 * of the host; NULL: as the kernel does.
	 */
	int (*allocate)(struct backend_memory *m, const struct numa_policy *numa);

	/*
	 * On the worker: gives memory to the next part, blocking for some milliseconds; until a deadline
	 * where a device has to answer. JOB_AGAIN; JOB_DONE, and then there is `m->fd`; -ENOMEM, decided
	 * before the memory is touched, since past a cgroup's limit the kernel kills; or another errno.
	 */
	int (*provide)(struct backend_memory *m);

	/* On the worker: how many bytes there are for provide now. */
	int (*measure)(struct backend_memory *m, uint64_t *ret_free);

	/*
	 * Runs on the worker, for memory without a descriptor that shows its end: asks for the free
	 * bytes of the device, until there are as many as wanted. 0; -EBUSY when there are not by
	 * the deadline; or another errno. NULL: closing the descriptors shows it.
	 */
	int (*await_free)(struct backend_memory *m, uint64_t wanted, uint64_t deadline_ns,
			  uint64_t *ret_free);

	/* A descriptor of the same memory that cannot be used to write it, where there is such a thing. */
	int (*reader)(int fd, int *ret_fd);

	/* Returns a writable descriptor for one of reader(), if the memory is not sealed. */
	int (*writable)(int fd, int *ret_fd);

	/*
	 * 1 if another descriptor than `fd`, one of reader(), has the memory open or mapped; 0 if
	 * none; negative: unknown.
	 */
	int (*in_use)(int fd);

	/* Likewise for descriptors and mappings that can write it. */
	int (*has_writer)(int fd);

	/*
	 * The bytes from the first one on that have memory behind them, or fewer, and whether it is
	 * immutable. For descriptors from the store, unless the backend is opaque.
	 */
	int (*describe)(int fd, uint64_t *ret_size, uint64_t *ret_done, bool *ret_sealed);

	/* Checks that nothing was taken out of memory that is not going to be sealed. 0, -ENODATA. */
	int (*is_whole)(int fd, uint64_t size);

	/*
	 * Makes the memory immutable, blocking for up to 160 ms. -EBUSY while a process maps it
	 * writable; -EPERM when the writer has forbidden seals; -ENODATA when parts of it were
	 * removed.
	 */
	int (*seal)(int fd, uint64_t size);

	/*
	 * Lets every user open sealed memory by a path in /proc, if another process of that user has
	 * it open. NULL: it has none.
	 */
	int (*share)(int fd);
};

extern const struct backend backend_host;

/* On the worker: true if backend_host provides the next part without a look at the memory that is free. */
bool host_has_looked(const struct backend_memory *m);

extern const struct backend backend_cuda;
extern const struct backend backend_cuda_ipc;

/*
 * The backend of a device, for memory of the older kind (WIRE_CREATE_IPC) if `is_ipc`. -ENODEV: there is no
 * such device; -EOPNOTSUPP: it has no memory of that kind.
 */
int backend_find(const char *device, bool is_ipc, const struct backend **ret);
