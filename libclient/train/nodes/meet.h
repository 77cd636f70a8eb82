/*
 * Meeting: the ranks i of all nodes find each other at the address of node 0, and send each other words
 *
 * Rank i of node 0 listens until all others have joined, and has a connection to each of them. A rank that was started anew
 * takes the place of its predecessor until then. A connection that does not begin as those of ranks do is closed, and delays
 * none of them. Nothing is authenticated or encrypted.
 *
 * A meeting belongs to one thread at a time.
 */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

#include "libclient/train/nodes/engine.h"

struct meet_place {
	const char *address; /* of node 0: name or digits */
	uint16_t port; /* of this line */
	uint32_t line; /* rank of each node */
	uint32_t node, n_nodes;
};

struct meet_word {
	void *data; /* the caller frees it with free() */
	uint32_t size;
};

struct meet;

/* Contacts nobody yet. `place` is copied. -ENOMEM with a sentence. */
int meet_open(const struct meet_place *place, struct meet **ret);

/*
 * Returns once all nodes have joined. Node 0 listens, others try until it does. `ret_address` is the address of this machine
 * in that network, its port is 0. With a sentence (train_fail()):
 * -EPIPE, as below;
 * -EADDRINUSE: the port of node 0 is in use;
 * -EADDRNOTAVAIL: the address of node 0 is unknown;
 * -EPROTOTYPE: node 0 has another number of nodes, or is another line;
 * -EEXIST: another process has joined as this node;
 * and what `check` returned.
 */
int meet_join(struct meet *m, engine_check *check, void *data, struct sockaddr_storage *ret_address);

/*
 * Sends a word to all other nodes, and receives theirs: `ret` has place->n_nodes of them, its own included. Each may have
 * another size, up to `max`, which is as much memory as another one can make this process allocate for its word. All nodes must
 * call it equally often. -EPIPE: a connection is lost, or a word is larger, and all must meet again; errors as above.
 */
int meet_tell(struct meet *m, const void *word, uint32_t size, uint32_t max, engine_check *check,
	      void *data, struct meet_word *ret);
void meet_words_free(struct meet_word *words, uint32_t n);

/* 0, or -EPIPE with a sentence if a connection is lost. Never blocks. */
int meet_watch(const struct meet *m);

/*
 * A node that has not joined yet, for sentences and the status; n_nodes: none is missing. The last one that node 0 told, which
 * may have reached its deadline a moment before this node does.
 */
uint32_t meet_missing(const struct meet *m);

/*
 * The connection to `node`, for bytes between calls of meet_tell(); -1: none, as each node but 0 has only that to node 0. It
 * does not block, and stays the meeting's.
 */
int meet_socket(const struct meet *m, uint32_t node);

/* NULL is fine. */
void meet_close(struct meet *m);
