/*
 * Reshards, beside a model that knows no moves: every element of a whole tensor has a number, and a shard is an array
 * of those that fall to it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/reshard/reshard.h"
#include "weightd.h"

#define ROUNDS 3000
#define DIMS 4
#define RANKS 6
#define TENSORS 4
#define ELEMENTS_MAX 100000

static unsigned draw(unsigned n)
{
	return (unsigned)(random() % n);
}

static const struct kind {
	const char *name;
	unsigned bits;
} kinds[] = {{"U8", 8}, {"BF16", 16}, {"F32", 32}, {"F64", 64}};

/* --- The model --------------------------------------------------------------------------------- */

struct model_tensor {
	const struct kind *kind;
	uint32_t n_dims;
	uint64_t shape[DIMS];
	int dim[MOVES_SIDES];
	uint32_t tied_to;
	char name[16];
};

struct model {
	struct model_tensor tensors[TENSORS];
	uint32_t n_tensors;
	unsigned n_ranks[MOVES_SIDES];
};

struct shard {
	struct reshard_tensor tensors[TENSORS];
	uint64_t shapes[TENSORS][DIMS];
	struct reshard_layout layout;
	uint8_t *memory;
};

/* torch.chunk(): pieces of ceil(n / r), as long as there are any. */
static void cut(uint64_t n, unsigned n_ranks, unsigned rank, uint64_t *ret_first, uint64_t *ret_size)
{
	uint64_t left = n, piece = (n + n_ranks - 1) / n_ranks;

	*ret_first = 0;
	for (unsigned i = 0;; i++) {
		*ret_size = left < piece ? left : piece;
		if (i == rank)
			break;
		*ret_first += *ret_size;
		left -= *ret_size;
	}
}

/* Element `index` of a shard as an index of the whole tensor. */
static uint64_t number_of(const struct model_tensor *t, const uint64_t *first,
			  const uint64_t *shape, uint64_t index)
{
	uint64_t number = 0, scale = 1;

	for (uint32_t i = t->n_dims; i-- > 0;) {
		number += (first[i] + index % shape[i]) * scale;
		index /= shape[i];
		scale *= t->shape[i];
	}
	return number;
}

static uint8_t byte_of(uint32_t tensor, uint64_t number, unsigned byte)
{
	uint64_t x = (number * 8 + byte + 1) * 0x9e3779b97f4a7c15u + tensor * 0x85ebca6bu;

	return (uint8_t)(x >> 56 ^ x >> 24);
}

/* The bytes of a tensor of a shard, in order. */
static void each_byte(const struct model *m, enum moves_side side, unsigned rank, uint32_t tensor,
		      const uint64_t *shape, uint8_t *at, void (*each)(uint8_t *at, uint8_t byte))
{
	const struct model_tensor *t = &m->tensors[tensor];
	uint64_t first[DIMS] = {0}, size, n = 1;

	tensor = t->tied_to != RESHARD_NOT_TIED ? t->tied_to : tensor;
	for (uint32_t i = 0; i < t->n_dims; i++) {
		if (t->dim[side] == (int)i) {
			cut(t->shape[i], m->n_ranks[side], rank, &first[i], &size);
			assert_int_equal(size, shape[i]);
		} else {
			assert_int_equal(t->shape[i], shape[i]);
		}
		n *= shape[i];
	}
	for (uint64_t i = 0; i < n; i++)
		for (unsigned k = 0; k < t->kind->bits / 8; k++)
			each(at++, byte_of(tensor, number_of(t, first, shape, i), k));
}

static void set_byte(uint8_t *at, uint8_t byte)
{
	*at = byte;
}

static void compare_byte(uint8_t *at, uint8_t byte)
{
	assert_int_equal(*at, byte);
}

static void draw_model(struct model *m)
{
	*m = (struct model){.n_tensors = 1 + draw(TENSORS),
			    .n_ranks = {1 + draw(RANKS), 1 + draw(RANKS)}};
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		struct model_tensor *t = &m->tensors[i];

		t->kind = &kinds[draw(ARRAY_LEN(kinds))];
		t->n_dims = draw(DIMS + 1);
		t->tied_to = RESHARD_NOT_TIED;
		(void)snprintf(t->name, sizeof(t->name), "t%u", i);
		for (uint32_t k = 0; k < t->n_dims; k++)
			t->shape[k] = draw(8) ? draw(13) + (draw(3) ? 1 : 0) : 1;
		for (unsigned side = 0; side < MOVES_SIDES; side++)
			t->dim[side] = draw(4) && t->n_dims ? (int)draw(t->n_dims)
							    : SPLIT_REPLICATED;
		if (i > 0 && !draw(6)) {
			uint32_t other = m->tensors[i - 1].tied_to;
			char name[16];

			memcpy(name, t->name, sizeof(name));
			*t = m->tensors[i - 1];
			memcpy(t->name, name, sizeof(name));
			t->tied_to = other == RESHARD_NOT_TIED ? i - 1 : other;
		}
	}
}

