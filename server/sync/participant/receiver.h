/*
 * Receivers
 *
 * This node as a member of a broadcast, a push or a repair, that another one coordinates: what comes to it, and how
 * it gets there.
 */
#pragma once

#include "server/sync/base/ranges.h"
#include "server/sync/participant/participant.h"
#include "server/sync/state/gpu_memory.h"

enum receiver_blob {
	BLOB_LAYOUT,
	BLOB_LEAVES,
	BLOB_COMPANIONS, /* if the coordinator has them */
	N_BLOBS
};

struct receiver {
	struct participant participant;
	struct document *document;
	int blob_fds[N_BLOBS];
	bool has_companions; /* they come, too */

	uint64_t nccl; /* the publisher's version of it, as there are rings; 0: there are none */
	struct gpu_memory memory; /* the place of the sink's memory, then */
	unsigned n_staging; /* answers of the sink that are waited for */
	int staged_fd; /* leaves of it in host memory; -1: none yet */
	uint8_t base[32]; /* the root of what the sink begins with */
	struct ranges missing;
	int patch_fd; /* memory for a patch; -1: none was offered */
	struct ranges patch_missing;

	/* the epoch: */
	const struct transport *transport;
	char token[65];
	uint64_t chunk;
	unsigned n_stripes_in, n_stripes_out;
	bool by_patch; /* it carries a patch, and else the version */
	char to[NODE_MAX + 1]; /* "": the last of the chain */
	struct ranges ranges; /* the bytes that it carries */

	uint64_t begun_ns; /* CLOCK_MONOTONIC */
	unsigned n_corrupt; /* times that what had come was wrong */
};

static inline struct receiver *receiver_of(struct participant *p)
{
	return container_of(p, struct receiver, participant);
}

/* Begins those that may, oldest first. */
void receiver_begin_next(struct agent *a);

void receiver_on_prepare(struct agent *a, unsigned peer, const json_t *message);
void receiver_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
uint64_t receiver_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32]);
