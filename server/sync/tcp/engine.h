/*
 * The engine
 *
 * One node's part in one epoch over TCP. It receives a stream from the previous node into the
 * agent's memory, and forwards it to the next node while it arrives. A failure is reported to the
 * agent once, with the link and the node to blame.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/memory.h"
#include "server/sync/base/stripes.h"
#include "server/sync/engine/engine_loop.h"
#include "server/sync/tcp/gate.h"
#include "server/sync/tcp/inbound.h"
#include "server/sync/tcp/outbound.h"
#include "server/sync/tcp/sending_cpus.h"

/* The side that caused a failure. */
enum engine_side {
	ENGINE_HERE,
	ENGINE_IN,
	ENGINE_OUT,
};

struct engine {
	struct engine_loop engine_loop;
	uint64_t started_ns;
	struct next next;
	struct memory memory;
	SSL_CTX *tls; /* NULL: security none */
	struct gate gate;
	struct stripes stripes; /* the stream, in pieces */
	struct inbound in[STRIPES_MAX];
	/* Connections of the incoming stream; 0: this is the source, or none is connected yet. */
	unsigned n_in;
	struct outbound out[STRIPES_MAX];
	unsigned n_out;
	struct sending_cpus sending_cpus; /* only for a relay: its memory is sealed later */
};

int engine_init(struct engine *e);
void engine_deinit(struct engine *e);

__attribute__((format(printf, 3, 4))) void engine_fail(struct engine *e, enum engine_side side,
						       const char *fmt, ...);
/* The same for one stripe of a link, between the addresses at this index. */
__attribute__((format(printf, 4, 5))) void engine_fail_stripe(struct engine *e,
							      enum engine_side side, unsigned place,
							      const char *fmt, ...);
#define ENGINE_OVER_SIZE 64
/*
 * Writes " (over 10.1.0.2)", the receiver's address, if there are several stripes; else "". `i` is
 * the index of our address, or of the outgoing stripe. Returns `ret`.
 */
const char *engine_over(const struct engine *e, enum engine_side side, unsigned i,
			char ret[ENGINE_OVER_SIZE]);
/* The engine waits for incoming connections. */
bool engine_is_awaiting(const struct engine *e);

/* More of the stream is in memory. */
void engine_arrived(struct engine *e);
/* Reports the result, if the epoch is done. */
void engine_check_done(struct engine *e);

/*
 * Compares the bytes of a link with the plan and with the kernel's count. False: the engine failed.
 */
bool engine_count(struct engine *e, enum engine_side side, const struct tcp_socket *l,
		  const struct planned_bytes *planned, struct traffic *ret);
