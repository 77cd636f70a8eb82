#include "ipc/reshard/reshard.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define SHAPE_TEXT_MAX 160
#define BITS_MAX ((uint64_t)INT64_MAX) /* bits of a tensor: offsets in bits fit into a word */

__attribute__((format(printf, 2, 3))) static int wrong(char why[RESHARD_WHY_SIZE], const char *fmt,
						       ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, RESHARD_WHY_SIZE, fmt, args);
	va_end(args);
	return -EBADMSG;
}

/* "[3, 4]", or the begin of it. */
static const char *shape_text(char ret[SHAPE_TEXT_MAX], const uint64_t *shape, uint32_t n_dims)
{
	size_t n = 1;

	ret[0] = '[';
	ret[1] = '\0';
	for (uint32_t i = 0; i < n_dims && n < SHAPE_TEXT_MAX - 32; i++)
		n += (size_t)snprintf(ret + n, SHAPE_TEXT_MAX - n, "%s%llu", i ? ", " : "",
				      (unsigned long long)shape[i]);
	(void)snprintf(ret + n, SHAPE_TEXT_MAX - n, "]");
	return ret;
}

/* False: they are more than BITS_MAX. */
static bool count_bits(const struct reshard_tensor *t, const uint64_t *shape, uint64_t *ret)
{
	uint64_t bits = t->bits;

	for (uint32_t i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(bits, shape[i], &bits) || bits > BITS_MAX)
			return false;
	*ret = bits;
	return true;
}

/* --- Checks that sources and split fit together ------------------------------------------------- */

static int check_alike(const struct reshard_layout *sources, unsigned rank, uint32_t tensor,
		       char why[RESHARD_WHY_SIZE])
{
	const struct reshard_tensor *first = &sources[0].tensors[tensor];
	const struct reshard_tensor *t = &sources[rank].tensors[tensor];

	if (strcmp(t->name, first->name) != 0)
		return wrong(why,
			     "tensor %u of rank %u is '%.200s', that of rank 0 '%.200s'; all "
			     "ranks must have the same tensors in the same order",
			     tensor, rank, t->name, first->name);
	if (strcmp(t->dtype, first->dtype) != 0 || t->bits != first->bits ||
	    t->role != first->role || t->tied_to != first->tied_to)
		return wrong(why,
			     "tensor '%.200s' of rank %u has another dtype, role or tie than that "
			     "of rank 0, which is %.20s",
			     t->name, rank, first->dtype);
	return 0;
}

static int check_shape(const struct reshard_layout *sources, unsigned rank, uint32_t tensor,
		       int dim, char why[RESHARD_WHY_SIZE])
{
	const struct reshard_tensor *first = &sources[0].tensors[tensor];
	const struct reshard_tensor *t = &sources[rank].tensors[tensor];
	char here[SHAPE_TEXT_MAX], there[SHAPE_TEXT_MAX];
	bool is_equal = t->n_dims == first->n_dims;

	for (uint32_t i = 0; is_equal && i < t->n_dims; i++)
		is_equal = (int)i == dim || t->shape[i] == first->shape[i];
	if (is_equal)
		return 0;
	(void)shape_text(here, t->shape, t->n_dims);
	(void)shape_text(there, first->shape, first->n_dims);
	if (dim == SPLIT_REPLICATED)
		return wrong(why,
			     "tensor '%.200s' is replicated, but %s at rank %u and %s at rank 0; "
			     "correct the split, or push the same model on all ranks",
			     t->name, here, rank, there);
	return wrong(why,
		     "tensor '%.200s' is %s at rank %u and %s at rank 0, which may differ in "
		     "dimension %d alone",
		     t->name, here, rank, there, dim);
}

static int find_whole(const struct reshard_layout *sources, unsigned n_sources, uint32_t tensor,
		      int dim, uint64_t *ret, char why[RESHARD_WHY_SIZE])
{
	const char *name = sources[0].tensors[tensor].name;
	uint64_t whole = 0, first, size;

	for (unsigned rank = 0; rank < n_sources; rank++)
		if (__builtin_add_overflow(whole, sources[rank].tensors[tensor].shape[dim], &whole) ||
		    whole > INT64_MAX)
			return wrong(why, "tensor '%.200s' is too large", name);
	for (unsigned rank = 0; rank < n_sources; rank++) {
		const struct reshard_tensor *t = &sources[rank].tensors[tensor];
		char text[SHAPE_TEXT_MAX];

		split_shard(whole, n_sources, rank, &first, &size);
		if (t->shape[dim] != size)
			return wrong(why,
				     "tensor '%.200s' is %s at rank %u, but of %llu along dimension "
				     "%d rank %u of %u has %llu, as torch.chunk() cuts it",
				     name, shape_text(text, t->shape, t->n_dims), rank,
				     (unsigned long long)whole, dim, rank, n_sources,
				     (unsigned long long)size);
	}
	*ret = whole;
	return 0;
}

