/*
 * The kernels' one source
 *
 * Included once by the file of each instruction set, after its vectors: VEC_BYTES, vec, vec_fma(), vec_sqrt(),
 * vec_stream(), and the name of its table, KERNELS. All else is written with the compiler's vector types, which round as
 * scalars do. -ffp-contract=off: an operation is fused where vec_fma() says so, nowhere else.
 *
 * A result depends on the elements alone, never on their place in a range or on the width of a vector.
 */
#include <stdalign.h>
#include <string.h>

#include "libclient/train/kernels/isa.h"

#define INLINE static inline __attribute__((always_inline))

#define LINE                                                                                       \
	64 /* bytes of a cache line: the unit of all loops, so that streams are written in whole lines */
#define LINE_FLOATS (LINE / sizeof(float))
#define LINE_BF16S (LINE / sizeof(uint16_t))
#define LINE_VECS (LINE / VEC_BYTES)
#define LANES (VEC_BYTES / sizeof(float))
#define CHUNK 1024 /* elements of a sum that waits in the L1 cache */
/*
 * Elements that an optimizer fetches ahead, into the L2 cache: as many as cover the copy home of a block of the journal,
 * in which memory would be idle. Measured at 256 to 2048. Into the L1 cache it is slower than not at all.
 */
#define AHEAD 768

typedef vec vec_memory __attribute__((may_alias));
typedef uint32_t vec_u32 __attribute__((vector_size(VEC_BYTES)));
typedef double vec_double __attribute__((vector_size(VEC_BYTES)));
/* As many elements as a vec_double has. */
typedef float half_float __attribute__((vector_size(VEC_BYTES / 2), may_alias));

INLINE vec vec_load(const float *from)
{
	return *(const vec_memory *)from;
}

INLINE void vec_store(float *to, vec x)
{
	*(vec_memory *)to = x;
}

INLINE vec vec_all(float x)
{
	return x - (vec){};
}

INLINE void fetch_ahead(const float *from)
{
	__builtin_prefetch(from, 0, 2);
}

INLINE size_t size_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* --- Sums of gradients --------------------------------------------------------------------------- */

/* Gradients that are summed in registers: as many as the compiler unrolls. */
#define GRADS_FIXED 4

struct grads_fixed {
	const float *grads[GRADS_FIXED];
	vec scale;
};

INLINE struct grads_fixed grads_fix(const float *const *grads, uint32_t n, float scale)
{
	struct grads_fixed fixed = {.scale = vec_all(scale)};

	for (uint32_t rank = 0; rank < n; rank++)
		fixed.grads[rank] = grads[rank];
	return fixed;
}

INLINE void grads_fetch(const struct grads_fixed *g, uint32_t n, size_t i)
{
	for (uint32_t rank = 0; rank < n; rank++)
		fetch_ahead(g->grads[rank] + i);
}

INLINE vec grads_sum(const struct grads_fixed *g, uint32_t n, size_t i)
{
	vec sum = vec_load(g->grads[0] + i);

	for (uint32_t rank = 1; rank < n; rank++)
		sum += vec_load(g->grads[rank] + i);
	return sum * g->scale;
}

/*
 * The sum of any number of gradients, weighted, not scaled: CHUNK elements at most into `to`, rank by rank, so that the
 * processor follows one stream at a time.
 */
static void chunk_sum(float *to, const struct kernel_grads *g, size_t begin, size_t n)
{
	for (uint32_t rank = 0; rank < g->n; rank++) {
		const float *grad = g->grads[rank] + begin;
		vec weight = vec_all(g->weights ? g->weights[rank] : 1);

		for (size_t i = 0; i < n; i += LINE_FLOATS) {
			fetch_ahead(grad + i + CHUNK);
			for (size_t j = i; j < i + LINE_FLOATS; j += LANES) {
				vec x = vec_load(grad + j) * weight;

				vec_store(to + j, rank ? x + vec_load(to + j) : x);
			}
		}
	}
}

/* Gradients without weights have a specialized loop for these numbers of ranks; 0: none. */
static uint32_t grads_n_fixed(const struct kernel_grads *g)
{
	return g->weights || g->n == 3 || g->n > GRADS_FIXED ? 0 : g->n;
}

