/*
 * The mesh
 *
 * A wire between each two nodes of an operation that have something for each other, the same at both ends: who the
 * others are, how they are met, and how they part. A thread works with a wire; those of several need not be one.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/merkle.h"
#include "server/sync/gloo/engine.h"

/* What goes over a wire; the slot says which end sent it, too. */
enum {
	MESH_GREETING,
	MESH_THERE,
	MESH_MORE, /* what an operation numbers itself */
};

struct mesh {
	struct engine *engine;
	struct wire wires[ENGINE_NODES_MAX]; /* by rank */
	struct address addresses[ENGINE_NODES_MAX];
	unsigned rank;
	unsigned n_nodes;
	uint64_t max_rate; /* over each wire */
	/* What all have to have alike, for who has another would cut other pieces out of it. */
	const char *what; /* "plan" */
	uint8_t hash[MERKLE_HASH_SIZE];
	uint64_t n_bytes;
	const uint8_t *source; /* the order's memory */
	uint8_t *result;
};

/* --- For the loop ------------------------------------------------------------------------------ */

/* Reads who they are, of whom this node is one. -EBADMSG with a sentence. */
int mesh_init(struct mesh *m, struct engine *e, const json_t *order,
	      char why[ENGINE_ORDER_WHY_SIZE]);
/* What all have to have alike, of 1 to `max` bytes: hashes it, and has it read while it is mapped. With a sentence. */
int mesh_read(struct mesh *m, int fd, uint64_t max,
	      int (*read)(struct mesh *m, const void *text, size_t size,
			  char why[ENGINE_ORDER_WHY_SIZE]),
	      char why[ENGINE_ORDER_WHY_SIZE]);
/* Maps the order's memory, and the result's so many bytes. -errno with a sentence. */
int mesh_map(struct mesh *m, uint64_t result_bytes, char why[ENGINE_ORDER_WHY_SIZE]);
/* Makes the wire to a rank; those without one stay NULL. -EIO with a sentence. */
int mesh_open(struct mesh *m, unsigned peer, char why[ENGINE_ORDER_WHY_SIZE]);
/* Adds a hello for each rank, in their order, to "opened"; null where there is no wire. */
int mesh_add_hellos(const struct mesh *m, json_t *opened, char why[ENGINE_ORDER_WHY_SIZE]);
/* Takes those of the others out of "start". -EBADMSG with a sentence. False: a wire failed, which the engine was told. */
int mesh_start(struct mesh *m, const json_t *order, bool *ret, char why[ENGINE_ORDER_WHY_SIZE]);

/* --- For threads, which are told no more than that: the engine knows why not ------------------- */

/* Runs `fn` with each rank that there is a wire to, all at once, and with our own one. True: all did it. */
bool mesh_each(struct mesh *m, bool (*fn)(struct mesh *m, unsigned peer));
bool mesh_greet(struct mesh *m, unsigned peer);
/* Sends and receives as much. */
bool mesh_exchange(struct mesh *m, unsigned peer, uint64_t what, const void *ours, void *theirs,
		   size_t size);
/* Nothing comes over it any more. */
bool mesh_part(struct mesh *m, unsigned peer);

uint64_t mesh_slot_out(const struct mesh *m, unsigned peer, uint64_t what);
uint64_t mesh_slot_in(const struct mesh *m, unsigned peer, uint64_t what);
