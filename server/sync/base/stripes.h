/*
 * Stripes
 *
 * A stream that several connections share, cut into pieces. This keeps which pieces have begun, the
 * progress of each, and which one to forward next. A piece arrives over one connection, from its
 * first byte to its last; pieces arrive in any order. If several connections share the stream, each
 * piece has a header with its place, and a last header on each connection marks its end. Numbers
 * are big-endian:
 *
 *	0	offset of the piece in the stream; in the last header, the length of the stream
 *	8	length of the piece; in the last header, 0
 */
#pragma once

#include <stdbool.h>

#include "server/sync/base/cursor.h"

#define STRIPES_MAX 8 /* connections */
#define STRIPES_HEADER_SIZE 16
#define STRIPES_RATE_MIN 65536 /* bytes per second; see ENGINE_ORDER_RATE_MIN */

struct stripes {
	const struct ranges *ranges; /* borrowed */
	uint64_t *starts; /* offset in the stream of each range */
	uint64_t total;
	uint64_t piece; /* bytes of each but the last */
	uint64_t n;
	uint32_t *came; /* bytes of each in memory, plus 1 once it began; NULL: all are in memory */
	uint32_t *order; /* pieces in the order of their beginning */
	uint64_t n_begun;
	uint64_t n_taken;
	uint64_t n_first; /* complete pieces without a gap from the start */
};

/* -ENOMEM. -E2BIG: too many pieces. */
int stripes_init(struct stripes *s, const struct ranges *ranges, uint64_t piece, bool is_there);
void stripes_deinit(struct stripes *s);

uint64_t stripes_size(const struct stripes *s, uint64_t piece);
/* Begins a piece. False: there is no such piece, or it began before. */
bool stripes_begin(struct stripes *s, uint64_t piece);
void stripes_add(struct stripes *s, uint64_t piece, uint64_t n_bytes);
/* Bytes of a piece that are in memory. */
uint64_t stripes_came(const struct stripes *s, uint64_t piece);
/* Bytes in memory without a gap from the stream's start. */
uint64_t stripes_done(const struct stripes *s);

/*
 * Takes the next piece to forward, of those that began: the first of the stream, or the first that
 * began.
 */
bool stripes_take(struct stripes *s, bool in_order, uint64_t *ret_piece);
bool stripes_all_taken(const struct stripes *s);

/* A cursor at the first byte of a piece. */
struct cursor stripes_cursor(const struct stripes *s, uint64_t piece);

void stripes_encode(const struct stripes *s, uint64_t piece, uint8_t ret[STRIPES_HEADER_SIZE]);
void stripes_encode_end(const struct stripes *s, uint8_t ret[STRIPES_HEADER_SIZE]);
/* Parses an untrusted header: a piece of this stream, or stripes::n for the end. -EBADMSG. */
int stripes_decode(const struct stripes *s, const uint8_t from[STRIPES_HEADER_SIZE],
		   uint64_t *ret_piece);
