/*
 * Memory of writer groups
 *
 * The parts of a job: memfds that cannot shrink, grow or be sealed, made all or none, in steps on the worker,
 * under the same limits as slots. weightd keeps a read-only descriptor of each, which the store has too: while
 * another one is open, or a mapping exists, the kernel refuses a lease on it. The memory stays charged until then.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/wire.h"
#include "server/backend/backend.h"
#include "server/base/freeing.h"
#include "server/base/threads/worker.h"
#include "server/state/quota.h"

struct server;

struct group_part {
	char kind[WIRE_KIND_SIZE];
	uint64_t id;
	struct backend_memory memory; /* its descriptor is -1 once there is probe_fd */
	int probe_fd; /* read-only */
};

struct group_memory {
	struct server *server;
	uid_t uid; /* the user that is charged */
	unsigned n_parts;
	struct group_part parts[WIRE_JOB_PARTS_MAX];
	uint64_t size; /* bytes of all parts */
	uint64_t n_free; /* after -ENOMEM of providing: bytes that there were for the parts, in all */
	uint64_t missing; /* ... and how many more there would have to be */
	char limit[HEADROOM_LIMIT_MAX]; /* ... and the limit; "": that of the machine */
	bool provided; /* whole: the worker has finished with it */
	bool kept; /* in the store */
	struct charge charge;
	struct charge descriptors;
	struct job job; /* providing, and at last freeing */
	struct freeing freeing;
};

/*
 * Allocates parts without memory yet for the job of that name, and charges `uid`. 0, QUOTA_EXCEEDED or a negative errno;
 * -EOVERFLOW: together they are larger than any memory.
 */
int group_memory_new(struct server *server, uid_t uid, const char *name,
		     const struct wire_job_join *join, struct group_memory **ret);

/*
 * Recovers parts with these ids and descriptors, which it takes on success. Charges in any case; the caller must set
 * `kept`. -EBADMSG: one of them is not the memory of a part.
 */
int group_memory_recover(struct server *server, uid_t uid, const struct wire_job_part *parts,
			 unsigned n_parts, const uint64_t *ids, int *fds, struct group_memory **ret);

/* Takes memory that no job works on and no process has, or NULL. It leaves the store, and is not charged any more. */
void group_memory_free(struct group_memory *m);

/* On the worker: the next step, as backend::provide. -ENOMEM also when the rest of all parts has no room. */
int group_memory_provide(struct group_memory *m);

/* Puts it into the store. */
void group_memory_keep(struct group_memory *m);

/* True for the same parts. */
bool group_memory_has(const struct group_memory *m, const struct wire_job_part *parts,
		      unsigned n_parts);

/* A new descriptor, with an offset of its own, that can write a part. */
int group_memory_open(const struct group_memory *m, unsigned part, int *ret_fd);

/* A new descriptor, with an offset and a lease of its own, that can read part 0. */
int group_memory_view(const struct group_memory *m, int *ret_fd);

/* The first eight bytes of part 0; read, never mapped, since a rank may remove the pages. */
uint64_t group_memory_step(const struct group_memory *m);

/* Shows the ranks that the job was removed. */
void group_memory_mark_removed(const struct group_memory *m);

/* True while a process has a part open or mapped. */
bool group_memory_in_use(const struct group_memory *m);