/* --- Optimizers ---------------------------------------------------------------------------------- */

static struct kernel_state state_at(const struct kernel_state *s, size_t begin)
{
	return (struct kernel_state){
		.param = s->param + begin,
		.m = s->m ? s->m + begin : NULL,
		.v = s->v ? s->v + begin : NULL,
		.new_param = s->new_param + begin,
		.new_m = s->new_m ? s->new_m + begin : NULL,
		.new_v = s->new_v ? s->new_v + begin : NULL,
	};
}

/*
 * torch's fused Adam on the CPU, with the roundings of its vector loop:
 *	AdamW: p *= decay; Adam: g = fma(p, decay, g)
 *	m = lerp(m, g, beta1_rest), from the nearer end: fma(beta1_rest, g - m, m), or fma(beta1_rest - 1, g - m, g)
 *	v = fma(beta2_rest * g, g, v * beta2)
 *	p += minus_step_size * m / (sqrt(v) / bias2_sqrt + eps)
 */
struct adam_vecs {
	vec decay, lerp, beta2, beta2_rest, bias2_sqrt, eps, minus_step_size;
	bool is_decoupled, is_coupled, is_near;
};

INLINE struct adam_vecs adam_vecs_of(const struct kernel_adam *k)
{
	bool is_near = k->beta1_rest < 0.5f;

	return (struct adam_vecs){
		.decay = vec_all(k->decay),
		.lerp = vec_all(is_near ? k->beta1_rest : k->beta1_rest - 1),
		.beta2 = vec_all(k->beta2),
		.beta2_rest = vec_all(k->beta2_rest),
		.bias2_sqrt = vec_all(k->bias2_sqrt),
		.eps = vec_all(k->eps),
		.minus_step_size = vec_all(k->minus_step_size),
		.is_decoupled = k->decoupled,
		.is_coupled = !k->decoupled && k->decay != 0,
		.is_near = is_near,
	};
}

INLINE void adam_vec(const struct adam_vecs *k, vec grad, const struct kernel_state *s, size_t i)
{
	vec param = vec_load(s->param + i), m = vec_load(s->m + i), v = vec_load(s->v + i);

	if (k->is_decoupled)
		param *= k->decay;
	if (k->is_coupled)
		grad = vec_fma(param, k->decay, grad);
	m = vec_fma(k->lerp, grad - m, k->is_near ? m : grad);
	v = vec_fma(k->beta2_rest * grad, grad, v * k->beta2);
	param += k->minus_step_size * m / (vec_sqrt(v) / k->bias2_sqrt + k->eps);
	vec_store(s->new_m + i, m);
	vec_store(s->new_v + i, v);
	vec_store(s->new_param + i, param);
}

INLINE void adam_fixed(const struct kernel_adam *k, const float *const *grads, uint32_t n_grads,
		       float scale, struct kernel_state s, size_t n)
{
	struct grads_fixed g = grads_fix(grads, n_grads, scale);
	struct adam_vecs vecs = adam_vecs_of(k);

	for (size_t i = 0; i < n; i += LINE_FLOATS) {
		grads_fetch(&g, n_grads, i + AHEAD);
		fetch_ahead(s.param + i + AHEAD);
		fetch_ahead(s.m + i + AHEAD);
		fetch_ahead(s.v + i + AHEAD);
		for (size_t j = i; j < i + LINE_FLOATS; j += LANES)
			adam_vec(&vecs, grads_sum(&g, n_grads, j), &s, j);
	}
}

static void kernel_adam(const struct kernel_adam *k, const struct kernel_grads *g,
			const struct kernel_state *s, size_t n)
{
	switch (grads_n_fixed(g)) {
	case 1:
		return adam_fixed(k, g->grads, 1, g->scale, *s, n);
	case 2:
		return adam_fixed(k, g->grads, 2, g->scale, *s, n);
	case 4:
		return adam_fixed(k, g->grads, 4, g->scale, *s, n);
	}
	for (size_t begin = 0; begin < n; begin += CHUNK) {
		alignas(LINE) float sum[CHUNK];
		size_t n_now = size_min(CHUNK, n - begin);

		chunk_sum(sum, g, begin, n_now);
		adam_fixed(k, &(const float *){sum}, 1, g->scale, state_at(s, begin), n_now);
	}
}

