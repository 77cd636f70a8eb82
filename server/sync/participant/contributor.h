/*
 * Contributors
 *
 * This node's part in a version that several make together, by a collective: the version that it gives, the memory that
 * the result is written to, and the engine between them. The coordinator has one as well, and sends it the same messages
 * as to any other.
 */
#pragma once

#include "server/sync/participant/participant.h"
#include "server/sync/participant/shard.h"
#include "server/sync/state/collective_op.h"
#include "server/sync/state/gpu_memory.h"

/* A request of a coordinator to take part in a collective. */
struct invitation {
	char sync[SYNC_ID_SIZE];
	const struct collective_op *op;
	char group[GROUP_MAX + 1];
	char buffer[BUFFER_MAX + 1];
	struct version_id version_id; /* the version to be */
	uint64_t time_ns;
	bool is_dry; /* it ends once it is planned */
	bool has_layout; /* false: whatever we have is what the others are asked for */
	uint64_t n_bytes;
	uint64_t layout_bytes;
	uint8_t layout[32];
	struct shard shard; /* only in a reshard */
};

struct contributor {
	struct participant participant;
	struct invitation invitation;
	bool had_to_wait; /* it waited for its turn, and reported that */

	struct work source;
	bool compares; /* our tensors are not the coordinator's, and how is to be found */
	uint64_t lent; /* version of the local weightd */
	uint64_t layout_bytes;
	uint8_t layout[32];
	int layout_fd, data_fd, tensors_fd;
	uint64_t data_offset; /* where its bytes begin in `data_fd` */
	struct gpu_memory data_memory, result_memory; /* host memory, unless NCCL moves the bytes */

	uint8_t root[32], leaves[32]; /* the result's, once it is verified */
	int leaves_fd;

	/* the epoch: */
	json_t *nodes; /* indexed by rank */
	unsigned rank;
	struct flows flows;
};

static inline struct contributor *contributor_of(struct participant *p)
{
	return container_of(p, struct contributor, participant);
}

/* Begins those that may, oldest first. */
void contributor_begin_next(struct agent *a);

/* As those of a receiver. */
uint64_t contributor_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32]);
void contributor_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd,
			 uint64_t size);

void contributor_on_join(struct agent *a, unsigned peer_or_self, const json_t *message);

/* --- Used by shard.c ----------------------------------------------------------------------------- */

/* Whatever it gives and gets is known: has it copied and made, as far as there is something to, and tells READY. */
void contributor_prepare(struct agent *a, struct contributor *c);