static struct weightd_layout *make_source(const struct model *m, unsigned rank, struct shard *ret)
{
	struct weightd_layout *l;

	assert_int_equal(weightd_layout_new(0, &l), 0);
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct model_tensor *t = &m->tensors[i];
		struct weightd_tensor made = {.size = sizeof(made)};
		uint64_t first;

		memcpy(ret->shapes[i], t->shape, sizeof(t->shape));
		if (t->dim[MOVES_FROM] >= 0)
			cut(t->shape[t->dim[MOVES_FROM]], m->n_ranks[MOVES_FROM], rank, &first,
			    &ret->shapes[i][t->dim[MOVES_FROM]]);
		if (t->tied_to != RESHARD_NOT_TIED)
			assert_int_equal(weightd_layout_tie(l, t->name, t->tied_to, NULL), 0);
		else
			assert_int_equal(weightd_layout_add(l, t->name,
							    (enum weightd_dtype)weightd_dtype_parse(
								    t->kind->name),
							    t->n_dims, ret->shapes[i],
							    WEIGHTD_PARAM, NULL),
					 0);
		assert_int_equal(weightd_layout_tensor(l, i, &made), 0);
		ret->tensors[i] = (struct reshard_tensor){.name = t->name,
							  .dtype = t->kind->name,
							  .bits = t->kind->bits,
							  .role = WEIGHTD_PARAM,
							  .tied_to = t->tied_to,
							  .n_dims = t->n_dims,
							  .shape = ret->shapes[i],
							  .offset = made.offset};
	}
	ret->layout = (struct reshard_layout){.tensors = ret->tensors,
					      .n_tensors = m->n_tensors,
					      .n_bytes = weightd_layout_n_bytes(l)};
	return l;
}

static void fill_source(const struct model *m, unsigned rank, struct shard *s)
{
	s->memory = calloc(1, s->layout.n_bytes + 1);
	for (uint32_t i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].tied_to == RESHARD_NOT_TIED)
			each_byte(m, MOVES_FROM, rank, i, s->shapes[i],
				  s->memory + s->tensors[i].offset, set_byte);
}

static void make_split(const struct model *m, struct split *ret)
{
	char text[1024] = "{\"split\": [", why[SPLIT_WHY_SIZE];
	size_t n = strlen(text);

	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct model_tensor *t = &m->tensors[i];

		n += (size_t)snprintf(text + n, sizeof(text) - n, "{\"tensors\": \"%s\"", t->name);
		for (unsigned side = 0; side < MOVES_SIDES; side++) {
			const char *key = side == MOVES_FROM ? "from" : "to";

			n += (size_t)(t->dim[side] < 0
					      ? snprintf(text + n, sizeof(text) - n,
							 ", \"%s\": \"replicated\"", key)
					      : snprintf(text + n, sizeof(text) - n, ", \"%s\": %d",
							 key, t->dim[side]));
		}
		n += (size_t)snprintf(text + n, sizeof(text) - n, "}%s",
				      i + 1 < m->n_tensors ? ", " : "]}");
	}
	if (split_read(text, n, ret, why) < 0)
		fail_msg("%s: %s", text, why);
}

/* --- Independent checks ----------------------------------------------------------------------- */

/* Over a buffer that is seldom as long as a run. Counts how often each byte was written. */
static void carry(const struct moves *m, const struct moves_link *l, const uint8_t *from,
		  uint8_t *to, uint8_t *counts)
{
	struct stream in, out, again, seen;
	uint64_t left = l->n_bytes;

	stream_init(&in, m, l);
	stream_init(&out, m, l);
	stream_init(&again, m, l);
	stream_init(&seen, m, l);
	while (left > 0) {
		uint8_t piece[97], back[97], ones[97];
		size_t size = 1 + draw(sizeof(piece));

		size = size < left ? size : left;
		stream_read(&in, MOVES_FROM, from, piece, size);
		stream_write(&out, piece, to, size);
		stream_read(&again, MOVES_TO, to, back, size);
		assert_memory_equal(piece, back, size);
		for (size_t i = 0; i < size; i++)
			ones[i] = 1;
		stream_write(&seen, ones, counts, size);
		left -= size;
	}
	assert_ptr_equal(in.move, in.end);
	assert_ptr_equal(out.move, out.end);
}

