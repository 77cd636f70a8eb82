/*
 * A wire
 *
 * A link of the engine, with the name of the peer, and its watch: progress is the kernel's count of
 * bytes, however large a transfer is. A thread uses it, the loop watches it.
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
	WIRE_NONE, /* no peer, or not started */
	WIRE_CONNECTING,
	WIRE_CONNECTED,
	WIRE_DONE,
};

enum wire_way {
	WIRE_IN, /* bytes arrive */
	WIRE_OUT, /* bytes are sent */
	WIRE_BOTH,
};

struct wire {
	enum wire_way way;
	struct link *link; /* NULL: no peer */
	char node[PREAMBLE_NAME_SIZE]; /* the peer */
	uint8_t hello[LINK_HELLO_MAX]; /* the peer's */
	size_t hello_size;
	atomic_int state; /* enum wire_state; set by the thread that uses it */
	/* WIRE_BOTH: nothing more arrives, but sending continues; set by that thread. */
	atomic_bool has_all;
	/* Time when bytes moved, none were owed, or the epoch began; the loop's. */
	uint64_t moved_ns;
	uint64_t gone_ns; /* time when the peer closed; 0: it has not; the loop's */
	uint64_t seen;
};

/*
 * Called by a thread: blocks until both ends are connected. The hello must lead to this address,
 * whichever end dials. False: failed, and the engine has the reason.
 */
bool wire_connect(struct engine *e, struct wire *w, const struct address *at, uint64_t max_rate);

/* Called by a thread. Both ends use the same slot. False: failed, the engine has the reason. */
bool wire_send(struct engine *e, struct wire *w, uint64_t slot, const void *from, size_t size,
	       struct transfer **ret);
bool wire_receive(struct engine *e, struct wire *w, uint64_t slot, void *to, size_t size,
		  struct transfer **ret);
/* Waits for the transfer, and sets `*t` to NULL. Does nothing if it is NULL. */
bool wire_finish(struct engine *e, struct wire *w, struct transfer **t);
/* Sends and waits; receives and waits. */
bool wire_send_wait(struct engine *e, struct wire *w, uint64_t slot, const void *from, size_t size);
bool wire_receive_wait(struct engine *e, struct wire *w, uint64_t slot, void *to, size_t size);

/*
 * The proof, from `from` to `to`, that its agent gave it the token. The token itself is never sent,
 * since the first peer to connect may be an impostor. The proof is valid for one receiver and one
 * direction: a peer that received it cannot use it elsewhere.
 */
void wire_prove(const uint8_t token[PREAMBLE_TOKEN_SIZE], const char *from, const char *to,
		uint8_t ret[PREAMBLE_TOKEN_SIZE]);

/* The loop's: sends the socket to the agent, if it is connected. */
void wire_report_socket(struct engine *e, const struct wire *w);
/* The loop's: time since bytes last moved while they were owed. */
uint64_t wire_silent_ns(struct wire *w, bool is_owed, uint64_t now_ns);
/* The loop's: time since the peer closed and all its bytes were read. */
uint64_t wire_gone_ns(struct wire *w, uint64_t now_ns);
/* Bytes that the peer has acknowledged, or one more, by the kernel's count; 0: not connected. */
uint64_t wire_acknowledged(const struct wire *w);
/* Valid once the wire is done. -errno. */
int wire_traffic(const struct wire *w, struct traffic *ret);
