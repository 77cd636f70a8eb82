/*
 * all-MiniLM-L6-v2
 *
 * The forward pass of transformers' BertModel (post-norm, exact GELU), then the mean pooling and
 * normalisation of sentence-transformers. One sentence at a time, so there is no padding to mask.
 * Rows of activations come in fours for linear(); what the surplus rows hold is never looked at.
 */
#include "tests/demo/minilm.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS 12
#define HEAD_SIZE (MINILM_HIDDEN / HEADS)
#define NORM_EPSILON 1e-12
#define ROWS 4

/* Four sums side by side: a vector register everywhere, in an order that no compiler may change. */
typedef float lanes __attribute__((vector_size(16)));

static inline lanes load(const float *p)
{
	lanes v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline float sum(lanes v)
{
	return (v[0] + v[1]) + (v[2] + v[3]);
}

static float dot(const float *a, const float *b, size_t n)
{
	lanes acc = {0};

	for (size_t i = 0; i < n; i += 4)
		acc += load(a + i) * load(b + i);
	return sum(acc);
}

/* --- Weights ----------------------------------------------------------------------------------- */

struct binding {
	minilm_lookup_fn lookup;
	void *userdata;
	char *missing;
};

/* `columns` 0: a vector. */
static int bind_tensor(const struct binding *b, const char *name, uint64_t rows, uint64_t columns,
		       const float **ret)
{
	const uint64_t shape[] = {rows, columns};

	*ret = b->lookup(b->userdata, name, columns ? 2 : 1, shape);
	if (*ret)
		return 0;
	(void)snprintf(b->missing, MINILM_NAME_MAX, "%s", name);
	return -ENOENT;
}

static int bind_affine(const struct binding *b, const char *prefix, uint64_t rows, uint64_t columns,
		       struct minilm_affine *ret)
{
	char name[MINILM_NAME_MAX];
	int r;

	(void)snprintf(name, sizeof(name), "%s.weight", prefix);
	r = bind_tensor(b, name, rows, columns, &ret->weight);
	if (r < 0)
		return r;
	(void)snprintf(name, sizeof(name), "%s.bias", prefix);
	return bind_tensor(b, name, rows, 0, &ret->bias);
}

static int bind_layer(const struct binding *b, unsigned index, struct minilm_layer *l)
{
	const uint64_t hidden = MINILM_HIDDEN, intermediate = MINILM_INTERMEDIATE;
	const struct {
		const char *name;
		uint64_t rows, columns;
		struct minilm_affine *ret;
	} parts[] = {
		{"attention.self.query", hidden, hidden, &l->query},
		{"attention.self.key", hidden, hidden, &l->key},
		{"attention.self.value", hidden, hidden, &l->value},
		{"attention.output.dense", hidden, hidden, &l->attended},
		{"attention.output.LayerNorm", hidden, 0, &l->attended_norm},
		{"intermediate.dense", intermediate, hidden, &l->up},
		{"output.dense", hidden, intermediate, &l->down},
		{"output.LayerNorm", hidden, 0, &l->norm},
	};
	char prefix[MINILM_NAME_MAX - 8]; /* room for ".weight" */
	int r;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		(void)snprintf(prefix, sizeof(prefix), "encoder.layer.%u.%s", index, parts[i].name);
		r = bind_affine(b, prefix, parts[i].rows, parts[i].columns, parts[i].ret);
		if (r < 0)
			return r;
	}
	return 0;
}

int minilm_bind(struct minilm *m, minilm_lookup_fn lookup, void *userdata,
		char ret_missing[MINILM_NAME_MAX])
{
	const struct binding b = {lookup, userdata, ret_missing};
	const uint64_t hidden = MINILM_HIDDEN;
	int r;

	r = bind_tensor(&b, "embeddings.word_embeddings.weight", MINILM_VOCAB, hidden, &m->words);
	if (r == 0)
		r = bind_tensor(&b, "embeddings.position_embeddings.weight", MINILM_POSITIONS,
				hidden, &m->positions);
	if (r == 0)
		r = bind_tensor(&b, "embeddings.token_type_embeddings.weight", 2, hidden, &m->types);
	if (r == 0)
		r = bind_affine(&b, "embeddings.LayerNorm", hidden, 0, &m->norm);
	for (unsigned i = 0; r == 0 && i < MINILM_LAYERS; i++)
		r = bind_layer(&b, i, &m->layers[i]);
	return r;
}

/* --- Forward ----------------------------------------------------------------------------------- */

/*
 * y[n][n_out] = x[n][n_in] weight^T + bias; n is a multiple of ROWS, n_in of 4, n_out of 2. Four rows
 * of x meet two of the weight at a time: eight sums in flight, and each loaded value used more than
 * once.
 */
static void linear(const struct minilm_affine *a, const float *x, size_t n, size_t n_in,
		   size_t n_out, float *y)
{
	for (size_t o = 0; o < n_out; o += 2) {
		const float *w = a->weight + o * n_in;

		for (size_t row = 0; row < n; row += ROWS) {
			lanes acc[ROWS][2] = {0};

			for (size_t i = 0; i < n_in; i += 4) {
				lanes w0 = load(w + i), w1 = load(w + n_in + i);

				for (size_t k = 0; k < ROWS; k++) {
					lanes v = load(x + (row + k) * n_in + i);

					acc[k][0] += v * w0;
					acc[k][1] += v * w1;
				}
			}
			for (size_t k = 0; k < ROWS; k++) {
				y[(row + k) * n_out + o] = sum(acc[k][0]) + a->bias[o];
				y[(row + k) * n_out + o + 1] = sum(acc[k][1]) + a->bias[o + 1];
			}
		}
	}
}

