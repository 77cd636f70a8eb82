/*
 * Moves
 *
 * Runs of bytes between the memories of nodes: the result of a reshard, and all that an engine needs of it. A link is
 * the moves from one node to another, or to itself; its stream is the bytes of these moves in order. Each end finds
 * them in its own memory.
 *
 * The encoding has words of 8 bytes, big-endian:
 *
 *	"moves\0\0\1", n_nodes, n_links, n_moves
 *	of each node:	bytes of its source, bytes of its result; 0: it has none
 *	of each link, ascending:	from, to, n_moves, n_bytes
 *	of each move, in the order of the links:	from, to, run, n, from_stride, to_stride, n, from_stride, to_stride
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOVES_NODES_MAX 64
#define MOVES_MAX ((size_t)1 << 20)
#define MOVES_BYTES_MAX                                                                            \
	((uint64_t)1 << 50) /* bytes of a source or a result; also the limit of weightd's versions */
/* The longest that is ever written down. */
#define MOVES_SIZE_MAX                                                                             \
	(8 * (4 + 2 * (size_t)MOVES_NODES_MAX + 4 * (size_t)MOVES_NODES_MAX * MOVES_NODES_MAX +    \
	      9 * MOVES_MAX))
#define MOVES_WHY_SIZE 256

enum moves_side {
	MOVES_FROM,
	MOVES_TO,
	MOVES_SIDES,
};

/* n[0] times n[1] runs of bytes; the ones of the second level lie nearer to each other. */
struct move {
	uint64_t offset[MOVES_SIDES];
	uint64_t run;
	uint64_t n[2];
	uint64_t stride[2][MOVES_SIDES]; /* from the begin of one run to that of the next */
};

struct moves_node {
	uint64_t size[MOVES_SIDES]; /* bytes of its source, and of its result; 0: it has none */
};

struct moves_link {
	unsigned from; /* node */
	unsigned to;
	size_t first; /* move */
	size_t n_moves;
	uint64_t n_bytes;
};

struct moves {
	unsigned n_nodes;
	struct moves_node *nodes;
	struct moves_link *links; /* ascending by from, then by to */
	size_t n_links;
	struct move *moves;
	size_t n_moves;
};

void moves_deinit(struct moves *m);

/* NULL: it gives it nothing. */
const struct moves_link *moves_link(const struct moves *m, unsigned from, unsigned to);

/* Bytes of a move. */
static inline uint64_t move_size(const struct move *m)
{
	return m->run * m->n[0] * m->n[1];
}

/* -ENOMEM. The caller frees it. */
int moves_encode(const struct moves *m, void **ret, size_t *ret_size);
/*
 * Accepts untrusted bytes: no move leaves the memory of its nodes, and no node receives more bytes than it has room
 * for. -EBADMSG with a sentence, -ENOMEM.
 */
int moves_decode(const void *from, size_t size, struct moves *ret, char why[MOVES_WHY_SIZE]);
/*
 * The same without the moves, for a reader that needs only the bytes of each link. `ret->moves` is NULL. The time does
 * not depend on the number of moves.
 */
int moves_decode_links(const void *from, size_t size, struct moves *ret, char why[MOVES_WHY_SIZE]);

/* A position in the stream of a link. */
struct stream {
	const struct move *move; /* borrowed */
	const struct move *end;
	uint64_t at[2]; /* index within move::n */
	uint64_t within; /* the run */
};

void stream_init(struct stream *s, const struct moves *m, const struct moves_link *l);
/*
 * Returns how many of the next bytes are contiguous, at most `max`, and where they are at this end; moves the stream
 * behind them. The number is the same at both ends.
 */
size_t stream_next(struct stream *s, enum moves_side side, size_t max, uint64_t *ret_offset);
/* The next `size` bytes, of which there are as many, out of the memory of one of its ends. */
void stream_read(struct stream *s, enum moves_side side, const uint8_t *memory, uint8_t *to,
		 size_t size);
/* The same into the memory of the end that gets them. */
void stream_write(struct stream *s, const uint8_t *from, uint8_t *memory, size_t size);