static void assert_target(const struct model *m, const struct reshard *r, unsigned target,
			  uint8_t *memory, const uint8_t *counts)
{
	struct weightd_layout *l;
	uint64_t n_counted = 0, n_bytes = 0;

	assert_int_equal(weightd_layout_new(RESHARD_ALIGNMENT, &l), 0);
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct model_tensor *t = &m->tensors[i];
		struct weightd_tensor made = {.size = sizeof(made)};
		uint64_t shape[RESHARD_DIMS_MAX];

		reshard_shape(r, target, i, shape);
		each_byte(m, MOVES_TO, target, i, shape, memory + reshard_offset(r, target, i),
			  compare_byte);
		if (t->tied_to != RESHARD_NOT_TIED)
			assert_int_equal(weightd_layout_tie(l, t->name, t->tied_to, NULL), 0);
		else
			assert_int_equal(weightd_layout_add(l, t->name,
							    (enum weightd_dtype)weightd_dtype_parse(
								    t->kind->name),
							    t->n_dims, shape, WEIGHTD_PARAM, NULL),
					 0);
		assert_int_equal(weightd_layout_tensor(l, i, &made), 0);
		assert_int_equal(made.offset, reshard_offset(r, target, i));
		if (t->tied_to == RESHARD_NOT_TIED)
			n_bytes += made.n_bytes;
		for (uint64_t k = 0; k < made.n_bytes; k++)
			assert_int_equal(counts[made.offset + k], 1);
	}
	for (uint64_t i = 0; i < r->target_bytes[target]; i++)
		n_counted += counts[i];
	assert_int_equal(n_counted, n_bytes); /* and nothing between tensors */
	assert_int_equal(weightd_layout_n_bytes(l), r->target_bytes[target]);
	weightd_layout_free(l);
}

static void assert_like_model(const struct model *m)
{
	struct shard sources[RANKS] = {0};
	struct reshard_layout layouts[RANKS];
	struct weightd_layout *built[RANKS];
	unsigned source_nodes[RANKS], target_nodes[RANKS], n_nodes = 2 * RANKS;
	char why[RESHARD_WHY_SIZE] = "", plan_why[MOVES_WHY_SIZE] = "";
	struct moves moves, decoded, links;
	struct reshard r;
	struct split split;
	size_t size;
	void *text;

	make_split(m, &split);
	for (unsigned i = 0; i < m->n_ranks[MOVES_FROM]; i++) {
		built[i] = make_source(m, i, &sources[i]);
		fill_source(m, i, &sources[i]);
		layouts[i] = sources[i].layout;
		source_nodes[i] = i;
	}
	for (unsigned i = 0; i < m->n_ranks[MOVES_TO]; i++)
		target_nodes[i] = draw(2) ? i : RANKS + i;
	if (reshard_init(&r, &split, layouts, m->n_ranks[MOVES_FROM], m->n_ranks[MOVES_TO], why) < 0)
		fail_msg("%s", why);
	split_deinit(&split);
	assert_int_equal(reshard_moves(&r, source_nodes, target_nodes, n_nodes, &moves, why), 0);
	assert_int_equal(moves_encode(&moves, &text, &size), 0);
	assert_true(size <= MOVES_SIZE_MAX);
	if (moves_decode(text, size, &decoded, plan_why) < 0)
		fail_msg("%s", plan_why);
	assert_memory_equal(moves.moves, decoded.moves, moves.n_moves * sizeof(*moves.moves));
	assert_int_equal(moves_decode_links(text, size, &links, plan_why), 0);
	assert_int_equal(links.n_links, moves.n_links);
	assert_memory_equal(links.links, moves.links, moves.n_links * sizeof(*moves.links));
	assert_memory_equal(links.nodes, moves.nodes, n_nodes * sizeof(*moves.nodes));
	assert_null(links.moves);
	moves_deinit(&links);
	for (unsigned i = 0; i < m->n_ranks[MOVES_TO]; i++) {
		uint8_t *memory = calloc(1, r.target_bytes[i] + 1);
		uint8_t *counts = calloc(1, r.target_bytes[i] + 1);

		for (unsigned k = 0; k < n_nodes; k++) {
			const struct moves_link *l = moves_link(&decoded, k, target_nodes[i]);

			if (l)
				carry(&decoded, l, sources[k].memory, memory, counts);
		}
		assert_target(m, &r, i, memory, counts);
		free(memory);
		free(counts);
	}
	free(text);
	moves_deinit(&moves);
	moves_deinit(&decoded);
	reshard_deinit(&r);
	for (unsigned i = 0; i < m->n_ranks[MOVES_FROM]; i++) {
		free(sources[i].memory);
		weightd_layout_free(built[i]);
	}
}

