/*
 * The engine
 *
 * One node's part in one epoch: takes a stream from the node before it, keeps it in the agent's memory, and
 * passes it on while it comes. Whatever goes wrong is said to the agent once, with the link and who is to blame.
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

/* Whose fault something is. */
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
	unsigned n_in; /* 0: none came yet, or this is the source; else how many there will be */
	struct outbound out[STRIPES_MAX];
	unsigned n_out;
	struct sending_cpus sending_cpus; /* of a relay, whose memory is sealed later */
};

int engine_init(struct engine *e);
void engine_deinit(struct engine *e);

__attribute__((format(printf, 3, 4))) void engine_fail(struct engine *e, enum engine_side side,
						       const char *fmt, ...);
/* The same of a link's stripe between the addresses of this place. */
__attribute__((format(printf, 4, 5))) void engine_fail_stripe(struct engine *e,
							      enum engine_side side, unsigned place,
							      const char *fmt, ...);
#define ENGINE_OVER_SIZE 64
/*
 * " (over 10.1.0.2)", the receiver's address, where there are several stripes; else "". `i` is its place among
 * ours, or the stripe that goes out. Returns `ret`.
 */
const char *engine_over(const struct engine *e, enum engine_side side, unsigned i,
			char ret[ENGINE_OVER_SIZE]);
/* For somebody to come. */
bool engine_is_awaiting(const struct engine *e);

/* More of the stream is in memory. */
void engine_arrived(struct engine *e);
/* Says that it is done, if it is. */
void engine_look(struct engine *e);

/* Compares what a link carried with the plan and with the kernel. False: the engine failed. */
bool engine_count(struct engine *e, enum engine_side side, const struct link *l,
		  const struct planned_bytes *planned, struct traffic *ret);
