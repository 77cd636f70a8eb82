/*
 * Outbound
 *
 * Forwards the stream to the next node, or one of its stripes: the bytes in memory, as they arrive.
 * Each stripe takes the next piece when it has sent one, so a slow stripe takes fewer.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/cursor.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/stripes.h"
#include "server/sync/stream/tcp_socket.h"

struct engine;

enum outbound_state {
	OUTBOUND_NONE, /* not started */
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
	struct engine *engine;
	enum outbound_state state;
	unsigned stripe;
	struct source source;
	struct timer retry;
	struct tcp_socket socket;
	bool has_piece;
	uint64_t piece;
	uint64_t at; /* bytes of the piece that were sent */
	struct cursor cursor;
	uint64_t n_pieces, n_bytes; /* sent over this link */
	uint8_t preamble[PREAMBLE_SIZE];
	uint8_t header[STRIPES_HEADER_SIZE];
	bool is_header_due;
	size_t n_written; /* bytes of the preamble, a header, or the end */
	char word[STREAM_WORD_SIZE];
	size_t n_word;
	bool is_full; /* the socket, or this turn */
	uint64_t moved_ns; /* time of the last progress, or of when there was nothing to send */
	uint64_t seen_at, seen_acknowledged;
	struct traffic traffic; /* valid once it is done */
};

void outbound_init(struct outbound *out, struct engine *e, unsigned stripe);
void outbound_deinit(struct outbound *out);
void outbound_start(struct outbound *out);
/* Sends the socket to the agent, if it is connected. */
void outbound_report_socket(const struct outbound *out);
/* Applies the changed rate of engine::next. */
void outbound_limit(const struct outbound *out);
/* More is in memory. */
void outbound_push(struct outbound *out);
/* Fails if the next node is silent for too long while we wait for it. */
void outbound_check_deadline(struct outbound *out, uint64_t now_ns);