static int check_place(const struct reshard_layout *source, unsigned rank, uint32_t tensor,
		       char why[RESHARD_WHY_SIZE])
{
	const struct reshard_tensor *t = &source->tensors[tensor];
	uint64_t bits, end;

	if (count_bits(t, t->shape, &bits) && bits % 8 == 0 &&
	    !__builtin_add_overflow(t->offset, bits / 8, &end) && end <= source->n_bytes)
		return 0;
	return wrong(why, "tensor '%.200s' of rank %u is not within its buffer", t->name, rank);
}

static int check_tie(const struct reshard_layout *source, uint32_t tensor,
		     char why[RESHARD_WHY_SIZE])
{
	const struct reshard_tensor *t = &source->tensors[tensor];

	if (t->bits == 0)
		return wrong(why,
			     "the elements of tensor '%.200s' (%.20s) have no size of their own: "
			     "tensors in blocks cannot be resharded; push the buffer as it is",
			     t->name, t->dtype);
	if (t->n_dims <= RESHARD_DIMS_MAX &&
	    (t->tied_to == RESHARD_NOT_TIED ||
	     (t->tied_to < tensor && source->tensors[t->tied_to].tied_to == RESHARD_NOT_TIED)))
		return 0;
	return wrong(why, "tensor '%.200s' is none, or tied to none", t->name);
}

static int cut_tensor(struct reshard *r, const struct split *split, uint32_t tensor,
		      char why[RESHARD_WHY_SIZE])
{
	const struct reshard_tensor *t = &r->sources[0].tensors[tensor];
	const struct split_rule *rule = split_find(split, t->name);
	struct reshard_cut *cut = &r->cuts[tensor];
	char text[SHAPE_TEXT_MAX];
	int e = check_tie(&r->sources[0], tensor, why);

	for (unsigned rank = 1; e == 0 && rank < r->n_sources; rank++)
		e = check_alike(r->sources, rank, tensor, why);
	if (e < 0 || t->tied_to != RESHARD_NOT_TIED)
		return e;
	if (!rule)
		return wrong(why,
			     "no rule of the split matches tensor '%.200s'; add a last rule "
			     "{\"tensors\": \"*\", \"replicated\": true} for all others",
			     t->name);
	*cut = (struct reshard_cut){.dim = {rule->from, rule->to}};
	for (unsigned side = 0; side < MOVES_SIDES; side++)
		if (cut->dim[side] != SPLIT_REPLICATED && (uint32_t)cut->dim[side] >= t->n_dims)
			return wrong(
				why,
				"tensor '%.200s' is %s, so that it cannot be split along "
				"dimension %d as '%.100s' says; put a rule for it before that one",
				t->name, shape_text(text, t->shape, t->n_dims), cut->dim[side],
				rule->tensors);
	for (unsigned rank = 0; e == 0 && rank < r->n_sources; rank++) {
		e = check_shape(r->sources, rank, tensor, rule->from, why);
		if (e == 0)
			e = check_place(&r->sources[rank], rank, tensor, why);
	}
	if (e == 0 && rule->from != SPLIT_REPLICATED)
		e = find_whole(r->sources, r->n_sources, tensor, rule->from, &cut->whole, why);
	return e;
}

/* --- The targets ------------------------------------------------------------------------------- */

static uint64_t whole_of(const struct reshard *r, uint32_t tensor, uint32_t dim)
{
	const struct reshard_cut *cut = &r->cuts[tensor];

	return (int)dim == cut->dim[MOVES_FROM] ? cut->whole
						: r->sources[0].tensors[tensor].shape[dim];
}

/* The part that a rank has of a dimension. */
static void part_of(const struct reshard *r, uint32_t tensor, uint32_t dim, enum moves_side side,
		    unsigned rank, uint64_t *ret_first, uint64_t *ret_size)
{
	uint64_t whole = whole_of(r, tensor, dim);

	*ret_first = 0;
	*ret_size = whole;
	if (r->cuts[tensor].dim[side] == (int)dim)
		split_shard(whole, side == MOVES_FROM ? r->n_sources : r->n_targets, rank,
			    ret_first, ret_size);
}

