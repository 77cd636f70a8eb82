#include "server/sync/base/stripes.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int find_starts(struct stripes *s)
{
	s->starts = calloc(s->ranges->n + 1, sizeof(*s->starts));
	if (!s->starts)
		return -ENOMEM;
	for (size_t i = 0; i < s->ranges->n; i++)
		s->starts[i + 1] = s->starts[i] + s->ranges->at[i].size;
	s->total = s->starts[s->ranges->n];
	return 0;
}

int stripes_init(struct stripes *s, const struct ranges *ranges, uint64_t piece, bool is_there)
{
	int r;

	*s = (struct stripes){.ranges = ranges, .piece = piece};
	r = find_starts(s);
	if (r < 0)
		return r;
	s->n = s->total / piece + (s->total % piece != 0);
	if (s->n > UINT32_MAX || piece >= UINT32_MAX) {
		stripes_deinit(s);
		return -E2BIG;
	}
	if (is_there) {
		s->n_begun = s->n_first = s->n;
		return 0;
	}
	s->came = calloc(s->n + 1, sizeof(*s->came));
	s->order = calloc(s->n + 1, sizeof(*s->order));
	if (s->came && s->order)
		return 0;
	stripes_deinit(s);
	return -ENOMEM;
}

void stripes_deinit(struct stripes *s)
{
	free(s->starts);
	free(s->came);
	free(s->order);
	*s = (struct stripes){0};
}

uint64_t stripes_size(const struct stripes *s, uint64_t piece)
{
	uint64_t left = s->total - piece * s->piece;

	assert(piece < s->n);
	return left < s->piece ? left : s->piece;
}

bool stripes_begin(struct stripes *s, uint64_t piece)
{
	if (piece >= s->n || !s->came || s->came[piece])
		return false;
	s->came[piece] = 1;
	s->order[s->n_begun++] = (uint32_t)piece;
	return true;
}

void stripes_add(struct stripes *s, uint64_t piece, uint64_t n_bytes)
{
	assert(s->came[piece] && s->came[piece] - 1 + n_bytes <= stripes_size(s, piece));
	s->came[piece] += (uint32_t)n_bytes;
	while (s->n_first < s->n && stripes_came(s, s->n_first) == stripes_size(s, s->n_first))
		s->n_first++;
}

uint64_t stripes_came(const struct stripes *s, uint64_t piece)
{
	if (!s->came)
		return stripes_size(s, piece);
	return s->came[piece] ? s->came[piece] - 1 : 0;
}

uint64_t stripes_done(const struct stripes *s)
{
	if (s->n_first == s->n)
		return s->total;
	return s->n_first * s->piece + stripes_came(s, s->n_first);
}

bool stripes_take(struct stripes *s, bool in_order, uint64_t *ret_piece)
{
	uint64_t next = s->n_taken;

	if (stripes_all_taken(s))
		return false;
	if (s->came && in_order) {
		if (!s->came[next])
			return false;
	} else if (s->came) {
		if (next == s->n_begun)
			return false;
		next = s->order[next];
	}
	s->n_taken++;
	*ret_piece = next;
	return true;
}

bool stripes_all_taken(const struct stripes *s)
{
	return s->n_taken == s->n;
}

struct cursor stripes_cursor(const struct stripes *s, uint64_t piece)
{
	uint64_t at = piece * s->piece;
	size_t low = 0, high = s->ranges->n;

	while (high - low > 1) { /* starts[low] <= at < starts[high] */
		size_t middle = low + (high - low) / 2;

		if (s->starts[middle] <= at)
			low = middle;
		else
			high = middle;
	}
	return (struct cursor){
		.ranges = s->ranges, .i = low, .within = at - s->starts[low], .at = at};
}

static void stripes_encode_header(uint64_t offset, uint64_t size, uint8_t ret[STRIPES_HEADER_SIZE])
{
	const uint64_t words[2] = {htobe64(offset), htobe64(size)};

	memcpy(ret, words, sizeof(words));
}

void stripes_encode(const struct stripes *s, uint64_t piece, uint8_t ret[STRIPES_HEADER_SIZE])
{
	stripes_encode_header(piece * s->piece, stripes_size(s, piece), ret);
}

void stripes_encode_end(const struct stripes *s, uint8_t ret[STRIPES_HEADER_SIZE])
{
	stripes_encode_header(s->total, 0, ret);
}

int stripes_decode(const struct stripes *s, const uint8_t from[STRIPES_HEADER_SIZE],
		   uint64_t *ret_piece)
{
	uint64_t words[2], offset, size;

	memcpy(words, from, sizeof(words));
	offset = be64toh(words[0]);
	size = be64toh(words[1]);
	if (offset == s->total && size == 0) {
		*ret_piece = s->n;
		return 0;
	}
	if (offset >= s->total || offset % s->piece != 0 ||
	    size != stripes_size(s, offset / s->piece))
		return -EBADMSG;
	*ret_piece = offset / s->piece;
	return 0;
}