/*
 * torch's fused SGD, likewise:
 *	g = fma(p, weight_decay, g)
 *	m = g + momentum * m; g = m, Nesterov: g = fma(m, momentum, g)
 *	p = fma(g, minus_lr, p)
 * torch has m = g in the first step: the same, as m begins with 0.
 */
struct sgd_vecs {
	vec weight_decay, momentum, minus_lr;
	bool has_decay, has_momentum, is_nesterov;
};

INLINE void sgd_vec(const struct sgd_vecs *k, vec grad, const struct kernel_state *s, size_t i)
{
	vec param = vec_load(s->param + i);

	if (k->has_decay)
		grad = vec_fma(param, k->weight_decay, grad);
	if (k->has_momentum) {
		vec m = grad + k->momentum * vec_load(s->m + i);

		vec_store(s->new_m + i, m);
		grad = k->is_nesterov ? vec_fma(m, k->momentum, grad) : m;
	}
	vec_store(s->new_param + i, vec_fma(grad, k->minus_lr, param));
}

INLINE void sgd_fixed(const struct kernel_sgd *k, const float *const *grads, uint32_t n_grads,
		      float scale, struct kernel_state s, size_t n)
{
	struct grads_fixed g = grads_fix(grads, n_grads, scale);
	struct sgd_vecs vecs = {
		.weight_decay = vec_all(k->weight_decay),
		.momentum = vec_all(k->momentum),
		.minus_lr = vec_all(k->minus_lr),
		.has_decay = k->weight_decay != 0,
		.has_momentum = k->has_momentum,
		.is_nesterov = k->nesterov,
	};

	for (size_t i = 0; i < n; i += LINE_FLOATS) {
		grads_fetch(&g, n_grads, i + AHEAD);
		fetch_ahead(s.param + i + AHEAD);
		if (vecs.has_momentum)
			fetch_ahead(s.m + i + AHEAD);
		for (size_t j = i; j < i + LINE_FLOATS; j += LANES)
			sgd_vec(&vecs, grads_sum(&g, n_grads, j), &s, j);
	}
}

static void kernel_sgd(const struct kernel_sgd *k, const struct kernel_grads *g,
		       const struct kernel_state *s, size_t n)
{
	switch (grads_n_fixed(g)) {
	case 1:
		return sgd_fixed(k, g->grads, 1, g->scale, *s, n);
	case 2:
		return sgd_fixed(k, g->grads, 2, g->scale, *s, n);
	case 4:
		return sgd_fixed(k, g->grads, 4, g->scale, *s, n);
	}
	for (size_t begin = 0; begin < n; begin += CHUNK) {
		alignas(LINE) float sum[CHUNK];
		size_t n_now = size_min(CHUNK, n - begin);

		chunk_sum(sum, g, begin, n_now);
		sgd_fixed(k, &(const float *){sum}, 1, g->scale, state_at(s, begin), n_now);
	}
}

/* --- Reductions ---------------------------------------------------------------------------------- */

/* Writes a cache line to one place, before the next place. */
INLINE void line_put(void *to, const vec_memory line[LINE_VECS], bool stream)
{
	for (size_t i = 0; i < LINE_VECS; i++) {
		float *place = (float *)to + i * LANES;

		if (stream)
			vec_stream(place, line[i]);
		else
			vec_store(place, line[i]);
	}
}

INLINE void sum_fixed(float *const *to, uint32_t n_to, const float *const *grads, uint32_t n_grads,
		      float scale, size_t begin, size_t n, bool stream)
{
	struct grads_fixed g = grads_fix(grads, n_grads, scale);

	for (size_t i = 0; i < n; i += LINE_FLOATS) {
		vec_memory line[LINE_VECS];

		for (size_t j = 0; j < LINE_VECS; j++)
			line[j] = grads_sum(&g, n_grads, i + j * LANES);
		for (uint32_t out = 0; out < n_to; out++)
			line_put(to[out] + begin + i, line, stream);
	}
}