void reshard_shape(const struct reshard *r, unsigned target, uint32_t tensor,
		   uint64_t ret[RESHARD_DIMS_MAX])
{
	const struct reshard_tensor *t = &r->sources[0].tensors[tensor];
	uint64_t first;

	if (t->tied_to != RESHARD_NOT_TIED) {
		reshard_shape(r, target, t->tied_to, ret);
		return;
	}
	for (uint32_t i = 0; i < t->n_dims; i++)
		part_of(r, tensor, i, MOVES_TO, target, &first, &ret[i]);
}

static int place_tensor(struct reshard *r, unsigned target, uint32_t tensor, uint64_t *end,
			uint64_t *ret, char why[RESHARD_WHY_SIZE])
{
	const struct reshard_tensor *t = &r->sources[0].tensors[tensor];
	uint64_t shape[RESHARD_DIMS_MAX], bits;
	char text[SHAPE_TEXT_MAX];

	reshard_shape(r, target, tensor, shape);
	(void)shape_text(text, shape, t->n_dims);
	if (!count_bits(t, shape, &bits))
		return wrong(why, "tensor '%.200s' would be %s at target %u: that is too large",
			     t->name, text, target);
	if (bits % 8 != 0)
		return wrong(why,
			     "tensor '%.200s' would be %s at target %u, whose elements of %u bits do "
			     "not fill bytes; split it along another dimension",
			     t->name, text, target, t->bits);
	if (!num_align_up(*end, RESHARD_ALIGNMENT, ret) ||
	    __builtin_add_overflow(*ret, bits / 8, end) || *end > INT64_MAX - RESHARD_ALIGNMENT)
		return wrong(why, "target %u would be too large", target);
	return 0;
}

static int place_target(struct reshard *r, unsigned target, char why[RESHARD_WHY_SIZE])
{
	uint32_t n = r->sources[0].n_tensors;
	uint64_t *offsets = r->offsets + (size_t)target * n, end = 0;
	int e = 0;

	for (uint32_t i = 0; e == 0 && i < n; i++) {
		uint32_t tied_to = r->sources[0].tensors[i].tied_to;

		if (tied_to != RESHARD_NOT_TIED)
			offsets[i] = offsets[tied_to];
		else
			e = place_tensor(r, target, i, &end, &offsets[i], why);
	}
	if (e == 0)
		(void)num_align_up(end, RESHARD_ALIGNMENT, &r->target_bytes[target]);
	return e;
}

int reshard_init(struct reshard *r, const struct split *split, const struct reshard_layout *sources,
		 unsigned n_sources, unsigned n_targets, char why[RESHARD_WHY_SIZE])
{
	uint32_t n = sources[0].n_tensors;
	int e = 0;

	assert(n_sources > 0 && n_targets > 0 && n_sources <= RESHARD_RANKS_MAX &&
	       n_targets <= RESHARD_RANKS_MAX);
	*r = (struct reshard){.sources = sources, .n_sources = n_sources, .n_targets = n_targets};
	if (n > RESHARD_TENSORS_MAX)
		return wrong(why, "%u tensors are more than the %u that can be resharded", n,
			     RESHARD_TENSORS_MAX);
	for (unsigned rank = 1; rank < n_sources; rank++)
		if (sources[rank].n_tensors != n)
			return wrong(why,
				     "rank %u has %u tensors, rank 0 has %u; all ranks must have "
				     "the same tensors in the same order",
				     rank, sources[rank].n_tensors, n);
	r->cuts = calloc((size_t)n + 1, sizeof(*r->cuts));
	r->offsets = calloc((size_t)n * n_targets + 1, sizeof(*r->offsets));
	if (!r->cuts || !r->offsets) {
		(void)snprintf(why, RESHARD_WHY_SIZE, "no memory");
		e = -ENOMEM;
	}
	for (uint32_t i = 0; e == 0 && i < n; i++)
		e = cut_tensor(r, split, i, why);
	for (unsigned target = 0; e == 0 && target < n_targets; target++)
		e = place_target(r, target, why);
	if (e < 0)
		reshard_deinit(r);
	return e;
}

void reshard_deinit(struct reshard *r)
{
	free(r->cuts);
	free(r->offsets);
	*r = (struct reshard){0};
}

/* --- The moves --------------------------------------------------------------------------------- */

/* A move and its two nodes, before the moves are sorted by them. */
struct found {
	struct move move;
	uint8_t source;
	uint8_t target;
};