static void any_shards_become_any_others_and_each_byte_is_written_once(void **state)
{
	struct model m;

	(void)state;
	srandom(1);
	for (unsigned i = 0; i < ROUNDS; i++) {
		draw_model(&m);
		assert_like_model(&m);
	}
}

/* --- One by one -------------------------------------------------------------------------------- */

#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__})

static struct reshard_tensor tensor(const char *name, uint32_t n_dims, const uint64_t *shape)
{
	return (struct reshard_tensor){.name = name,
				       .dtype = "F32",
				       .bits = 32,
				       .role = 1,
				       .tied_to = RESHARD_NOT_TIED,
				       .n_dims = n_dims,
				       .shape = shape};
}

static struct reshard_layout layout_of(const struct reshard_tensor *t)
{
	return (struct reshard_layout){.tensors = t, .n_tensors = 1, .n_bytes = 1 << 20};
}

static struct split split_of(const char *text)
{
	char why[SPLIT_WHY_SIZE];
	struct split s;

	if (split_read(text, strlen(text), &s, why) < 0)
		fail_msg("%s: %s", text, why);
	return s;
}

static void what_all_have_comes_from_the_same_node_or_by_turns(void **state)
{
	const struct reshard_tensor t = tensor("w", 1, SHAPE(10));
	const struct reshard_layout sources[] = {layout_of(&t), layout_of(&t)};
	struct split split = split_of("{\"split\": [{\"tensors\": \"*\", \"replicated\": true}]}");
	char why[RESHARD_WHY_SIZE];
	struct moves m;
	struct reshard r;

	(void)state;
	assert_int_equal(reshard_init(&r, &split, sources, 2, 4, why), 0);
	assert_int_equal(reshard_moves(&r, (const unsigned[]){0, 1}, (const unsigned[]){1, 2, 3, 4},
				       5, &m, why),
			 0);
	assert_int_equal(m.n_links, 4);
	assert_non_null(moves_link(&m, 1, 1)); /* it has it */
	assert_non_null(moves_link(&m, 1, 2)); /* target 1 */
	assert_non_null(moves_link(&m, 0, 3));
	assert_non_null(moves_link(&m, 1, 4));
	for (size_t i = 0; i < m.n_links; i++)
		assert_int_equal(m.links[i].n_bytes, 40);
	moves_deinit(&m);
	reshard_deinit(&r);
	split_deinit(&split);
}

static void assert_refused(const char *split_text, const struct reshard_tensor *a,
			   const struct reshard_tensor *b, unsigned n_targets, const char *word)
{
	const struct reshard_layout sources[] = {layout_of(a), layout_of(b)};
	struct split split = split_of(split_text);
	char why[RESHARD_WHY_SIZE] = "";
	struct reshard r;

	assert_int_equal(reshard_init(&r, &split, sources, 2, n_targets, why), -EBADMSG);
	if (!strstr(why, word))
		fail_msg("'%s' is not in '%s'", word, why);
	split_deinit(&split);
}

