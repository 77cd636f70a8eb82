#include "ipc/reshard/moves.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD 8
#define WORDS_HEAD 4
#define WORDS_NODE 2
#define WORDS_LINK 4
#define WORDS_MOVE 9

static const char magic[WORD] = "moves\0\0\1";

void moves_deinit(struct moves *m)
{
	free(m->nodes);
	free(m->links);
	free(m->moves);
	*m = (struct moves){0};
}

const struct moves_link *moves_link(const struct moves *m, unsigned from, unsigned to)
{
	for (size_t i = 0; i < m->n_links; i++)
		if (m->links[i].from == from && m->links[i].to == to)
			return &m->links[i];
	return NULL;
}

/* --- Writing down ------------------------------------------------------------------------------ */

/* At most MOVES_SIZE_MAX, whatever is in them. */
static size_t encoded_size(size_t n_nodes, size_t n_links, size_t n_moves)
{
	return WORD *
	       (WORDS_HEAD + WORDS_NODE * n_nodes + WORDS_LINK * n_links + WORDS_MOVE * n_moves);
}

static void moves_put(uint8_t **at, uint64_t n)
{
	n = htobe64(n);
	memcpy(*at, &n, WORD);
	*at += WORD;
}

static void put_move(uint8_t **at, const struct move *m)
{
	moves_put(at, m->offset[MOVES_FROM]);
	moves_put(at, m->offset[MOVES_TO]);
	moves_put(at, m->run);
	for (unsigned level = 0; level < 2; level++) {
		moves_put(at, m->n[level]);
		moves_put(at, m->stride[level][MOVES_FROM]);
		moves_put(at, m->stride[level][MOVES_TO]);
	}
}

int moves_encode(const struct moves *m, void **ret, size_t *ret_size)
{
	size_t size = encoded_size(m->n_nodes, m->n_links, m->n_moves);
	uint8_t *text = malloc(size), *at = text;

	if (!text)
		return -ENOMEM;
	memcpy(at, magic, WORD);
	at += WORD;
	moves_put(&at, m->n_nodes);
	moves_put(&at, m->n_links);
	moves_put(&at, m->n_moves);
	for (unsigned i = 0; i < m->n_nodes; i++)
		for (unsigned side = 0; side < MOVES_SIDES; side++)
			moves_put(&at, m->nodes[i].size[side]);
	for (size_t i = 0; i < m->n_links; i++) {
		moves_put(&at, m->links[i].from);
		moves_put(&at, m->links[i].to);
		moves_put(&at, m->links[i].n_moves);
		moves_put(&at, m->links[i].n_bytes);
	}
	for (size_t i = 0; i < m->n_moves; i++)
		put_move(&at, &m->moves[i]);
	assert(at == text + size);
	*ret = text;
	*ret_size = size;
	return 0;
}

/* --- Reading what others wrote ----------------------------------------------------------------- */

static uint64_t moves_get(const uint8_t **at)
{
	uint64_t n;

	memcpy(&n, *at, WORD);
	*at += WORD;
	return be64toh(n);
}

static int moves_wrong(char why[MOVES_WHY_SIZE], const char *what)
{
	(void)snprintf(why, MOVES_WHY_SIZE, "the plan is wrong: %s", what);
	return -EBADMSG;
}

static int get_head(const uint8_t **at, size_t size, struct moves *m, char why[MOVES_WHY_SIZE])
{
	uint64_t n_nodes, n_links, n_moves;

	if (size < WORD * WORDS_HEAD || memcmp(*at, magic, WORD) != 0)
		return moves_wrong(why, "it is not a plan, or one of another release");
	*at += WORD;
	n_nodes = moves_get(at);
	n_links = moves_get(at);
	n_moves = moves_get(at);
	if (n_nodes == 0 || n_nodes > MOVES_NODES_MAX || n_links > n_nodes * n_nodes ||
	    n_moves > MOVES_MAX)
		return moves_wrong(why, "it has too many nodes, links or moves");
	if (size != encoded_size(n_nodes, n_links, n_moves))
		return moves_wrong(why, "its size does not match its contents");
	m->n_nodes = (unsigned)n_nodes;
	m->n_links = n_links;
	m->n_moves = n_moves;
	m->nodes = calloc(n_nodes, sizeof(*m->nodes));
	m->links = calloc(n_links + 1, sizeof(*m->links));
	if (m->nodes && m->links)
		return 0;
	(void)snprintf(why, MOVES_WHY_SIZE, "no memory");
	return -ENOMEM;
}

static int get_nodes(const uint8_t **at, struct moves *m, char why[MOVES_WHY_SIZE])
{
	for (unsigned i = 0; i < m->n_nodes; i++)
		for (unsigned side = 0; side < MOVES_SIDES; side++) {
			m->nodes[i].size[side] = moves_get(at);
			if (m->nodes[i].size[side] > MOVES_BYTES_MAX)
				return moves_wrong(why, "a node has more memory than possible");
		}
	return 0;
}

static int get_links(const uint8_t **at, struct moves *m, char why[MOVES_WHY_SIZE])
{
	uint64_t got[MOVES_NODES_MAX] = {0};
	size_t first = 0;
	uint64_t next = 0; /* from and to of the link before, as one number, and one more */

	for (size_t i = 0; i < m->n_links; i++) {
		uint64_t from = moves_get(at), to = moves_get(at), n_moves = moves_get(at),
			 n_bytes = moves_get(at);

		if (from >= m->n_nodes || to >= m->n_nodes || from * m->n_nodes + to < next)
			return moves_wrong(why, "its links name other nodes, or do not ascend");
		if (n_moves == 0 || n_moves > m->n_moves - first)
			return moves_wrong(why, "its links do not match its moves");
		if (__builtin_add_overflow(got[to], n_bytes, &got[to]) ||
		    got[to] > m->nodes[to].size[MOVES_TO])
			return moves_wrong(why, "a node receives more bytes than it has room for");
		m->links[i] = (struct moves_link){.from = (unsigned)from,
						  .to = (unsigned)to,
						  .first = first,
						  .n_moves = n_moves,
						  .n_bytes = n_bytes};
		next = from * m->n_nodes + to + 1;
		first += n_moves;
	}
	return first == m->n_moves ? 0 : moves_wrong(why, "its links do not match its moves");
}