struct search {
	const struct reshard *reshard;
	const unsigned *nodes[MOVES_SIDES]; /* node of each rank */
	struct found *found;
	size_t n;
	size_t room;
};

static int search_keep(struct search *s, const struct found *f, char why[RESHARD_WHY_SIZE])
{
	size_t room = s->room ? 2 * s->room : 256;
	struct found *grown;

	if (s->n == MOVES_MAX)
		return wrong(why,
			     "this takes more than %zu moves; reshard to fewer ranks, or split along "
			     "the same dimension as before",
			     MOVES_MAX);
	if (s->n == s->room) {
		grown = reallocarray(s->found, room, sizeof(*grown));
		if (!grown) {
			(void)snprintf(why, RESHARD_WHY_SIZE, "no memory");
			return -ENOMEM;
		}
		s->found = grown;
		s->room = room;
	}
	s->found[s->n++] = *f;
	return 0;
}

/*
 * Adds one dimension, from the inner ones to the outer ones. Elements that continue in both memories where the
 * previous dimension ended extend it; only the two dimensions along which something is cut do not. In bits.
 */
static void add_dimension(struct move *m, unsigned *n_levels, uint64_t size,
			  const uint64_t stride[MOVES_SIDES])
{
	unsigned level = 2 - *n_levels;

	if (size == 1)
		return;
	if (*n_levels == 0 && stride[MOVES_FROM] == m->run && stride[MOVES_TO] == m->run) {
		m->run *= size;
		return;
	}
	if (*n_levels > 0 && stride[MOVES_FROM] == m->n[level] * m->stride[level][MOVES_FROM] &&
	    stride[MOVES_TO] == m->n[level] * m->stride[level][MOVES_TO]) {
		m->n[level] *= size;
		return;
	}
	assert(*n_levels < 2);
	level = 1 - *n_levels;
	++*n_levels;
	m->n[level] = size;
	memcpy(m->stride[level], stride, sizeof(m->stride[level]));
}

/* From bits to bytes. False: one of them begins within a byte. */
static bool to_bytes(struct move *m)
{
	uint64_t all = m->run | m->offset[MOVES_FROM] | m->offset[MOVES_TO];

	m->run /= 8;
	for (unsigned side = 0; side < MOVES_SIDES; side++) {
		m->offset[side] /= 8;
		for (unsigned level = 0; level < 2; level++) {
			all |= m->stride[level][side];
			m->stride[level][side] /= 8;
		}
	}
	return all % 8 == 0;
}

/* The elements of a tensor that a source and a target share. */
static int reshard_meet(struct search *s, uint32_t tensor, unsigned source, unsigned target,
			char why[RESHARD_WHY_SIZE])
{
	const struct reshard *r = s->reshard;
	const struct reshard_tensor *t = &r->sources[source].tensors[tensor];
	const unsigned ranks[MOVES_SIDES] = {source, target};
	uint64_t stride[MOVES_SIDES] = {t->bits, t->bits};
	struct found f = {.source = (uint8_t)source,
			  .target = (uint8_t)target,
			  .move = {.run = t->bits, .n = {1, 1}}};
	unsigned n_levels = 0;

	for (uint32_t i = t->n_dims; i-- > 0;) {
		uint64_t first[MOVES_SIDES], size[MOVES_SIDES], begin, end;

		for (unsigned side = 0; side < MOVES_SIDES; side++)
			part_of(r, tensor, i, side, ranks[side], &first[side], &size[side]);
		begin = first[0] > first[1] ? first[0] : first[1];
		end = first[0] + size[0] < first[1] + size[1] ? first[0] + size[0]
							      : first[1] + size[1];
		if (begin >= end)
			return 0;
		add_dimension(&f.move, &n_levels, end - begin, stride);
		for (unsigned side = 0; side < MOVES_SIDES; side++) {
			f.move.offset[side] += (begin - first[side]) * stride[side];
			stride[side] *= size[side];
		}
	}
	if (!to_bytes(&f.move))
		return wrong(why,
			     "tensor '%.200s' has elements of %u bits, and would be cut within a "
			     "byte; split it along another dimension",
			     t->name, t->bits);
	f.move.offset[MOVES_FROM] += t->offset;
	f.move.offset[MOVES_TO] += reshard_offset(r, target, tensor);
	return search_keep(s, &f, why);
}

/*
 * The sources from which a target receives a tensor: all from `ret` on that have some of its part, or one of those
 * that have all of it.
 */
