/*
 * Inbound
 *
 * The stream from the node before this one, into the memory; or one of the stripes that it comes in.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/stripes.h"
#include "server/sync/tcp/link.h"

struct engine;

enum inbound_state {
	INBOUND_NONE, /* it did not come */
	INBOUND_NEXT, /* a piece, or the end */
	INBOUND_BODY,
	INBOUND_END,
	INBOUND_DONE,
};

struct inbound {
	struct engine *engine;
	enum inbound_state state;
	unsigned place; /* of our address that it came to */
	struct source source;
	struct timer again; /* the next turn, where TLS holds bytes that wake nobody up */
	struct link link;
	uint64_t piece; /* the one that comes */
	struct cursor cursor;
	uint64_t left; /* of it */
	uint64_t n_pieces, n_bytes; /* that came over this link */
	uint8_t header[STRIPES_HEADER_SIZE];
	size_t n_header;
	char end[STREAM_WORD_SIZE];
	size_t n_end;
	uint64_t heard_ns; /* when something came */
	struct traffic traffic; /* once it is done */
};

void inbound_init(struct inbound *in, struct engine *e);
void inbound_deinit(struct inbound *in);
/* Takes the link of the one whom the gate let through, to this one of our addresses. */
void inbound_accept(struct inbound *in, struct link link, unsigned place);
/* Has it traced. */
void inbound_tell_socket(const struct inbound *in);
/* Whether the node before this one is silent for too long. */
void inbound_look(struct engine *e, uint64_t now_ns);
