/*
 * Engines: transfers between the ranks i of several nodes
 *
 * An engine connects each with all others once, and moves bytes from and to memory of the caller. A connection that fails is
 * closed, and another one opened: see nodes/link.h. Gloo is one (a shared object: one node works without it), and what the
 * caller gives (struct weightd_engine) is another.
 *
 * Each state belongs to one thread at a time. Gloo has two threads for each, which end with it.
 *
 * A peer that breaks Gloo's protocol ends this process: Gloo's thread throws what nothing can catch. A connection that is not
 * a peer's, made between open() and connect(), takes the place of the peer, which then fails to connect.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "weightd-train.h"

#define ENGINE_WHY_SIZE 256
#define ENGINE_HELLO_MAX 16384

/* Addresses of one end, which the others need to connect to it. */
struct engine_hello {
	uint32_t size;
	uint8_t bytes[ENGINE_HELLO_MAX];
};

#define ENGINE_TICK_MS 50

/*
 * Called from the thread of the call, every ENGINE_TICK_MS while it blocks, and at once when a signal has interrupted it. Not
 * 0: the call returns it, and the sentence is that of the check (train_fail()).
 */
typedef int engine_check(void *data, bool is_interrupted);

struct engine {
	const char *name;
	/*
	 * One end of a mesh of nodes, at an address of this machine (its port does not matter). -EIO with a sentence in `why`.
	 * Each call below returns -EPIPE with a sentence that begins with a node, if the connection to it is lost, or what the
	 * check returned; after either, only close() may be called, and no memory of the caller is in use.
	 */
	int (*open)(const struct sockaddr_storage *address, uint32_t node, uint32_t n_nodes,
		    void **ret, struct engine_hello *ret_hello, char why[ENGINE_WHY_SIZE]);
	/* Connects to the ends that made these hellos, by node; its own is among them. */
	int (*connect)(void *state, const struct engine_hello *all, engine_check *check, void *data,
		       char why[ENGINE_WHY_SIZE]);
	/*
	 * All ends call it with the same numbers, each number once. Returns once what was sent may be changed, and what was to
	 * be received is there. Two ends that disagree about the size of a transfer wait for each other until a check ends it.
	 */
	int (*exchange)(void *state, uint64_t number, const struct weightd_transfer *transfers,
			uint32_t n, engine_check *check, void *data, char why[ENGINE_WHY_SIZE]);
	/* For checks: a node that the call waits for; n_nodes: none in particular. */
	uint32_t (*missing)(const void *state);
	/* Likewise: a number that changes while bytes of the exchange move. */
	uint64_t (*moved)(const void *state);
	/* Between calls: 0, or -EPIPE as above if a connection is lost. Never blocks. */
	int (*watch)(void *state, char why[ENGINE_WHY_SIZE]);
	/* NULL is fine. What an exchange sent arrives, unless the peer is gone. */
	void (*close)(void *state);
	/* Bytes that one exchange writes to the socket of a node, to which it sends `sent` bytes and from which it receives. */
	uint64_t (*count_wire)(uint64_t sent, uint64_t received);
	/* The same for connect(). */
	uint64_t wire_connect;
};

/* Loads libweightd-train-gloo.so, once in a process. -EOPNOTSUPP with a sentence that says what to install. */
int engine_gloo(const struct engine **ret);
#define ENGINE_GLOO_SYMBOL "weightd_train_gloo" /* const struct engine */
#define ENGINE_GLOO_OBJECT "libweightd-train-gloo.so"
