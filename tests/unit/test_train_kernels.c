/*
 * Kernels: each instruction set of this machine against scalar C, bit by bit
 *
 * The reference is built with -ffp-contract=off; fmaf() stands where the kernels fuse. A NaN equals every other NaN.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/kernels/kernel.h"
#include "tests/unit/train_types.h"

#define N 4128 /* more than two chunks of the kernels, and a rest of 32 */
#define GUARD 16 /* elements on either side that must not change */
#define N_RANKS 17 /* more than are summed in registers */

static const char *const isas[] = {"portable", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

/* Ranges between guards. */
struct range {
	_Alignas(64) float guard_before[GUARD];
	float x[N];
	float guard_after[GUARD];
};

static const uint32_t rank_counts[] = {1, 2, 3, 4, 5, 8, 16, N_RANKS};
#define N_COUNTS (sizeof(rank_counts) / sizeof(*rank_counts))

static struct range grads[N_RANKS], outs[N_RANKS], state[3], fresh[3], wanted[3];

/* The same of 16-bit elements. */
struct half_range {
	_Alignas(64) uint16_t guard_before[GUARD];
	uint16_t x[N];
	uint16_t guard_after[GUARD];
};

static struct half_range half_grads[N_RANKS], rounded;

static uint64_t seed = 1;

static uint32_t random_u32(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 32);
}

/* Values as in training, near 1; now and then one from the edges, or any bits. */
static float random_float(void)
{
	static const uint32_t edges[] = {
		0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
		0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,
		0x7f800001, 0x3f800000, 0x33800000, 0x0d000000,
	};
	uint32_t r = random_u32();

	if (r % 16 == 0)
		return float_of(edges[random_u32() % 16]);
	if (r % 16 == 1)
		return float_of(random_u32());
	return (float)((int32_t)random_u32()) / 0x1p31f;
}

static void range_fill(struct range *r)
{
	for (size_t i = 0; i < GUARD; i++)
		r->guard_before[i] = r->guard_after[i] = (float)i;
	for (size_t i = 0; i < N; i++)
		r->x[i] = random_float();
}

static void range_check_guards(const struct range *r)
{
	for (size_t i = 0; i < GUARD; i++) {
		assert_true(r->guard_before[i] == (float)i);
		assert_true(r->guard_after[i] == (float)i);
	}
}

