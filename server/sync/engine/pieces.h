/*
 * Pieces
 *
 * The pieces of an average, the same on all nodes: spans of memory of at most a chunk. Each is
 * owned by the node that reduces it. A span may include several tensors that have a mean, and the
 * padding between them, but no other tensor.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "server/sync/engine/mean_type.h"

#define PIECES_WHY_SIZE 512
#define PIECES_NAME_FIT 200 /* bytes of a tensor's name in a sentence */

struct tensor {
	const char *name; /* owned by the table */
	uint64_t offset;
	uint64_t size;
	enum mean_type type; /* MEAN_TYPES: must be equal on all nodes */
};

struct piece {
	uint64_t offset;
	uint64_t size;
	size_t first; /* tensor */
	unsigned owner; /* rank */
	uint64_t round; /* number of earlier pieces of the same owner */
};

/* A part of a tensor without a mean, of at most a leaf. */
struct other {
	uint64_t offset;
	uint64_t size;
	size_t tensor;
};

/* The part of one node in the average. */
struct share {
	uint64_t n_pieces;
	uint64_t n_bytes;
	size_t *pieces; /* in order */
};

struct pieces {
	json_t *table;
	struct tensor *tensors; /* ascending */
	size_t n_tensors;
	struct other *others; /* ascending */
	size_t n_others;
	struct piece *at;
	size_t n;
	struct share *shares; /* indexed by rank */
	unsigned n_shares;
	uint64_t n_rounds; /* the most pieces that a node owns */
};

/*
 * Reads [[name, dtype, offset, size], ...], ascending and disjoint. -EBADMSG with a sentence,
 * -ENOMEM.
 */
int pieces_init(struct pieces *p, const char *text, size_t size, uint64_t n_bytes, uint64_t chunk,
		unsigned n_nodes, char why[PIECES_WHY_SIZE]);
void pieces_deinit(struct pieces *p);

/* Returns how many bytes of a name in the table fit into `max`, in whole characters: for %.*s. */
int pieces_fit(const char *name, int max);

/* Returns a tensor's part in a piece, the first of which is piece::first; NULL: there is none. */
const struct tensor *pieces_part(const struct pieces *p, const struct piece *piece, size_t tensor,
				 uint64_t *ret_offset, uint64_t *ret_size);
