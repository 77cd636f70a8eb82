/*
 * The gate
 *
 * Where the node before this one connects, and anybody else. Who comes has to prove who it is before anything
 * is done for it; there are a few such guests at a time, each for a while. For a new one leaves the oldest of the
 * host that has sent most of them, so that neither whoever only sits there keeps anybody out, nor whoever comes
 * again and again. The one that proves it gets through, once; so does each stripe of a stream, to whichever of this
 * node's addresses it comes. When all are there the gate closes.
 */
#pragma once

#include <netinet/in.h>

#include "server/base/loop.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/stripes.h"
#include "server/sync/tcp/link.h"

#define GATE_GUESTS 16
#define GATE_WHY_SIZE 192

struct engine;

struct guest {
	struct engine *engine;
	struct source source;
	struct link link; /* descriptor -1: nobody is here */
	unsigned place; /* of our address that it came to */
	bool is_secured;
	struct in6_addr host; /* of IPv4, mapped */
	uint64_t since_ns;
	uint8_t preamble[PREAMBLE_SIZE];
	size_t n_read;
};

struct gate {
	struct door {
		struct engine *engine;
		int fd;
		struct source source;
	} doors[STRIPES_MAX]; /* one for each address */
	struct guest guests[GATE_GUESTS];
	uint64_t n_refused;
	char last[GATE_WHY_SIZE]; /* why the last one was refused, "" if none was */
};

void gate_init(struct gate *g);
/* Listens on the order's addresses. -errno. */
int gate_open(struct engine *e, uint16_t ret_ports[STRIPES_MAX]);
void gate_close(struct gate *g);
/* Sends away who is there for too long. */
void gate_look(struct engine *e, uint64_t now_ns);