static void kernel_sum(float *const *to, uint32_t n_to, const struct kernel_grads *g, size_t n,
		       bool stream)
{
	switch (grads_n_fixed(g)) {
	case 1:
		return sum_fixed(to, n_to, g->grads, 1, g->scale, 0, n, stream);
	case 2:
		return sum_fixed(to, n_to, g->grads, 2, g->scale, 0, n, stream);
	case 4:
		return sum_fixed(to, n_to, g->grads, 4, g->scale, 0, n, stream);
	}
	for (size_t begin = 0; begin < n; begin += CHUNK) {
		alignas(LINE) float sum[CHUNK];
		size_t n_now = size_min(CHUNK, n - begin);

		chunk_sum(sum, g, begin, n_now);
		sum_fixed(to, n_to, &(const float *){sum}, 1, g->scale, begin, n_now, stream);
	}
}

/*
 * Two bf16 elements of a 32-bit word become floats in two vectors, without a shuffle: bits of the even one are below
 * those of the odd one.
 */
struct bf16_vecs {
	vec even, odd;
};

INLINE struct bf16_vecs bf16_load(const uint16_t *from)
{
	vec_u32 words = (vec_u32) * (const vec_memory *)from;

	return (struct bf16_vecs){.even = (vec)(words << 16), .odd = (vec)(words & 0xffff0000)};
}

/* Rounds to the upper half, to nearest even. A NaN keeps its bits: that of a sum of bf16 has some in the upper half. */
INLINE vec_u32 bf16_round(vec x)
{
	vec_u32 bits = (vec_u32)x;
	vec_u32 is_nan = (vec_u32)(x != x);

	return (is_nan & bits) | (~is_nan & (bits + 0x7fff + ((bits >> 16) & 1)));
}

INLINE vec bf16_sum(const uint16_t *const *from, uint32_t n_from, size_t i)
{
	struct bf16_vecs sum = bf16_load(from[0] + i);

	for (uint32_t rank = 1; rank < n_from; rank++) {
		struct bf16_vecs x = bf16_load(from[rank] + i);

		sum.even += x.even;
		sum.odd += x.odd;
	}
	return (vec)(bf16_round(sum.even) >> 16 | (bf16_round(sum.odd) & 0xffff0000));
}

static void kernel_sum_bf16(uint16_t *const *to, uint32_t n_to, const uint16_t *const *from,
			    uint32_t n_from, size_t n, bool stream)
{
	for (size_t i = 0; i < n; i += LINE_BF16S) {
		vec_memory line[LINE_VECS];

#pragma GCC unroll 4
		for (size_t j = 0; j < LINE_VECS; j++)
			line[j] = bf16_sum(from, n_from, i + j * 2 * LANES);
		for (uint32_t out = 0; out < n_to; out++)
			line_put(to[out] + i, line, stream);
	}
}

/* Sixteen sums, of the elements with the same index modulo 16; then their sum in order. Squares are exact in double. */
static double kernel_squares(const float *from, size_t n)
{
	enum {
		n_halves = 16 * sizeof(double) / VEC_BYTES,
		n_lanes = VEC_BYTES / sizeof(double)
	};
	vec_double sums[n_halves] = {};
	double ret = 0;

	for (size_t i = 0; i < n; i += 16)
		for (size_t j = 0; j < n_halves; j++) {
			vec_double x = __builtin_convertvector(
				*(const half_float *)(from + i + j * n_lanes), vec_double);

			sums[j] += x * x;
		}
	for (size_t j = 0; j < 16; j++)
		ret += sums[j / n_lanes][j % n_lanes];
	return ret;
}

INLINE void copy(uint8_t *to, const uint8_t *from, size_t n_bytes, bool stream)
{
	for (size_t i = 0; i < n_bytes; i += LINE)
		line_put(to + i, (const vec_memory *)(from + i), stream);
}

static void kernel_copy(void *to, const void *from, size_t n_bytes, bool stream)
{
	if (stream)
		copy(to, from, n_bytes, true);
	else
		copy(to, from, n_bytes, false);
}

const struct kernels KERNELS = {
	.isa = KERNELS_ISA,
	.adam = kernel_adam,
	.sgd = kernel_sgd,
	.sum = kernel_sum,
	.sum_bf16 = kernel_sum_bf16,
	.squares = kernel_squares,
	.copy = kernel_copy,
};
