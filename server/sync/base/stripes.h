/*
 * Stripes
 *
 * A stream that several connections share, cut into pieces: which of them began to come, how far each is, and
 * which is to be handed on next. A piece comes over one connection, from its first byte to its last; pieces come
 * in any order. Where several connections share the stream, each piece has a header that says which it is, and
 * the last header of each connection that no more comes over it. Numbers are big-endian:
 *
 *	0	where in the stream it begins; of the last one, how long the stream is
 *	8	how many bytes it has; of the last one, 0
 */
#pragma once

#include <stdbool.h>

#include "server/sync/base/cursor.h"

#define STRIPES_MAX 8 /* connections */
#define STRIPES_HEADER_SIZE 16
#define STRIPES_RATE_MIN 65536 /* bytes a second; see ENGINE_ORDER_RATE_MIN */

struct stripes {
	const struct ranges *ranges; /* borrowed */
	uint64_t *starts; /* where in the stream each range begins */
	uint64_t total;
	uint64_t piece; /* bytes of each but the last */
	uint64_t n;
	uint32_t *came; /* bytes of each that are in memory, plus 1 once it began; NULL: all are there */
	uint32_t *order; /* in which they began */
	uint64_t n_begun;
	uint64_t n_taken;
	uint64_t n_first; /* pieces that are there, and all before them */
};

/* -ENOMEM. -E2BIG: more pieces than can be counted. */
int stripes_init(struct stripes *s, const struct ranges *ranges, uint64_t piece, bool is_there);
void stripes_deinit(struct stripes *s);

uint64_t stripes_size(const struct stripes *s, uint64_t piece);
/* Its bytes begin to come. False: there is no such piece, or it began before. */
bool stripes_begin(struct stripes *s, uint64_t piece);
void stripes_add(struct stripes *s, uint64_t piece, uint64_t n_bytes);
/* Its bytes that are in memory. */
uint64_t stripes_came(const struct stripes *s, uint64_t piece);
/* The stream's first bytes, as far as none is missing. */
uint64_t stripes_done(const struct stripes *s);

/* The next to be handed on, of those that began: the one that began first, or the first of the stream. */
bool stripes_take(struct stripes *s, bool in_order, uint64_t *ret_piece);
bool stripes_all_taken(const struct stripes *s);

/* At its first byte. */
struct cursor stripes_cursor(const struct stripes *s, uint64_t piece);

void stripes_encode(const struct stripes *s, uint64_t piece, uint8_t ret[STRIPES_HEADER_SIZE]);
void stripes_encode_end(const struct stripes *s, uint8_t ret[STRIPES_HEADER_SIZE]);
/* From a stranger: a piece of this stream, or stripes::n for the end. -EBADMSG. */
int stripes_decode(const struct stripes *s, const uint8_t from[STRIPES_HEADER_SIZE],
		   uint64_t *ret_piece);