/* Returns true and the end of a move in memory, if the end does not overflow. */
static bool find_end(const struct move *m, enum moves_side side, uint64_t *ret)
{
	uint64_t end = m->offset[side], length;

	for (unsigned level = 0; level < 2; level++)
		if (__builtin_mul_overflow(m->n[level] - 1, m->stride[level][side], &length) ||
		    __builtin_add_overflow(end, length, &end))
			return false;
	return !__builtin_add_overflow(end, m->run, ret);
}

static bool get_move(const uint8_t **at, const uint64_t sizes[MOVES_SIDES], struct move *m,
		     uint64_t *ret_size)
{
	uint64_t end;

	m->offset[MOVES_FROM] = moves_get(at);
	m->offset[MOVES_TO] = moves_get(at);
	m->run = moves_get(at);
	for (unsigned level = 0; level < 2; level++) {
		m->n[level] = moves_get(at);
		m->stride[level][MOVES_FROM] = moves_get(at);
		m->stride[level][MOVES_TO] = moves_get(at);
	}
	if (m->run == 0 || m->n[0] == 0 || m->n[1] == 0)
		return false;
	for (unsigned side = 0; side < MOVES_SIDES; side++)
		if (!find_end(m, side, &end) || end > sizes[side])
			return false;
	return !__builtin_mul_overflow(m->run, m->n[0], ret_size) &&
	       !__builtin_mul_overflow(*ret_size, m->n[1], ret_size);
}

static int get_moves(const uint8_t **at, struct moves *m, char why[MOVES_WHY_SIZE])
{
	m->moves = calloc(m->n_moves + 1, sizeof(*m->moves));
	if (!m->moves) {
		(void)snprintf(why, MOVES_WHY_SIZE, "no memory");
		return -ENOMEM;
	}
	for (size_t i = 0; i < m->n_links; i++) {
		const struct moves_link *l = &m->links[i];
		const uint64_t sizes[] = {m->nodes[l->from].size[MOVES_FROM],
					  m->nodes[l->to].size[MOVES_TO]};
		uint64_t n_bytes = 0, size;

		for (size_t k = 0; k < l->n_moves; k++)
			if (!get_move(at, sizes, &m->moves[l->first + k], &size) ||
			    __builtin_add_overflow(n_bytes, size, &n_bytes))
				return moves_wrong(why, "a move leaves the memory of its nodes");
		if (n_bytes != l->n_bytes)
			return moves_wrong(why, "the bytes of a link do not match its moves");
	}
	return 0;
}

static int moves_decode_any(const void *from, size_t size, bool with_moves, struct moves *ret,
			    char why[MOVES_WHY_SIZE])
{
	struct moves m = {0};
	const uint8_t *at = from;
	int r = get_head(&at, size, &m, why);

	if (r == 0)
		r = get_nodes(&at, &m, why);
	if (r == 0)
		r = get_links(&at, &m, why);
	if (r == 0 && with_moves)
		r = get_moves(&at, &m, why);
	if (r < 0)
		moves_deinit(&m);
	else
		*ret = m;
	return r;
}

int moves_decode(const void *from, size_t size, struct moves *ret, char why[MOVES_WHY_SIZE])
{
	return moves_decode_any(from, size, true, ret, why);
}

int moves_decode_links(const void *from, size_t size, struct moves *ret, char why[MOVES_WHY_SIZE])
{
	return moves_decode_any(from, size, false, ret, why);
}

/* --- Streams ----------------------------------------------------------------------------------- */

void stream_init(struct stream *s, const struct moves *m, const struct moves_link *l)
{
	*s = (struct stream){.move = m->moves + l->first, .end = m->moves + l->first + l->n_moves};
}

size_t stream_next(struct stream *s, enum moves_side side, size_t max, uint64_t *ret_offset)
{
	const struct move *m = s->move;
	size_t size;

	assert(m < s->end);
	*ret_offset = m->offset[side] + s->at[0] * m->stride[0][side] +
		      s->at[1] * m->stride[1][side] + s->within;
	size = m->run - s->within < max ? m->run - s->within : max;
	s->within += size;
	if (s->within < m->run)
		return size;
	s->within = 0;
	if (++s->at[1] < m->n[1])
		return size;
	s->at[1] = 0;
	if (++s->at[0] < m->n[0])
		return size;
	s->at[0] = 0;
	s->move++;
	return size;
}

void stream_read(struct stream *s, enum moves_side side, const uint8_t *memory, uint8_t *to,
		 size_t size)
{
	while (size > 0) {
		uint64_t offset;
		size_t n = stream_next(s, side, size, &offset);

		memcpy(to, memory + offset, n);
		to += n;
		size -= n;
	}
}

void stream_write(struct stream *s, const uint8_t *from, uint8_t *memory, size_t size)
{
	while (size > 0) {
		uint64_t offset;
		size_t n = stream_next(s, MOVES_TO, size, &offset);

		memcpy(memory + offset, from, n);
		from += n;
		size -= n;
	}
}
