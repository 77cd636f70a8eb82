/*
 * The cursor
 *
 * The place of a stream in memory: a stream is the bytes of a set of ranges, in ascending order.
 */
#pragma once

#include "server/sync/base/ranges.h"

struct cursor {
	const struct ranges *ranges; /* borrowed */
	size_t i; /* the range that it is in */
	uint64_t within;
	uint64_t at; /* bytes of the stream before it */
};

static inline void cursor_init(struct cursor *c, const struct ranges *ranges)
{
	*c = (struct cursor){.ranges = ranges};
}

/*
 * Returns how many of the stream's next `max` bytes are contiguous in memory, and where. 0: end of
 * the stream.
 */
static inline uint64_t cursor_piece(const struct cursor *c, uint64_t max, uint64_t *ret_offset)
{
	const struct range *r;

	if (c->i == c->ranges->n)
		return 0;
	r = &c->ranges->at[c->i];
	*ret_offset = r->offset + c->within;
	return r->size - c->within < max ? r->size - c->within : max;
}

/* `n_bytes` is at most the result of cursor_piece(). */
static inline void cursor_advance(struct cursor *c, uint64_t n_bytes)
{
	c->at += n_bytes;
	c->within += n_bytes;
	if (c->i < c->ranges->n && c->within == c->ranges->at[c->i].size) {
		c->i++;
		c->within = 0;
	}
}