static void shards_that_do_not_fit_together_are_refused_by_name(void **state)
{
	static const char along_0[] = "{\"split\": [{\"tensors\": \"*\", \"dim\": 0}]}";
	static const char everywhere[] = "{\"split\": [{\"tensors\": \"*\", \"replicated\": true}]}";
	const struct reshard_tensor w43 = tensor("w", 2, SHAPE(4, 3)),
				    w44 = tensor("w", 2, SHAPE(4, 4)),
				    w53 = tensor("w", 2, SHAPE(5, 3)), w4 = tensor("w", 1, SHAPE(4)),
				    scalar = tensor("w", 0, NULL), v = tensor("v", 2, SHAPE(4, 3)),
				    huge = tensor("w", 1, SHAPE(INT64_MAX));
	struct reshard_tensor u8 = w43, far = w43, f4 = tensor("w", 1, SHAPE(4));

	(void)state;
	u8.dtype = "U8";
	u8.bits = 8;
	far.offset = (1 << 20) - 47;
	f4.dtype = "F4";
	f4.bits = 4;
	assert_refused(along_0, &w43, &w44, 1, "'w' is [4, 4] at rank 1 and [4, 3] at rank 0");
	assert_refused(along_0, &w43, &w4, 1, "[4] at rank 1");
	assert_refused(along_0, &w43, &w53, 1,
		       "'w' is [4, 3] at rank 0, but of 9 along dimension 0 rank 0 of 2 has 5");
	assert_refused(along_0, &w43, &v, 1, "tensor 0 of rank 1 is 'v'");
	assert_refused(along_0, &w43, &u8, 1, "another dtype");
	assert_refused(along_0, &w43, &far, 1, "is not within its buffer");
	assert_refused(along_0, &scalar, &scalar, 1, "cannot be split along dimension 0");
	assert_refused(along_0, &huge, &huge, 1, "is not within its buffer");
	assert_refused(along_0, &f4, &f4, 3, "do not fill bytes"); /* 3 of 8 elements */
	assert_refused(everywhere, &w43, &w53, 1, "is replicated, but [5, 3] at rank 1");
	assert_refused("{\"split\": [{\"tensors\": \"v\", \"dim\": 0}]}", &w43, &w43, 1,
		       "no rule of the split matches tensor 'w'");
}

static void more_moves_than_there_may_be_are_refused(void **state)
{
	enum {
		N = 2000,
		RANKS_HERE = 32
	};
	static const uint64_t shape[] = {1, RANKS_HERE};
	static struct reshard_tensor tensors[N];
	struct reshard_layout sources[RANKS_HERE];
	unsigned nodes[RANKS_HERE];
	struct split split = split_of("{\"split\": [{\"tensors\": \"*\", \"from\": 0, \"to\": 1}]}");
	char why[RESHARD_WHY_SIZE] = "";
	struct moves m;
	struct reshard r;

	(void)state;
	for (unsigned i = 0; i < N; i++)
		tensors[i] = tensor("w", 2, shape);
	for (unsigned i = 0; i < RANKS_HERE; i++) {
		sources[i] = (struct reshard_layout){.tensors = tensors,
						     .n_tensors = N,
						     .n_bytes = 1 << 20};
		nodes[i] = i;
	}
	assert_int_equal(reshard_init(&r, &split, sources, RANKS_HERE, RANKS_HERE, why), 0);
	assert_int_equal(reshard_moves(&r, nodes, nodes, RANKS_HERE, &m, why), -EBADMSG);
	assert_non_null(strstr(why, "more than 1048576 moves"));
	reshard_deinit(&r);
	split_deinit(&split);
}

static void the_first_rule_that_matches_counts(void **state)
{
	struct split s = split_of(
		"{\"split\": [{\"tensors\": \"*.o?proj.*\", \"from\": 0, \"to\": 1}, "
		"{\"tensors\": \"*.weight\", \"dim\": 0}, "
		"{\"tensors\": \"a*b*c\", \"replicated\": true}]}");

	(void)state;
	assert_ptr_equal(split_find(&s, "model.o_proj.weight"), &s.rules[0]);
	assert_ptr_equal(split_find(&s, "model.o__proj.weight"), &s.rules[1]);
	assert_ptr_equal(split_find(&s, ".weight"), &s.rules[1]);
	assert_null(split_find(&s, "model.weights"));
	assert_ptr_equal(split_find(&s, "abcbcbc"), &s.rules[2]);
	assert_null(split_find(&s, "abcb"));
	assert_int_equal(s.rules[2].to, SPLIT_REPLICATED);
	split_deinit(&s);
}