static bool float_equal(float a, float b)
{
	return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

static void check_equal(const char *isa, const char *what, const float *got, const float *want)
{
	for (size_t i = 0; i < N; i++)
		if (!float_equal(got[i], want[i]))
			fail_msg("%s, %s, element %zu: %08x (%a), not %08x (%a)", isa, what, i,
				 bits_of(got[i]), (double)got[i], bits_of(want[i]), (double)want[i]);
}

/* Gradients of one type, as floats in `grads` and as elements in `half_grads`. */
static void grads_fill(uint32_t n, enum kernel_type type)
{
	for (uint32_t rank = 0; rank < n; rank++) {
		range_fill(&grads[rank]);
		for (size_t i = 0; i < N && type != KERNEL_F32; i++) {
			half_grads[rank].x[i] = reference_round(grads[rank].x[i], type);
			grads[rank].x[i] = reference_widen(half_grads[rank].x[i], type);
		}
	}
}

static void rounded_fill(void)
{
	for (size_t i = 0; i < GUARD; i++)
		rounded.guard_before[i] = rounded.guard_after[i] = (uint16_t)i;
	memset(rounded.x, 0x5a, sizeof(rounded.x));
}

/* The rounded copy of `from`, or nothing where `type` is F32. */
static void check_rounded(const char *isa, const char *what, const float *from,
			  enum kernel_type type)
{
	for (size_t i = 0; i < GUARD; i++) {
		assert_int_equal(rounded.guard_before[i], i);
		assert_int_equal(rounded.guard_after[i], i);
	}
	for (size_t i = 0; i < N; i++) {
		uint16_t want = type == KERNEL_F32 ? 0x5a5a : reference_round(from[i], type);

		if (rounded.x[i] != want)
			fail_msg("%s, %s, element %zu: %a is rounded to %04x, not %04x", isa, what,
				 i, (double)from[i], rounded.x[i], want);
	}
}

/* Calls for each instruction set that this machine has. */
static void for_each_isa(void (*check)(const struct kernels *k))
{
	for (size_t i = 0; i < sizeof(isas) / sizeof(*isas); i++) {
		const struct kernels *k = kernels_find(isas[i]);

		if (!k) {
			print_message("this machine has no %s\n", isas[i]);
			continue;
		}
		seed = 1;
		assert_string_equal(k->isa, isas[i]);
		check(k);
	}
}

/* --- The reference ------------------------------------------------------------------------------- */

/* Elements of 16 bits are in `grads` as floats, too. */
static float reference_sum(const struct kernel_grads *g, size_t i)
{
	float sum = 0;

	for (uint32_t rank = 0; rank < g->n; rank++) {
		float x = grads[rank].x[i] * (g->weights ? g->weights[rank] : 1);

		sum = rank ? sum + x : x;
	}
	return sum * g->scale;
}

static void reference_adam(const struct kernel_adam *k, float g, float *p, float *m, float *v)
{
	float rest = k->beta1_rest;

	if (k->decoupled)
		*p *= k->decay;
	else if (k->decay != 0)
		g = fmaf(*p, k->decay, g);
	*m = rest < 0.5f ? fmaf(rest, g - *m, *m) : fmaf(rest - 1, g - *m, g);
	*v = fmaf(k->beta2_rest * g, g, *v * k->beta2);
	*p += k->minus_step_size * *m / (sqrtf(*v) / k->bias2_sqrt + k->eps);
}

static void reference_sgd(const struct kernel_sgd *k, float g, float *p, float *m)
{
	if (k->weight_decay != 0)
		g = fmaf(*p, k->weight_decay, g);
	if (k->has_momentum) {
		*m = g + k->momentum * *m;
		g = k->nesterov ? fmaf(*m, k->momentum, g) : *m;
	}
	*p = fmaf(g, k->minus_lr, *p);
}

/* --- Optimizers ---------------------------------------------------------------------------------- */

static const void *places[N_RANKS];
static float weights[N_RANKS];

static struct kernel_grads grads_at(uint32_t n, enum kernel_type type, bool is_weighted,
				    size_t begin)
{
	for (uint32_t rank = 0; rank < n; rank++) {
		places[rank] = type == KERNEL_F32 ? (const void *)(grads[rank].x + begin)
						  : half_grads[rank].x + begin;
		weights[rank] = 1 / (float)(rank + 2);
	}
	return (struct kernel_grads){.grads = places,
				     .weights = is_weighted ? weights : NULL,
				     .n = n,
				     .scale = is_weighted ? 1 : 1 / (float)n,
				     .type = type};
}

/* `type`: that of the rounded copy; F32: none. */
static struct kernel_state state_at(bool is_in_place, enum kernel_type type, size_t begin)
{
	struct range *to = is_in_place ? state : fresh;

	return (struct kernel_state){
		.param = state[0].x + begin,
		.m = state[1].x + begin,
		.v = state[2].x + begin,
		.new_param = to[0].x + begin,
		.new_m = to[1].x + begin,
		.new_v = to[2].x + begin,
		.new_rounded = type == KERNEL_F32 ? NULL : rounded.x + begin,
		.rounded_type = type,
	};
}

static void state_fill(void)
{
	for (size_t i = 0; i < 3; i++) {
		range_fill(&state[i]);
		range_fill(&fresh[i]);
		wanted[i] = state[i];
	}
}

static void state_check(const char *isa, const char *what, bool is_in_place)
{
	const struct range *got = is_in_place ? state : fresh;

	check_equal(isa, what, got[0].x, wanted[0].x);
	check_equal(isa, what, got[1].x, wanted[1].x);
	check_equal(isa, what, got[2].x, wanted[2].x);
	for (size_t i = 0; i < 3; i++)
		range_check_guards(&got[i]);
}

/* Ends of calls that together are [0, N): whole, odd cuts, single lines. */
static const size_t cuts[][6] = {
	{N},
	{16, 48, 1072, 2096, 4112, N},
	{1008, 1040, 3088, 3104, 3120, N},
};

static void check_adam(const struct kernels *k)
{
	static const struct kernel_adam steps[] = {
		{0.99999f, 0.1f, 0.999f, 0.001f, 0.0316f, 1e-8f, -0.01f, true},
		{1, 0.1f, 0.95f, 0.05f, 0.7f, 1e-8f, -1e-4f, true},
		{0.98f, 0.75f, 0.999f, 0.001f, 1, 1e-6f, -1e-3f, true},
		{0.01f, 0.1f, 0.999f, 0.001f, 0.0447f, 1e-8f, -0.001f, false},
		{0, 0.5f, 0.999f, 0.001f, 0.9f, 0, -0.001f, false},
	};

	for (size_t step = 0; step < sizeof(steps) / sizeof(*steps); step++)
		for (size_t count = 0; count < N_COUNTS; count++)
			for (size_t cut = 0; cut < sizeof(cuts) / sizeof(*cuts); cut++) {
				uint32_t n = rank_counts[count];
				bool is_in_place = (count + cut) % 2, is_weighted = (step + cut) % 2;
				enum kernel_type type = (step + count + cut) % 3;
				enum kernel_type to = (step + count * 2) % 3;
				size_t begin = 0;
				char what[64];

				state_fill();
				rounded_fill();
				grads_fill(n, type);
				for (size_t i = 0; i < N; i++) {
					struct kernel_grads g = grads_at(n, type, is_weighted, 0);

					reference_adam(&steps[step], reference_sum(&g, i),
						       &wanted[0].x[i], &wanted[1].x[i],
						       &wanted[2].x[i]);
				}
				for (size_t call = 0; begin < N; call++) {
					struct kernel_grads g = grads_at(n, type, is_weighted,
									 begin);
					struct kernel_state s = state_at(is_in_place, to, begin);

					k->adam(&steps[step], &g, &s, cuts[cut][call] - begin);
					begin = cuts[cut][call];
				}
				snprintf(what, sizeof(what),
					 "step %zu, %u ranks, cut %zu, types %d, %d", step, n, cut,
					 type, to);
				state_check(k->isa, what, is_in_place);
				check_rounded(k->isa, what, (is_in_place ? state : fresh)[0].x, to);
			}
}

static void test_adam_has_the_bits_of_the_formula(void **arg)
{
	(void)arg;
	for_each_isa(check_adam);
}

static void check_sgd(const struct kernels *k)
{
	static const struct kernel_sgd steps[] = {
		{0, 0, -0.1f, false, false},
		{0.01f, 0, -0.1f, false, false},
		{0, 0.9f, -0.01f, false, true},
		{0.01f, 0.9f, -0.01f, true, true},
	};

	for (size_t step = 0; step < sizeof(steps) / sizeof(*steps); step++)
		for (size_t count = 0; count < N_COUNTS; count++)
			for (size_t cut = 0; cut < sizeof(cuts) / sizeof(*cuts); cut++) {
				uint32_t n = rank_counts[count];
				bool is_in_place = (count + cut) % 2, is_weighted = (step + cut) % 2;
				enum kernel_type type = (step + count + cut) % 3;
				enum kernel_type to = (step + count * 2) % 3;
				size_t begin = 0;
				char what[64];

				state_fill();
				/* Moments that SGD lacks stay as they are. */
				memcpy(fresh[2].x, state[2].x, sizeof(fresh[2].x));
				if (!steps[step].has_momentum)
					memcpy(fresh[1].x, state[1].x, sizeof(fresh[1].x));
				rounded_fill();
				grads_fill(n, type);
				for (size_t i = 0; i < N; i++) {
					struct kernel_grads g = grads_at(n, type, is_weighted, 0);

					reference_sgd(&steps[step], reference_sum(&g, i),
						      &wanted[0].x[i], &wanted[1].x[i]);
				}
				for (size_t call = 0; begin < N; call++) {
					struct kernel_grads g = grads_at(n, type, is_weighted,
									 begin);
					struct kernel_state s = state_at(is_in_place, to, begin);

					s.v = s.new_v = NULL;
					if (!steps[step].has_momentum)
						s.m = s.new_m = NULL;
					k->sgd(&steps[step], &g, &s, cuts[cut][call] - begin);
					begin = cuts[cut][call];
				}
				snprintf(what, sizeof(what),
					 "step %zu, %u ranks, cut %zu, types %d, %d", step, n, cut,
					 type, to);
				state_check(k->isa, what, is_in_place);
				check_rounded(k->isa, what, (is_in_place ? state : fresh)[0].x, to);
			}
}

static void test_sgd_has_the_bits_of_the_formula(void **arg)
{
	(void)arg;
	for_each_isa(check_sgd);
}

/*
 * Products that end beyond the digits of a double, next to the middle of two floats: a sum that is first rounded to
 * double, to nearest, is wrong for half of them. SGD without momentum is fma(gradient, -lr, parameter).
 */
static void check_fma(const struct kernels *k)
{
	uint32_t n_hard = 0;

	for (uint32_t j = 1; j < 200; j++) {
		struct kernel_sgd sgd = {.minus_lr = 1 - (float)j * 0x1p-23f};
		struct kernel_grads g = grads_at(1, KERNEL_F32, false, 0);

		state_fill();
		for (size_t i = 0; i < N; i++) {
			int exponent = (int)(random_u32() % 200) - 100;
			float sign = random_u32() % 2 ? 1 : -1;

			if (i % 20 == 0)
				exponent = -149 + (int)(random_u32() % 48); /* denormal sums */
			grads[0].x[i] = ldexpf(1 + (float)j * 0x1p-23f, exponent) * sign;
			state[0].x[i] = ldexpf((float)(random_u32() >> 8 | 1 << 23), exponent + 1);
			wanted[0].x[i] = fmaf(grads[0].x[i], sgd.minus_lr, state[0].x[i]);
			n_hard += (float)((double)grads[0].x[i] * (double)sgd.minus_lr +
					  (double)state[0].x[i]) != wanted[0].x[i];
		}
		memcpy(wanted[1].x, fresh[1].x, sizeof(wanted[1].x));
		memcpy(wanted[2].x, fresh[2].x, sizeof(wanted[2].x));
		k->sgd(&sgd, &g,
		       &(struct kernel_state){.param = state[0].x, .new_param = fresh[0].x}, N);
		state_check(k->isa, "fma", false);
	}
	assert_true(n_hard > 100000);
}

static void test_a_fused_operation_rounds_once(void **arg)
{
	(void)arg;
	for_each_isa(check_fma);
}

/* --- Reductions ---------------------------------------------------------------------------------- */

static void check_sum(const struct kernels *k)
{
	for (size_t count = 0; count < N_COUNTS; count++)
		for (uint32_t mode = 0; mode < 24; mode++) {
			uint32_t n = rank_counts[count];
			bool is_in_place = mode & 1, is_weighted = mode & 2, is_streamed = mode & 4;
			/* Sums in place of their inputs are of floats. */
			enum kernel_type type = is_in_place ? KERNEL_F32 : mode / 8;
			struct range *to = is_in_place ? grads : outs;
			const size_t *ends = cuts[(n + mode) % 3];
			size_t begin = 0;

			grads_fill(n, type);
			for (uint32_t rank = 0; rank < n; rank++)
				range_fill(&outs[rank]);
			for (size_t i = 0; i < N; i++) {
				struct kernel_grads g = grads_at(n, type, is_weighted, 0);

				wanted[0].x[i] = reference_sum(&g, i);
			}
			for (size_t call = 0; begin < N; call++) {
				struct kernel_grads g = grads_at(n, type, is_weighted, begin);
				float *tos[N_RANKS];

				for (uint32_t rank = 0; rank < n; rank++)
					tos[rank] = to[rank].x + begin;
				k->sum(tos, n, &g, ends[call] - begin, is_streamed);
				begin = ends[call];
			}
			kernels_fence();
			for (uint32_t rank = 0; rank < n; rank++) {
				check_equal(k->isa, "sum", to[rank].x, wanted[0].x);
				range_check_guards(&to[rank]);
			}
		}
}

static void test_a_sum_is_in_the_order_of_ranks(void **arg)
{
	(void)arg;
	for_each_isa(check_sum);
}

#define N_BF16 65536
#define N_BF16_RANKS 5

static uint16_t bf16s[N_BF16_RANKS][N_BF16 + 32] __attribute__((aligned(64)));
static uint16_t bf16_outs[N_BF16_RANKS][N_BF16 + 32] __attribute__((aligned(64)));

static float bf16_value(uint16_t x)
{
	return reference_widen(x, KERNEL_BF16);
}

static bool bf16_equal(uint16_t a, uint16_t b)
{
	return a == b || (isnan(bf16_value(a)) && isnan(bf16_value(b)));
}

static void bf16_check(const struct kernels *k, uint32_t n, bool is_in_place, bool is_streamed)
{
	static uint16_t want[N_BF16];
	uint16_t(*to)[N_BF16 + 32] = is_in_place ? bf16s : bf16_outs;
	const uint16_t *from[N_BF16_RANKS];
	uint16_t *tos[N_BF16_RANKS];

	for (uint32_t rank = 0; rank < n; rank++) {
		from[rank] = bf16s[rank];
		tos[rank] = to[rank];
		memset(&to[rank][N_BF16], 0x5a, 64);
	}
	for (size_t i = 0; i < N_BF16; i++) {
		float sum = bf16_value(bf16s[0][i]);

		for (uint32_t rank = 1; rank < n; rank++)
			sum += bf16_value(bf16s[rank][i]);
		want[i] = reference_round(sum, KERNEL_BF16);
	}
	k->sum_bf16(tos, n, from, n, N_BF16, is_streamed);
	kernels_fence();
	for (uint32_t rank = 0; rank < n; rank++) {
		for (size_t i = 0; i < N_BF16; i++)
			if (!bf16_equal(to[rank][i], want[i]))
				fail_msg("%s, %u ranks, element %zu: %04x, not %04x", k->isa, n, i,
					 to[rank][i], want[i]);
		for (size_t i = N_BF16; i < N_BF16 + 32; i++)
			assert_int_equal(to[rank][i], 0x5a5a);
	}
}

static void check_bf16(const struct kernels *k)
{
	/* All values alone, then with others, which make ties, overflows and new NaN. */
	for (uint32_t n = 1; n <= N_BF16_RANKS; n++)
		for (uint32_t turn = 0; turn < 32; turn++) {
			for (size_t i = 0; i < N_BF16; i++) {
				bf16s[0][i] = (uint16_t)i;
				for (uint32_t rank = 1; rank < n; rank++)
					bf16s[rank][i] = turn < 16 ? (uint16_t)(i - (turn << 7) - 1)
								   : (uint16_t)random_u32();
			}
			bf16_check(k, n, turn % 2, turn & 2);
		}
}

static void test_sums_of_bf16_round_to_nearest_even(void **arg)
{
	(void)arg;
	for_each_isa(check_bf16);
}

static void check_squares(const struct kernels *k)
{
	range_fill(&grads[0]);
	for (size_t i = 0; i < N; i++)
		if (!isfinite(grads[0].x[i]))
			grads[0].x[i] = 0x1p60f;
	for (size_t n = 0; n <= N; n += n < 64 ? 16 : 1008) {
		double sums[16] = {0}, want = 0, got = k->squares(grads[0].x, n);

		for (size_t i = 0; i < n; i++)
			sums[i % 16] += (double)grads[0].x[i] * (double)grads[0].x[i];
		for (size_t i = 0; i < 16; i++)
			want += sums[i];
		if (memcmp(&got, &want, sizeof(got)) != 0)
			fail_msg("%s, %zu elements: %a, not %a", k->isa, n, got, want);
	}
	grads[0].x[5] = NAN;
	assert_true(isnan(k->squares(grads[0].x, 16)));
	grads[0].x[5] = INFINITY;
	assert_true(isinf(k->squares(grads[0].x, 16)));
}

static void test_squares_have_one_order(void **arg)
{
	(void)arg;
	for_each_isa(check_squares);
}

static void check_copy(const struct kernels *k)
{
	for (int is_streamed = 0; is_streamed < 2; is_streamed++)
		for (size_t n = 0; n <= N; n += n < 64 ? 16 : 1008) {
			range_fill(&grads[0]);
			range_fill(&outs[0]);
			outs[1] = outs[0];
			k->copy(outs[0].x, grads[0].x, n * sizeof(float), is_streamed);
			kernels_fence();
			assert_memory_equal(outs[0].x, grads[0].x, n * sizeof(float));
			assert_memory_equal(outs[0].x + n, outs[1].x + n, (N - n) * sizeof(float));
			range_check_guards(&outs[0]);
		}
}

static void test_a_copy_is_exact(void **arg)
{
	(void)arg;
	for_each_isa(check_copy);
}

/* --- The choice ---------------------------------------------------------------------------------- */

static void test_the_environment_names_an_instruction_set(void **arg)
{
	const char *named = getenv("WEIGHTD_TRAIN_ISA");

	(void)arg;
	assert_null(kernels_find("x86-64-v9"));
	assert_ptr_equal(kernels_get(), kernels_find(named));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_adam_has_the_bits_of_the_formula),
		cmocka_unit_test(test_sgd_has_the_bits_of_the_formula),
		cmocka_unit_test(test_a_fused_operation_rounds_once),
		cmocka_unit_test(test_a_sum_is_in_the_order_of_ranks),
		cmocka_unit_test(test_sums_of_bf16_round_to_nearest_even),
		cmocka_unit_test(test_squares_have_one_order),
		cmocka_unit_test(test_a_copy_is_exact),
		cmocka_unit_test(test_the_environment_names_an_instruction_set),
	};

	/* kernels_get() chooses once. */
	setenv("WEIGHTD_TRAIN_ISA", "portable", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
