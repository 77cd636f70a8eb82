/*
 * Inbound
 *
 * The stream from the node before this one, into the memory.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/preamble.h"
#include "server/sync/tcp/link.h"

struct engine;

enum inbound_state {
	INBOUND_NONE, /* this is the source */
	INBOUND_AWAITED,
	INBOUND_BODY,
	INBOUND_END,
	INBOUND_DONE,
};

struct inbound {
	enum inbound_state state;
	struct source source;
	struct timer again; /* the next turn, where TLS holds bytes that wake nobody up */
	struct link link;
	struct cursor cursor;
	uint64_t heard_ns; /* when something came */
	char end[STREAM_WORD_SIZE];
	size_t n_end;
	struct traffic traffic; /* once it is done */
};

void inbound_init(struct inbound *in);
void inbound_deinit(struct inbound *in);
/* Takes the link of the one whom the gate let through. */
void inbound_accept(struct engine *e, struct link link);
/* Whether the node before this one is silent for too long. */
void inbound_look(struct engine *e, uint64_t now_ns);