static void a_split_that_is_none_is_refused_with_what_is_wrong(void **state)
{
	static const char *const texts[][2] = {
		{"{", "not JSON: line 1"},
		{"[]", "{\"split\": [RULE"},
		{"{\"split\": []}", "1 to 1024 rules"},
		{"{\"split\": [{\"tensors\": \"*\", \"dim\": 0}], \"more\": 1}", "nothing else"},
		{"{\"split\": [7]}", "rule 1"},
		{"{\"split\": [{\"tensors\": \"\", \"dim\": 0}]}", "1 to 1024 bytes"},
		{"{\"split\": [{\"tensors\": \"*\", \"dim\": -1}]}", "rule 1 of the split, of '*'"},
		{"{\"split\": [{\"tensors\": \"*\", \"dim\": 32}]}", "0 to 31"},
		{"{\"split\": [{\"tensors\": \"*\", \"dim\": 0, \"replicated\": true}]}", "either"},
		{"{\"split\": [{\"tensors\": \"*\", \"replicated\": false}]}", "either"},
		{"{\"split\": [{\"tensors\": \"*\", \"from\": 0}]}", "either"},
		{"{\"split\": [{\"tensors\": \"*\", \"from\": 0, \"to\": \"all\"}]}", "either"},
		{"{\"split\": [{\"tensors\": \"*\", \"dim\": 0, \"dim\": 1}]}", "not JSON"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		char why[SPLIT_WHY_SIZE] = "";
		struct split s;

		assert_int_equal(split_read(texts[i][0], strlen(texts[i][0]), &s, why), -EBADMSG);
		if (!strstr(why, texts[i][1]))
			fail_msg("%s: '%s' is not in '%s'", texts[i][0], texts[i][1], why);
	}
}

/* --- Plans of others --------------------------------------------------------------------------- */

static const struct move one_move = {
	.offset = {4, 8}, .run = 4, .n = {1, 3}, .stride = {{0, 0}, {8, 4}}};

/* From node 0, which has 24 bytes, to node 1, which has room for 20. */
static void assert_plan(struct move move, struct moves_link link, const char *word)
{
	struct moves_node nodes[] = {{.size = {24, 0}}, {.size = {0, 20}}};
	const struct moves m = {.n_nodes = 2,
				.nodes = nodes,
				.links = &link,
				.n_links = 1,
				.moves = &move,
				.n_moves = 1};
	char why[MOVES_WHY_SIZE] = "";
	struct moves decoded;
	size_t size;
	void *text;
	int r;

	assert_int_equal(moves_encode(&m, &text, &size), 0);
	r = moves_decode(text, size, &decoded, why);
	if (!word) {
		assert_int_equal(r, 0);
		moves_deinit(&decoded);
	} else {
		assert_int_equal(r, -EBADMSG);
		if (!strstr(why, word))
			fail_msg("'%s' is not in '%s'", word, why);
	}
	free(text);
}

static void a_plan_that_leaves_the_memory_is_refused(void **state)
{
	const struct moves_link good = {.from = 0, .to = 1, .n_moves = 1, .n_bytes = 12};
	struct moves_link l;
	struct move m;

	(void)state;
	assert_plan(one_move, good, NULL);
	m = one_move, m.offset[MOVES_FROM] = 5;
	assert_plan(m, good, "leaves the memory");
	m = one_move, m.offset[MOVES_TO] = 9;
	assert_plan(m, good, "leaves the memory");
	m = one_move, m.stride[1][MOVES_FROM] = UINT64_MAX;
	assert_plan(m, good, "leaves the memory");
	m = one_move, m.n[0] = UINT64_MAX;
	assert_plan(m, good, "leaves the memory");
	m = one_move, m.n[0] = 0;
	assert_plan(m, good, "leaves the memory");
	m = one_move, m.run = UINT64_MAX;
	assert_plan(m, good, "leaves the memory");
	m = one_move, m.n[0] = 2; /* over itself */
	l = good, l.n_bytes = 24;
	assert_plan(m, l, "more bytes than it has room for");
	l = good, l.n_bytes = 13;
	assert_plan(one_move, l, "the bytes of a link");
	l = good, l.n_moves = 2;
	assert_plan(one_move, l, "do not match its moves");
	l = good, l.to = 2;
	assert_plan(one_move, l, "name other nodes");
	l = good, l.from = 1;
	assert_plan(one_move, l, "leaves the memory");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_shards_become_any_others_and_each_byte_is_written_once),
		cmocka_unit_test(what_all_have_comes_from_the_same_node_or_by_turns),
		cmocka_unit_test(shards_that_do_not_fit_together_are_refused_by_name),
		cmocka_unit_test(more_moves_than_there_may_be_are_refused),
		cmocka_unit_test(the_first_rule_that_matches_counts),
		cmocka_unit_test(a_split_that_is_none_is_refused_with_what_is_wrong),
		cmocka_unit_test(a_plan_that_leaves_the_memory_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
