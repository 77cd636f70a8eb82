/*
 * Inbound
 *
 * Receives the stream of the previous node, or one of its stripes, into the memory.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/stripes.h"
#include "server/sync/stream/tcp_socket.h"

struct engine;

enum inbound_state {
	INBOUND_NONE, /* not connected */
	INBOUND_NEXT, /* a piece or the end follows */
	INBOUND_BODY,
	INBOUND_END,
	INBOUND_DONE,
};

struct inbound {
	struct engine *engine;
	enum inbound_state state;
	unsigned place; /* index of our address that it connected to */
	struct source source;
	struct timer again; /* the next turn, if TLS holds bytes for which epoll does not wake */
	struct tcp_socket socket;
	uint64_t piece; /* the current one */
	struct cursor cursor;
	uint64_t left; /* bytes left of the current piece */
	uint64_t n_pieces, n_bytes; /* received over this link */
	uint8_t header[STRIPES_HEADER_SIZE];
	size_t n_header;
	char end[STREAM_WORD_SIZE];
	size_t n_end;
	uint64_t received_ns; /* time of the last bytes */
	struct traffic traffic; /* valid once it is done */
};

void inbound_init(struct inbound *in, struct engine *e);
void inbound_deinit(struct inbound *in);
/* Takes the socket of the peer that passed the gate, and the index of our address. */
void inbound_accept(struct inbound *in, struct tcp_socket socket, unsigned place);
/* Sends the socket to the agent. */
void inbound_report_socket(const struct inbound *in);
/* Fails if the previous node is silent for too long. */
void inbound_check_deadlines(struct engine *e, uint64_t now_ns);
