/*
 * Shards
 *
 * A contributor of a reshard: which shard this node gives, if it has one, and which it gets, if it is to have one. Both are
 * its own.
 */
#pragma once

#include "server/sync/participant/participant.h"
#include "server/sync/state/collective_op.h"

struct contributor;

struct shard {
	bool gives; /* a shard, of this buffer and version; 0: its newest */
	char source[BUFFER_MAX + 1];
	uint64_t version;
	bool gets;

	uint64_t given_bytes;
	bool has_plan; /* it was told of it; what it was told of comes as blobs */
	uint8_t plan[32];
	uint64_t plan_bytes;
	int plan_fd; /* -1: it has not come yet */
	uint8_t layout[32]; /* layout of the shard that it gets */
	uint64_t layout_bytes; /* 0: it gets nothing */
	int layout_fd;
};

/*
 * From {sources: [{node, buffer, version}], targets: [nodes]}: what is ours of it. -EBADMSG, also where nothing is.
 */
int shard_read(const struct agent *a, const json_t *message, struct shard *ret);
void shard_deinit(struct shard *x);

/* The source has attached what is given, or nothing is: tells the coordinator, and sends it the layout. */
void shard_offer(struct agent *a, struct contributor *c);
void shard_on_plan(struct agent *a, struct participant *p, const json_t *message);
/* As agent_blob_limit() and agent_on_blob(). */
uint64_t shard_blob_limit(const struct agent *a, unsigned peer_or_self, const uint8_t hash[32]);
void shard_on_blob(struct agent *a, unsigned peer_or_self, const uint8_t hash[32], int fd,
		   uint64_t size);
/*
 * Adds to the order of the engine what a reshard needs, and returns its descriptors, at most three.
 */
unsigned shard_open(const struct contributor *c, json_t *order, int ret_fds[3]);
