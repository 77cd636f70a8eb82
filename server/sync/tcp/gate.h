/*
 * The gate
 *
 * Accepts the connection of the previous node, and of any other peer. A peer must authenticate
 * before anything is done for it. There is room for a few such guests (crowd.h), each for a limited
 * time. The authenticated peer passes, once; and so does each stripe of a stream, on any address of
 * this node. When all are connected, the gate closes.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/stripes.h"
#include "server/sync/stream/crowd.h"
#include "server/sync/stream/tcp_socket.h"

#define GATE_GUESTS 16
#define GATE_WHY_SIZE 192

struct engine;

struct guest {
	struct engine *engine;
	struct source source;
	struct tcp_socket socket; /* descriptor -1: this place is free */
	unsigned place; /* index of our address that it connected to */
	bool is_secured;
	struct crowd_member member;
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
	char last[GATE_WHY_SIZE]; /* reason of the last refusal, "" if there was none */
};

void gate_init(struct gate *g);
/* Listens on the order's addresses. -errno. */
int gate_open(struct engine *e, uint16_t ret_ports[STRIPES_MAX]);
void gate_close(struct gate *g);
/* Drops guests that have exceeded their time. */
void gate_check_deadlines(struct engine *e, uint64_t now_ns);
