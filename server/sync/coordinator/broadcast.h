/*
 * Broadcasts
 *
 * One version on its way from this node to members of a group: all of them for a push, a single one for a
 * repair. This node coordinates it and is the source of its bytes.
 */
#pragma once

#include "server/sync/coordinator/sync.h"
#include "server/sync/state/gpu_memory.h"
#include "server/sync/state/patch_chain.h"

#define EPOCHS_MAX 8 /* each further one begins with the loss of a member */
#define BLAMED_MAX 2 /* links that may break at a member before others come first */

/* The version as a patch: see patch_policy.h. */
struct patch_policy {
	struct patch_chain patch_chain; /* that this node keeps, and that end with the version */
	unsigned first; /* the first patch that is needed */
	bool is_composing;
	int fd; /* the patch that travels; -1: none does, or not yet */
	uint64_t size;
	uint64_t changed; /* bytes of elements that it changes */
};

struct loan;

struct broadcast {
	struct sync sync; /* without this node as a member: it has the version already */
	uint64_t share; /* that a repair has of repair_rate now; 0: there is no limit */
	struct version_id before; /* the committed version of this node at that time; it stays after a failure */

	struct loan *loan;
	bool is_gone; /* a user removed the version meanwhile; the source still has the memory */
	bool is_unwanted; /* that memory is wanted back */
	int layout_fd;
	int data_fd;
	uint64_t data_offset; /* where its bytes begin in `data_fd`: behind the header of a file */
	int leaves_fd;
	int companions_fd; /* -1: members get none */
	struct nccl_epoch {
		bool is_wanted; /* there are such epochs */
		struct gpu_memory memory; /* the place of data_fd then */
		unsigned n_broken;
		unsigned n_staging; /* answers of the source job that are waited for */
		int staged_fd; /* leaves of it in host memory; -1: none yet */
	} nccl;

	struct patch_policy patch_policy;

	const struct transport *transport; /* in the last epoch */
	struct work engine;
	char engine_hello[TRANSPORT_HELLO_MAX + 1];
	struct member *first; /* the first of the last epoch's chain */
	bool by_patch; /* the epoch carries the patch, and else the version */
	struct ranges ranges; /* the bytes that it carries */
	uint64_t expected;
	bool engine_is_open;
	bool engine_is_done;
	uint64_t engine_done; /* bytes */
	uint64_t epoch_ns; /* when its bytes began to move */
	uint64_t moved_ns; /* when any did last */
	uint64_t looked_ns; /* last look for slow members */
	bool is_left; /* the epoch ended for that: what neighbours say of each other then means nothing */
	uint64_t n_left; /* epochs that did */
	char broke_link[2 * NODE_MAX + 8]; /* "a -> b" */
	struct culprit {
		struct member *by; /* the member that reported it; NULL: none did */
		bool is_link; /* or itself */
		struct member *ends[2]; /* NULL: this node */
		unsigned place; /* position of the link in the chain */
	} culprit; /* the cause of the broken epoch */
	struct broken {
		const struct member *ends[2];
		unsigned n_times;
	} broken[EPOCHS_MAX]; /* links, of all epochs */
	unsigned n_broken;
	struct {
		struct member *from, *to; /* `to` NULL: none broke */
		unsigned place;
	} torn; /* the stripe over which the epoch broke */
	uint8_t n_torn[STRIPES_MAX]; /* the same as member::n_torn, of this node */
};

static inline struct broadcast *broadcast_of(const struct sync *s)
{
	return container_of(s, struct broadcast, sync);
}

/* The bytes of the epoch that a member lacks. */
static inline struct ranges *broadcast_missing(const struct broadcast *b, struct member *m)
{
	return b->by_patch ? &m->patch_missing : &m->missing;
}

/* NULL: there is none, or it is another kind of sync. */
struct broadcast *broadcast_find_of_buffer(struct agent *a, const char *buffer);

/*
 * Begins a push, or a repair of the one peer, with the document of the replica. `version` is that of the local weightd,
 * 0 for the newest. Returns -errno with a sentence.
 */
int broadcast_new(struct agent *a, struct replica *rep, const struct group *g, unsigned repair_of,
		  uint64_t version, struct sync **ret, char why[WHY_SIZE]);