static void norm_row(const struct minilm_affine *a, float *x)
{
	double mean = 0, variance = 0;
	float scale;

	for (size_t i = 0; i < MINILM_HIDDEN; i++)
		mean += (double)x[i];
	mean /= MINILM_HIDDEN;
	for (size_t i = 0; i < MINILM_HIDDEN; i++)
		variance += ((double)x[i] - mean) * ((double)x[i] - mean);
	variance /= MINILM_HIDDEN;
	scale = (float)(1 / sqrt(variance + NORM_EPSILON));
	for (size_t i = 0; i < MINILM_HIDDEN; i++)
		x[i] = (x[i] - (float)mean) * scale * a->weight[i] + a->bias[i];
}

/* x = norm(x + y), row by row. */
static void add_and_norm(const struct minilm_affine *a, const float *y, size_t n, float *x)
{
	for (size_t i = 0; i < n * MINILM_HIDDEN; i++)
		x[i] += y[i];
	for (size_t row = 0; row < n; row++)
		norm_row(a, x + row * MINILM_HIDDEN);
}

static void softmax(float *x, size_t n)
{
	float max = x[0], total = 0;

	for (size_t i = 1; i < n; i++)
		max = fmaxf(max, x[i]);
	for (size_t i = 0; i < n; i++) {
		x[i] = expf(x[i] - max);
		total += x[i];
	}
	for (size_t i = 0; i < n; i++)
		x[i] /= total;
}

/* One token looks at all n through one head. */
static void attend(const float *query, const float *keys, const float *values, size_t n, float *ret)
{
	const float scale = 1 / sqrtf((float)HEAD_SIZE);
	float p[MINILM_TOKENS_MAX];

	for (size_t j = 0; j < n; j++)
		p[j] = dot(query, keys + j * MINILM_HIDDEN, HEAD_SIZE) * scale;
	softmax(p, n);
	memset(ret, 0, HEAD_SIZE * sizeof(*ret));
	for (size_t j = 0; j < n; j++)
		for (size_t i = 0; i < HEAD_SIZE; i++)
			ret[i] += p[j] * values[j * MINILM_HIDDEN + i];
}

static void gelu(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = 0.5f * x[i] * (1 + erff(x[i] * (float)M_SQRT1_2));
}

/* Activations of one sentence: `n` tokens, `rows` of them with the surplus ones. */
struct pass {
	size_t n, rows;
	float *x, *query, *key, *value, *y; /* [rows][MINILM_HIDDEN] */
	float *wide; /* [rows][MINILM_INTERMEDIATE] */
};

static void run_layer(const struct minilm_layer *l, const struct pass *p)
{
	const size_t h = MINILM_HIDDEN, wide = MINILM_INTERMEDIATE;

	linear(&l->query, p->x, p->rows, h, h, p->query);
	linear(&l->key, p->x, p->rows, h, h, p->key);
	linear(&l->value, p->x, p->rows, h, h, p->value);
	for (size_t row = 0; row < p->n; row++)
		for (size_t i = 0; i < h; i += HEAD_SIZE)
			attend(p->query + row * h + i, p->key + i, p->value + i, p->n,
			       p->wide + row * h + i);
	linear(&l->attended, p->wide, p->rows, h, h, p->y);
	add_and_norm(&l->attended_norm, p->y, p->n, p->x);

	linear(&l->up, p->x, p->rows, h, wide, p->wide);
	gelu(p->wide, p->n * wide);
	linear(&l->down, p->wide, p->rows, wide, h, p->y);
	add_and_norm(&l->norm, p->y, p->n, p->x);
}

static void embed_tokens(const struct minilm *m, const uint32_t *ids, const struct pass *p)
{
	for (size_t row = 0; row < p->n; row++) {
		const float *word = m->words + (size_t)ids[row] * MINILM_HIDDEN;
		const float *position = m->positions + row * MINILM_HIDDEN;
		float *x = p->x + row * MINILM_HIDDEN;

		for (size_t i = 0; i < MINILM_HIDDEN; i++)
			x[i] = word[i] + position[i] + m->types[i];
		norm_row(&m->norm, x);
	}
}

static void pool(const struct pass *p, float *ret)
{
	float length;

	memset(ret, 0, MINILM_HIDDEN * sizeof(*ret));
	for (size_t row = 0; row < p->n; row++)
		for (size_t i = 0; i < MINILM_HIDDEN; i++)
			ret[i] += p->x[row * MINILM_HIDDEN + i];
	length = sqrtf(dot(ret, ret, MINILM_HIDDEN)); /* the division by n cancels out */
	for (size_t i = 0; i < MINILM_HIDDEN; i++)
		ret[i] /= length;
}

int minilm_embed(const struct minilm *m, const uint32_t *ids, size_t n_ids, float ret[MINILM_HIDDEN])
{
	struct pass p = {.n = n_ids, .rows = (n_ids + ROWS - 1) / ROWS * ROWS};
	const size_t narrow = p.rows * MINILM_HIDDEN;
	float *memory;

	if (!n_ids || n_ids > MINILM_TOKENS_MAX)
		return -EINVAL;
	for (size_t i = 0; i < n_ids; i++)
		if (ids[i] >= MINILM_VOCAB)
			return -EINVAL;

	memory = calloc(5 * narrow + p.rows * MINILM_INTERMEDIATE, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	p.x = memory;
	p.query = p.x + narrow;
	p.key = p.query + narrow;
	p.value = p.key + narrow;
	p.y = p.value + narrow;
	p.wide = p.y + narrow;

	embed_tokens(m, ids, &p);
	for (size_t i = 0; i < MINILM_LAYERS; i++)
		run_layer(&m->layers[i], &p);
	pool(&p, ret);
	free(memory);
	return 0;
}
