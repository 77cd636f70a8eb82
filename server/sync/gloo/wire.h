/*
 * A wire
 *
 * A link of the engine, with the name at its other end, and the watch over it: bytes move as the kernel counts
 * them, however large a transfer is. A thread works with it, the loop watches it.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/engine_order.h"
#include "server/sync/engine/traffic.h"
#include "server/sync/gloo/link.h"

struct engine;

enum wire_state {
	WIRE_NONE, /* nobody is there, or nothing was started */
	WIRE_CONNECTING,
	WIRE_CONNECTED,
	WIRE_DONE,
};

enum wire_way {
	WIRE_IN, /* bytes come */
	WIRE_OUT, /* bytes go */
	WIRE_BOTH,
};

struct wire {
	enum wire_way way;
	struct link *link; /* NULL: nobody is there */
	char node[PREAMBLE_NAME_SIZE]; /* at the other end */
	uint8_t hello[LINK_HELLO_MAX]; /* of the other end */
	size_t hello_size;
	atomic_int state; /* enum wire_state; set by the thread that works with it */
	atomic_bool has_all; /* of WIRE_BOTH: nothing comes any more, but still goes; by that thread */
	uint64_t moved_ns; /* when bytes moved, none were owed, or all began; the loop's */
	uint64_t gone_ns; /* since when the other end has hung up; 0: it has not; the loop's */
	uint64_t seen;
};

/*
 * For a thread: blocks until both ends are connected. The hello has to lead to this address, whoever of the two then
 * dials. False: the engine was told why not.
 */
bool wire_connect(struct engine *e, struct wire *w, const struct address *at, uint64_t max_rate);

/* For a thread; both ends with the same slot. False: the engine was told why not. */
bool wire_send(struct engine *e, struct wire *w, uint64_t slot, const void *from, size_t size,
	       struct transfer **ret);
bool wire_receive(struct engine *e, struct wire *w, uint64_t slot, void *to, size_t size,
		  struct transfer **ret);
/* Waits for it. `*t` is NULL then; of NULL there is nothing to wait for. */
bool wire_finish(struct engine *e, struct wire *w, struct transfer **t);
/* Sends and waits; receives and waits. */
bool wire_say(struct engine *e, struct wire *w, uint64_t slot, const void *from, size_t size);
bool wire_hear(struct engine *e, struct wire *w, uint64_t slot, void *to, size_t size);

/*
 * What `from` says to `to` to show that its agent gave it the token, which it never says itself: whoever came first may
 * be a stranger. Nobody else takes it, nor on the way back: who heard it gains nothing by it elsewhere.
 */
void wire_prove(const uint8_t token[PREAMBLE_TOKEN_SIZE], const char *from, const char *to,
		uint8_t ret[PREAMBLE_TOKEN_SIZE]);

/* For the loop: has it traced, once it is connected. */
void wire_tell_socket(struct engine *e, const struct wire *w);
/* For the loop: for how long bytes were owed and none moved. */
uint64_t wire_silent_ns(struct wire *w, bool is_owed, uint64_t now_ns);
/* For the loop: for how long the other end has hung up, of which nothing is left to read. */
uint64_t wire_gone_ns(struct wire *w, uint64_t now_ns);
/* Bytes that the other end acknowledged, or one more, by the kernel's count; 0: it is not connected. */
uint64_t wire_acknowledged(const struct wire *w);
/* Once it is done. -errno. */
int wire_traffic(const struct wire *w, struct traffic *ret);
