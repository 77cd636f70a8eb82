#include "server/sync/engine/pieces.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/base/merkle.h"

#define PADDING_MAX 4096 /* bytes carried for nothing, because another transfer costs more */
#define TYPE_FIT 20

int pieces_fit(const char *name, int max)
{
	int n = (int)strnlen(name, (size_t)max + 1);

	if (n <= max)
		return n;
	/* JSON cannot contain half a character. 10xxxxxx are continuation bytes. */
	while (max > 0 && ((unsigned char)name[max] & 0xc0) == 0x80)
		max--;
	return max;
}

static int read_tensor(const json_t *row, uint64_t end, uint64_t n_bytes, struct tensor *ret,
		       char why[PIECES_WHY_SIZE])
{
	json_int_t offset, size;
	const char *name, *type;

	if (json_unpack((json_t *)row, "[s, s, I, I !]", &name, &type, &offset, &size) < 0 ||
	    offset < 0 || size < 0 || (uint64_t)offset > n_bytes ||
	    (uint64_t)size > n_bytes - (uint64_t)offset) {
		(void)snprintf(why, PIECES_WHY_SIZE,
			       "the order is wrong: a tensor must be [name, dtype, offset, size] "
			       "within `n_bytes`");
		return -EBADMSG;
	}
	*ret = (struct tensor){.name = name,
			       .offset = (uint64_t)offset,
			       .size = (uint64_t)size,
			       .type = mean_type_find(type)};
	if (ret->offset < end || (ret->type != MEAN_TYPES && ret->size % mean_size(ret->type))) {
		(void)snprintf(why, PIECES_WHY_SIZE,
			       "the order is wrong: tensor '%.*s' overlaps another one, or its "
			       "size does not fit %.*s",
			       pieces_fit(name, PIECES_NAME_FIT), name, pieces_fit(type, TYPE_FIT),
			       type);
		return -EBADMSG;
	}
	return 0;
}

static int read_tensors(struct pieces *p, uint64_t n_bytes, char why[PIECES_WHY_SIZE])
{
	uint64_t end = 0;

	p->n_tensors = json_array_size(p->table);
	p->tensors = calloc(p->n_tensors + 1, sizeof(*p->tensors));
	if (!p->tensors)
		return -ENOMEM;
	for (size_t i = 0; i < p->n_tensors; i++) {
		struct tensor *t = &p->tensors[i];
		int r = read_tensor(json_array_get(p->table, i), end, n_bytes, t, why);

		if (r < 0)
			return r;
		end = t->offset + t->size;
		p->n_others += t->type == MEAN_TYPES ? merkle_n_leaves(t->size) : 0;
	}
	return 0;
}

/* The last piece, or a new one if this tensor cannot extend it. */
static struct piece *piece_for(struct pieces *p, size_t tensor, uint64_t offset, uint64_t chunk)
{
	struct piece *last = p->n ? &p->at[p->n - 1] : NULL;
	size_t before = tensor;

	while (before > 0 && p->tensors[before - 1].size == 0)
		before--;
	if (last && offset - (last->offset + last->size) <= PADDING_MAX &&
	    offset - last->offset + mean_size(p->tensors[tensor].type) <= chunk &&
	    (offset > p->tensors[tensor].offset || before == 0 ||
	     p->tensors[before - 1].type != MEAN_TYPES))
		return last;
	last = realloc(p->at, (p->n + 1) * sizeof(*p->at));
	if (!last)
		return NULL;
	p->at = last;
	p->at[p->n] = (struct piece){.offset = offset, .first = tensor};
	return &p->at[p->n++];
}