static void find_sources(const struct search *s, uint32_t tensor, unsigned target,
			 unsigned *ret_begin, unsigned *ret_end)
{
	const struct reshard *r = s->reshard;
	const struct reshard_cut *cut = &r->cuts[tensor];
	int dim = cut->dim[MOVES_FROM];
	uint64_t first, size, step;

	if (dim == SPLIT_REPLICATED) {
		*ret_begin = target % r->n_sources;
		for (unsigned i = 0; i < r->n_sources; i++)
			if (s->nodes[MOVES_FROM][i] == s->nodes[MOVES_TO][target])
				*ret_begin = i;
		*ret_end = *ret_begin + 1;
		return;
	}
	part_of(r, tensor, (uint32_t)dim, MOVES_TO, target, &first, &size);
	split_shard(cut->whole, r->n_sources, 0, &(uint64_t){0}, &step);
	*ret_begin = size ? (unsigned)(first / step) : 0;
	*ret_end = size ? (unsigned)((first + size - 1) / step) + 1 : 0;
}

static int search_run(struct search *s, char why[RESHARD_WHY_SIZE])
{
	const struct reshard *r = s->reshard;
	int e = 0;

	for (uint32_t i = 0; i < r->sources[0].n_tensors; i++) {
		if (r->sources[0].tensors[i].tied_to != RESHARD_NOT_TIED)
			continue;
		for (unsigned target = 0; target < r->n_targets; target++) {
			unsigned begin, end;

			find_sources(s, i, target, &begin, &end);
			for (unsigned source = begin; e == 0 && source < end; source++)
				e = reshard_meet(s, i, source, target, why);
		}
	}
	return e;
}

/* Sorts what was found by link, each link's in the order of the tensors. */
static int search_sort(const struct search *s, unsigned n_nodes, struct moves *ret)
{
	size_t n_pairs = (size_t)n_nodes * n_nodes, at = 0;
	cleanup(freep) size_t *next = calloc(n_pairs + 1, sizeof(*next));

	ret->links = calloc(n_pairs + 1, sizeof(*ret->links));
	ret->moves = calloc(s->n + 1, sizeof(*ret->moves));
	if (!next || !ret->links || !ret->moves)
		return -ENOMEM;
	for (size_t i = 0; i < s->n; i++)
		next[s->nodes[MOVES_FROM][s->found[i].source] * n_nodes +
		     s->nodes[MOVES_TO][s->found[i].target]]++;
	for (size_t i = 0; i < n_pairs; i++) {
		size_t n = next[i];

		next[i] = at;
		if (n > 0)
			ret->links[ret->n_links++] =
				(struct moves_link){.from = (unsigned)(i / n_nodes),
						    .to = (unsigned)(i % n_nodes),
						    .first = at,
						    .n_moves = n};
		at += n;
	}
	for (size_t i = 0; i < s->n; i++)
		ret->moves[next[s->nodes[MOVES_FROM][s->found[i].source] * n_nodes +
				s->nodes[MOVES_TO][s->found[i].target]]++] = s->found[i].move;
	ret->n_moves = s->n;
	for (size_t i = 0; i < ret->n_links; i++)
		for (size_t k = 0; k < ret->links[i].n_moves; k++)
			ret->links[i].n_bytes += move_size(&ret->moves[ret->links[i].first + k]);
	return 0;
}

int reshard_moves(const struct reshard *r, const unsigned *source_nodes,
		  const unsigned *target_nodes, unsigned n_nodes, struct moves *ret,
		  char why[RESHARD_WHY_SIZE])
{
	struct search s = {.reshard = r, .nodes = {source_nodes, target_nodes}};
	struct moves m = {.n_nodes = n_nodes, .nodes = calloc(n_nodes, sizeof(*m.nodes))};
	int e = m.nodes ? search_run(&s, why) : -ENOMEM;

	if (e == 0)
		e = search_sort(&s, n_nodes, &m);
	free(s.found);
	if (e == -ENOMEM)
		(void)snprintf(why, RESHARD_WHY_SIZE, "no memory");
	if (e < 0) {
		moves_deinit(&m);
		return e;
	}
	for (unsigned i = 0; i < r->n_sources; i++)
		m.nodes[source_nodes[i]].size[MOVES_FROM] = r->sources[i].n_bytes;
	for (unsigned i = 0; i < r->n_targets; i++)
		m.nodes[target_nodes[i]].size[MOVES_TO] = r->target_bytes[i];
	*ret = m;
	return 0;
}
