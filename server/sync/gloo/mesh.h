/*
 * The mesh
 *
 * A wire between every two nodes of an operation that exchange anything, handled alike at both
 * ends: the list of the other nodes, greeting and parting. One thread uses one wire; different
 * wires may have different threads.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/merkle.h"
#include "server/sync/engine/nodes.h"
#include "server/sync/gloo/engine.h"

/* Messages of a wire; the slot also contains the end that sent it. */
enum {
	MESH_GREETING,
	MESH_THERE,
	MESH_MORE, /* numbers of the operation begin here */
};

struct mesh {
	struct engine *engine;
	struct wire wires[ENGINE_NODES_MAX]; /* indexed by rank */
	struct address addresses[ENGINE_NODES_MAX];
	unsigned rank;
	unsigned n_nodes;
	uint64_t max_rate; /* over each wire */
	/* Must be equal on all nodes, since it determines the pieces. */
	const char *what; /* "plan" */
	uint8_t hash[MERKLE_HASH_SIZE];
	uint64_t n_bytes;
	const uint8_t *source; /* the order's memory */
	uint8_t *result;
};

/* --- Called by the loop ------------------------------------------------------------------------ */

/* Reads the nodes, of which this node must be one. -EBADMSG with a sentence. */
int mesh_init(struct mesh *m, struct engine *e, const json_t *order,
	      char why[ENGINE_ORDER_WHY_SIZE]);
/*
 * Maps the text that must be equal on all nodes, of 1 to `max` bytes. Hashes it, and calls `read`.
 * On failure, a sentence.
 */
int mesh_read(struct mesh *m, int fd, uint64_t max,
	      int (*read)(struct mesh *m, const void *text, size_t size,
			  char why[ENGINE_ORDER_WHY_SIZE]),
	      char why[ENGINE_ORDER_WHY_SIZE]);
/* Maps the order's memory, and `result_bytes` of the result's. -errno with a sentence. */
int mesh_map(struct mesh *m, uint64_t result_bytes, char why[ENGINE_ORDER_WHY_SIZE]);
/* Makes the wire to a rank; other wires stay NULL. -EIO with a sentence. */
int mesh_open(struct mesh *m, unsigned peer, char why[ENGINE_ORDER_WHY_SIZE]);
/* Adds a hello for each rank, in their order, to "opened"; null: no wire. */
int mesh_add_hellos(const struct mesh *m, json_t *opened, char why[ENGINE_ORDER_WHY_SIZE]);
/*
 * Reads the hellos of the others from "start". -EBADMSG with a sentence. `*ret` false: a wire
 * failed, and the engine has the reason.
 */
int mesh_start(struct mesh *m, const json_t *order, bool *ret, char why[ENGINE_ORDER_WHY_SIZE]);

/* --- Called by threads. False: a failure, and the engine has the reason ------------------------------ */

/* Runs `fn` for each rank with a wire, all at once, and for our own rank. True: all succeeded. */
bool mesh_each(struct mesh *m, bool (*fn)(struct mesh *m, unsigned peer));
bool mesh_greet(struct mesh *m, unsigned peer);
/* Sends and receives `size` bytes. */
bool mesh_exchange(struct mesh *m, unsigned peer, uint64_t what, const void *ours, void *theirs,
		   size_t size);
/* Exchanges the last message, after which nothing is sent. */
bool mesh_part(struct mesh *m, unsigned peer);

uint64_t mesh_slot_out(const struct mesh *m, unsigned peer, uint64_t what);
uint64_t mesh_slot_in(const struct mesh *m, unsigned peer, uint64_t what);