static int pieces_cut(struct pieces *p, uint64_t chunk)
{
	for (size_t i = 0; i < p->n_tensors; i++) {
		const struct tensor *t = &p->tensors[i];
		uint64_t done = 0;

		while (t->type != MEAN_TYPES && done < t->size) {
			struct piece *piece = piece_for(p, i, t->offset + done, chunk);
			uint64_t room;

			if (!piece)
				return -ENOMEM;
			room = chunk - (t->offset + done - piece->offset);
			room -= room % mean_size(t->type);
			done += room < t->size - done ? room : t->size - done;
			piece->size = t->offset + done - piece->offset;
		}
	}
	return 0;
}

static int cut_others(struct pieces *p)
{
	struct other *at = p->others = calloc(p->n_others + 1, sizeof(*p->others));

	if (!at)
		return -ENOMEM;
	for (size_t i = 0; i < p->n_tensors; i++) {
		const struct tensor *t = &p->tensors[i];
		uint64_t done = 0, left;

		for (; t->type == MEAN_TYPES && (left = t->size - done) > 0; done += at++->size)
			*at = (struct other){
				.offset = t->offset + done,
				.size = left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE,
				.tensor = i,
			};
	}
	return 0;
}

/* Gives each piece to the node that owns the fewest bytes, for equal work. */
static int share_out(struct pieces *p, unsigned n_nodes)
{
	p->shares = calloc(n_nodes, sizeof(*p->shares));
	if (!p->shares)
		return -ENOMEM;
	p->n_shares = n_nodes;
	for (unsigned i = 0; i < n_nodes; i++) {
		p->shares[i].pieces = calloc(p->n + 1, sizeof(size_t));
		if (!p->shares[i].pieces)
			return -ENOMEM;
	}
	for (size_t i = 0; i < p->n; i++) {
		unsigned owner = 0;
		struct share *s;

		for (unsigned j = 1; j < n_nodes; j++)
			if (p->shares[j].n_bytes < p->shares[owner].n_bytes)
				owner = j;
		s = &p->shares[owner];
		p->at[i].owner = owner;
		p->at[i].round = s->n_pieces;
		s->pieces[s->n_pieces++] = i;
		s->n_bytes += p->at[i].size;
		p->n_rounds = s->n_pieces > p->n_rounds ? s->n_pieces : p->n_rounds;
	}
	return 0;
}

int pieces_init(struct pieces *p, const char *text, size_t size, uint64_t n_bytes, uint64_t chunk,
		unsigned n_nodes, char why[PIECES_WHY_SIZE])
{
	int r = 0;

	*p = (struct pieces){.table = json_loadb(text, size, 0, NULL)};
	(void)snprintf(why, PIECES_WHY_SIZE, "no memory");
	if (!json_is_array(p->table)) {
		(void)snprintf(why, PIECES_WHY_SIZE,
			       "the order is wrong: the table of tensors is no JSON array");
		r = -EBADMSG;
	}
	if (r == 0)
		r = read_tensors(p, n_bytes, why);
	if (r == 0)
		r = pieces_cut(p, chunk);
	if (r == 0)
		r = cut_others(p);
	if (r == 0)
		r = share_out(p, n_nodes);
	if (r < 0)
		pieces_deinit(p);
	return r;
}

void pieces_deinit(struct pieces *p)
{
	for (unsigned i = 0; i < p->n_shares; i++)
		free(p->shares[i].pieces);
	free(p->shares);
	free(p->at);
	free(p->others);
	free(p->tensors);
	json_decref(p->table);
	*p = (struct pieces){0};
}

const struct tensor *pieces_part(const struct pieces *p, const struct piece *piece, size_t tensor,
				 uint64_t *ret_offset, uint64_t *ret_size)
{
	const struct tensor *t = &p->tensors[tensor];
	uint64_t end = piece->offset + piece->size, to;

	if (tensor == p->n_tensors || t->offset >= end)
		return NULL;
	*ret_offset = t->offset > piece->offset ? t->offset : piece->offset;
	to = t->offset + t->size < end ? t->offset + t->size : end;
	*ret_size = to > *ret_offset ? to - *ret_offset : 0;
	return t;
}
