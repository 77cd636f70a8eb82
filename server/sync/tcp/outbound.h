/*
 * Outbound
 *
 * The stream to the next node: what is in memory here, as it arrives.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/preamble.h"
#include "server/sync/tcp/link.h"

struct engine;

enum outbound_state {
	OUTBOUND_NONE, /* not started, or there is no next node */
	OUTBOUND_CONNECTING,
	OUTBOUND_HANDSHAKE,
	OUTBOUND_PREAMBLE,
	OUTBOUND_ANSWER,
	OUTBOUND_BODY,
	OUTBOUND_END,
	OUTBOUND_WORD,
	OUTBOUND_DONE,
};

struct outbound {
	enum outbound_state state;
	struct source source;
	struct timer retry;
	struct link link;
	struct cursor cursor;
	uint8_t preamble[PREAMBLE_SIZE];
	size_t n_written; /* of the preamble, or of the end */
	char word[STREAM_WORD_SIZE];
	size_t n_word;
	bool is_full; /* the socket, or this turn */
	uint64_t moved_ns; /* when it took something, or when there was nothing to take */
	uint64_t seen_at, seen_acknowledged;
	struct traffic traffic; /* once it is done */
};

void outbound_init(struct outbound *out);
void outbound_deinit(struct outbound *out);
void outbound_start(struct engine *e);
/* More is in memory. */
void outbound_push(struct engine *e);
/* Whether the next node is silent for too long while we wait for it. */
void outbound_look(struct engine *e, uint64_t now_ns);
