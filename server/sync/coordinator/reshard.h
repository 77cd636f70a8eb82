/*
 * Reshards
 *
 * Shards of a model on some nodes become other shards on others, as this node, which has one or gets one, coordinates
 * it. What comes about is no version of the group: each target has its own, and nobody fetches it from another.
 */
#pragma once

#include "server/sync/coordinator/collective.h"

#define RESHARD_LAYOUTS_MAX ((uint64_t)1 << 30) /* bytes of all sources' */

/*
 * Begins a reshard of {sources: [{node, buffer, version}], targets: [nodes], split}, each by rank;
 * version 0 is the newest that the node has, and `rep` is of the buffer to be. It begins with the
 * next timer, when whoever asked knows its name. -errno with a sentence.
 */
int reshard_new(struct agent *a, const struct collective_op *op, struct replica *rep,
		const struct group *g, const json_t *request, struct sync **ret, char why[WHY_SIZE]);

/* As agent_blob_limit() and agent_on_blob(). */
uint64_t reshard_blob_limit(const struct agent *a, unsigned peer_or_self, const uint8_t hash[32]);
void reshard_on_blob(struct agent *a, unsigned peer_or_self, const uint8_t hash[32], int fd,
		     uint64_t size);
