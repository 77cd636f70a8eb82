/*
 * Kernels
 *
 * Arithmetic on flat ranges, once for each instruction set, chosen at run time: x86-64-v2, v3 (AVX2, FMA) and v4
 * (AVX-512), and one for any machine. All have the same bits: one rounding for each operation of the formulas in body.inc,
 * wherever a range is cut. Two things are not promised: which bits a NaN has, and results in a thread that
 * flushes denormals. Pointers are aligned to 64 bytes and counts are multiples of 16 elements, except where a kernel says
 * otherwise; ranges are equal or disjoint. Kernels may prefetch behind the end of a range, which cannot fault.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KERNEL_RANKS_MAX 256

/* Types of elements in memory. Arithmetic is in fp32. */
enum kernel_type {
	KERNEL_F32,
	KERNEL_BF16,
	KERNEL_F16,
};

/* Bytes of an element. */
static inline size_t kernel_type_size(enum kernel_type type)
{
	return type == KERNEL_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* The element with an index. */
static inline const void *kernel_element(const void *first, enum kernel_type type, size_t index)
{
	return (const uint8_t *)first + index * kernel_type_size(type);
}

/* Gradients of all ranks, to be widened to fp32 and summed in the order of ranks. */
struct kernel_grads {
	const void *const *grads; /* n, each at the first element of the range */
	const float *weights; /* n: each gradient is multiplied with it first; NULL: not */
	uint32_t n;
	float scale; /* the sum is multiplied with it, unless it is 1 */
	enum kernel_type type; /* the elements of all gradients */
};

/* Scalars of one step, rounded once from double. AdamW as torch's fused one on the CPU has it. */
struct kernel_adam {
	float decay; /* AdamW: 1 - lr * weight_decay; Adam: weight_decay */
	float beta1_rest, beta2, beta2_rest; /* 1 - beta1; beta2; 1 - beta2 */
	float bias2_sqrt; /* sqrt(1 - beta2^step) */
	float eps;
	float minus_step_size; /* -lr / (1 - beta1^step) */
	bool decoupled; /* AdamW */
};

struct kernel_sgd {
	float weight_decay, momentum, minus_lr;
	bool nesterov;
	bool has_momentum;
};

/*
 * Old and new values of a range; equal pointers update in place. Moments that the optimizer lacks are NULL. `new_rounded`
 * receives the new parameter as round() does; NULL: not. `rounded` is the memory that will have it in the end: it is fetched
 * ahead, not read; NULL: not.
 */
struct kernel_state {
	const float *param, *m, *v;
	const uint16_t *rounded;
	float *new_param, *new_m, *new_v;
	uint16_t *new_rounded;
	enum kernel_type rounded_type; /* KERNEL_BF16 or KERNEL_F16 */
};

struct kernels {
	const char *isa;
	/* One pass: sum of gradients, optimizer. */
	void (*adam)(const struct kernel_adam *k, const struct kernel_grads *g,
		     const struct kernel_state *s, size_t n);
	void (*sgd)(const struct kernel_sgd *k, const struct kernel_grads *g,
		    const struct kernel_state *s, size_t n);
	/*
	 * to[i][...] = sum, for n_to outputs, whole cache lines. `stream`: non-temporal stores, which pay for outputs that
	 * are not among the inputs, and larger than the caches; in place they take 1.3 to 3 times as long.
	 */
	void (*sum)(float *const *to, uint32_t n_to, const struct kernel_grads *g, size_t n,
		    bool stream);
	/* Likewise for bf16, with sums in fp32 and one rounding to nearest even; n is a multiple of 32. */
	void (*sum_bf16)(uint16_t *const *to, uint32_t n_to, const uint16_t *const *from,
			 uint32_t n_from, size_t n, bool stream);
	/* Sum of squares in double, in a fixed order: sixteen interleaved sums, then theirs. */
	double (*squares)(const float *from, size_t n);
	/*
	 * Any number of elements, at any address that their type can have; the ranges are disjoint. F32 is a copy. Widening is
	 * exact, but that an F16 NaN becomes quiet. Rounding is to nearest even, to infinity beyond the largest number, to
	 * denormals below the smallest normal one. A NaN keeps its sign and the upper bits of its payload and becomes quiet:
	 * here all bits are equal on all instruction sets.
	 */
	void (*widen)(float *to, const void *from, enum kernel_type type, size_t n);
	void (*round)(void *to, enum kernel_type type, const float *from, size_t n);
	/* Bytes, a multiple of 64. Non-temporal stores need a fence before a word that others wait for: kernels_fence(). */
	void (*copy)(void *to, const void *from, size_t n_bytes, bool stream);
};

/* The fastest that this machine has, or the one that $WEIGHTD_TRAIN_ISA names: isa_check() refuses an unknown name. */
const struct kernels *kernels_get(void);
/* Those that this machine has, the fastest first; NULL behind the last. */
const struct kernels *kernels_at(size_t index);
/* NULL: unknown, or this machine lacks it. */
const struct kernels *kernels_find(const char *isa);
/* Orders non-temporal stores before what follows. */
void kernels_fence(void);
