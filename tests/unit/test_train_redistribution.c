/*
 * Redistributions, beside a model that knows neither names nor rules: a change of placement is a matrix that makes the
 * memory of all ranks from the memory of all ranks, and its backward is the matrix transposed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "weightd-train.h"

#define ROUNDS 200
#define RANKS 4
#define ELEMENTS 12
#define MEMORY (RANKS * ELEMENTS)

static unsigned draw(unsigned n)
{
	return (unsigned)(random() % n);
}

/* Ranks with room for all elements each; a shard stands where its elements do. Values are small integers: sums are exact. */
struct world {
	uint32_t n, length;
	uint64_t from_cuts[RANKS + 1], to_cuts[RANKS + 1];
};

typedef double memory_t[MEMORY];

static void draw_cuts(struct world *w, uint64_t *cuts)
{
	cuts[0] = 0;
	cuts[w->n] = w->length;
	for (uint32_t i = 1; i < w->n; i++)
		cuts[i] = cuts[i - 1] + draw((unsigned)(w->length - cuts[i - 1]) + 1);
}

static uint32_t owner(const struct world *w, const uint64_t *cuts, uint32_t element)
{
	uint32_t r = 0;

	while (cuts[r + 1] <= element)
		r++;
	assert_true(r < w->n);
	return r;
}

static double *at(double *memory, uint32_t rank, uint32_t element)
{
	return &memory[rank * ELEMENTS + element];
}

/* The memory of a value in a placement: random summands, or a random value. */
static void draw_memory(const struct world *w, enum weightd_placement p, const uint64_t *cuts,
			double *ret)
{
	memset(ret, 0, sizeof(memory_t));
	for (uint32_t i = 0; i < w->length; i++) {
		double value = (draw(100) - 50.0) * w->n; /* the model divides by n */

		for (uint32_t r = 0; r < w->n; r++) {
			if (p == WEIGHTD_REPLICATE || (p == WEIGHTD_SHARD && owner(w, cuts, i) == r))
				*at(ret, r, i) = value;
			if (p == WEIGHTD_PARTIAL)
				*at(ret, r, i) = draw(100) - 50.0;
		}
	}
}

/* --- The model: matrices ------------------------------------------------------------------------ */

struct matrix {
	double m[MEMORY][MEMORY]; /* to, from */
};

static void set(struct matrix *a, uint32_t to, uint32_t from, uint32_t i)
{
	a->m[to * ELEMENTS + i][from * ELEMENTS + i] = 1;
}

/* Row by row: which memory an element of a rank is made of. */
static void fill_matrix(const struct world *w, enum weightd_placement from,
			enum weightd_placement to, struct matrix *a)
{
	memset(a, 0, sizeof(*a));
	for (uint32_t r = 0; r < w->n; r++)
		for (uint32_t i = 0; i < w->length; i++) {
			if (to == WEIGHTD_SHARD && owner(w, w->to_cuts, i) != r)
				continue;
			if (from == WEIGHTD_SHARD)
				set(a, r, owner(w, w->from_cuts, i), i);
			else if (from == WEIGHTD_REPLICATE || to == WEIGHTD_PARTIAL)
				set(a, r, r, i);
			else
				for (uint32_t k = 0; k < w->n; k++)
					set(a, r, k, i);
		}
}

static void multiply(const struct matrix *a, bool transposed, const double *x, double *ret)
{
	for (size_t i = 0; i < MEMORY; i++) {
		ret[i] = 0;
		for (size_t k = 0; k < MEMORY; k++)
			ret[i] += (transposed ? a->m[k][i] : a->m[i][k]) * x[k];
	}
}

/*
 * Gradient of a loss in the input. A Partial gradient is that of a loss of each rank. A Replicate one of a Replicate value
 * is that of one loss, which all ranks compute: each counts for 1/n of it. A Partial value has one loss, of its sum.
 */
static void model_backward(const struct world *w, enum weightd_placement from,
			   enum weightd_placement to, const struct matrix *a,
			   enum weightd_placement grad, const double *g, double *ret)
{
	memory_t weighted, each;

	for (size_t i = 0; i < MEMORY; i++)
		weighted[i] = grad == WEIGHTD_REPLICATE && to == WEIGHTD_REPLICATE ? g[i] / w->n
										   : g[i];
	multiply(a, true, weighted, each);
	for (uint32_t r = 0; r < w->n; r++)
		for (uint32_t i = 0; i < w->length; i++) {
			*at(ret, r, i) = from == WEIGHTD_REPLICATE ? 0 : *at(each, r, i);
			/* One variable, which all ranks hold. */
			for (uint32_t k = 0; from == WEIGHTD_REPLICATE && k < w->n; k++)
				*at(ret, r, i) += *at(each, k, i);
		}
}

/* --- Operations by their names ------------------------------------------------------------------ */

/* `bytes`: elements that each rank took from another one. */
static void run(const struct world *w, const char *name, const uint64_t *from_cuts,
		const uint64_t *to_cuts, double *x, double *ret, uint64_t *elements)
{
	bool sums = !strcmp(name, "all-reduce") || !strcmp(name, "reduce-scatter");
	bool shards = !strcmp(name, "reduce-scatter") || !strcmp(name, "slice") ||
		      !strcmp(name, "all-to-all");
	bool gathers = !strcmp(name, "all-gather") || !strcmp(name, "all-to-all");

	assert_true(sums || shards || gathers || !strcmp(name, "identity"));
	memset(ret, 0, sizeof(memory_t));
	memset(elements, 0, RANKS * sizeof(*elements));
	for (uint32_t r = 0; r < w->n; r++)
		for (uint32_t i = 0; i < w->length; i++) {
			uint32_t source = gathers ? owner(w, from_cuts, i) : r;

			if (shards && owner(w, to_cuts, i) != r)
				continue;
			for (uint32_t k = 0; k < w->n; k++)
				if (sums || k == source) {
					*at(ret, r, i) += *at(x, k, i);
					elements[r] += k != r;
				}
		}
}

static bool is_gradient(enum weightd_placement of, enum weightd_placement grad)
{
	if (of == WEIGHTD_SHARD)
		return grad == WEIGHTD_SHARD;
	return grad == WEIGHTD_REPLICATE || (of == WEIGHTD_REPLICATE && grad == WEIGHTD_PARTIAL);
}

static bool exists(enum weightd_placement from, enum weightd_placement to)
{
	return to != WEIGHTD_PARTIAL || from == WEIGHTD_PARTIAL;
}

static void check(struct world *w, enum weightd_placement from, enum weightd_placement to,
		  enum weightd_placement grad)
{
	struct weightd_redistribution d = {.size = sizeof(d)};
	static struct matrix a;
	memory_t x, expected, made, g;
	uint64_t elements[RANKS];

	assert_int_equal(weightd_redistribution(from, to, grad, &d), 0);
	assert_int_equal(d.backward_from, grad);
	assert_non_null(d.backward_name);
	fill_matrix(w, from, to, &a);

	draw_memory(w, from, w->from_cuts, x);
	multiply(&a, false, x, expected);
	run(w, d.name, w->from_cuts, w->to_cuts, x, made, elements);
	assert_memory_equal(made, expected, sizeof(made));

	draw_memory(w, grad, w->to_cuts, g);
	memset(expected, 0, sizeof(expected));
	model_backward(w, from, to, &a, grad, g, expected);
	run(w, d.backward_name, w->to_cuts, w->from_cuts, g, made, elements);
	assert_memory_equal(made, expected, sizeof(made));
}

static struct world draw_world(uint32_t n)
{
	struct world w = {.n = n, .length = draw(ELEMENTS + 1)};

	draw_cuts(&w, w.from_cuts);
	draw_cuts(&w, w.to_cuts);
	return w;
}

static void forward_and_backward_are_a_matrix_and_its_transpose(void **state)
{
	unsigned n_checked = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++)
		for (unsigned from = WEIGHTD_REPLICATE; from <= WEIGHTD_PARTIAL; from++)
			for (unsigned to = WEIGHTD_REPLICATE; to <= WEIGHTD_PARTIAL; to++)
				for (unsigned grad = 1; grad <= WEIGHTD_PARTIAL; grad++) {
					struct world w = draw_world(1 + (uint32_t)round % RANKS);

					if (!exists(from, to) || !is_gradient(to, grad))
						continue;
					check(&w, from, to, grad);
					n_checked++;
				}
	assert_int_equal(n_checked, ROUNDS * 10);
}

static void table_of_the_notes(void **state)
{
	static const struct {
		enum weightd_placement from, to, grad;
		const char *name, *backward_name;
		enum weightd_placement backward_to;
	} rows[] = {
		{WEIGHTD_PARTIAL, WEIGHTD_REPLICATE, WEIGHTD_REPLICATE, "all-reduce", "identity",
		 WEIGHTD_REPLICATE},
		{WEIGHTD_REPLICATE, WEIGHTD_REPLICATE, WEIGHTD_PARTIAL, "identity", "all-reduce",
		 WEIGHTD_REPLICATE},
		{WEIGHTD_PARTIAL, WEIGHTD_SHARD, WEIGHTD_SHARD, "reduce-scatter", "all-gather",
		 WEIGHTD_REPLICATE},
		{WEIGHTD_SHARD, WEIGHTD_REPLICATE, WEIGHTD_PARTIAL, "all-gather", "reduce-scatter",
		 WEIGHTD_SHARD},
		{WEIGHTD_SHARD, WEIGHTD_REPLICATE, WEIGHTD_REPLICATE, "all-gather", "slice",
		 WEIGHTD_SHARD},
		{WEIGHTD_REPLICATE, WEIGHTD_SHARD, WEIGHTD_SHARD, "slice", "all-gather",
		 WEIGHTD_REPLICATE},
		{WEIGHTD_SHARD, WEIGHTD_SHARD, WEIGHTD_SHARD, "all-to-all", "all-to-all",
		 WEIGHTD_SHARD},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct weightd_redistribution d = {.size = sizeof(d)};

		assert_int_equal(weightd_redistribution(rows[i].from, rows[i].to, rows[i].grad, &d),
				 0);
		assert_string_equal(d.name, rows[i].name);
		assert_string_equal(d.backward_name, rows[i].backward_name);
		assert_int_equal(d.backward_to, rows[i].backward_to);
	}
}

static void usual_gradient_exchanges_replicate_and_partial(void **state)
{
	struct weightd_redistribution d = {.size = sizeof(d)};

	(void)state;
	assert_int_equal(weightd_redistribution(WEIGHTD_SHARD, WEIGHTD_REPLICATE, 0, &d), 0);
	assert_int_equal(d.backward_from, WEIGHTD_PARTIAL);
	assert_int_equal(weightd_redistribution(WEIGHTD_PARTIAL, WEIGHTD_SHARD, 0, &d), 0);
	assert_int_equal(d.backward_from, WEIGHTD_SHARD);
	assert_int_equal(weightd_redistribution(WEIGHTD_PARTIAL, WEIGHTD_PARTIAL, 0, &d), 0);
	assert_int_equal(d.backward_from, WEIGHTD_REPLICATE);
}

static void what_there_is_not_is_refused(void **state)
{
	struct weightd_redistribution d = {.size = sizeof(d)}, unset = {0};
	uint64_t n, cuts[] = {0, 5, 4, 10};

	(void)state;
	assert_int_equal(weightd_redistribution(WEIGHTD_SHARD, WEIGHTD_PARTIAL, 0, &d), -EOPNOTSUPP);
	assert_string_equal(weightd_train_error(),
			    "there is no redistribution from Shard to Partial");
	assert_int_equal(weightd_redistribution(WEIGHTD_SHARD, 9, 0, &d), -EOPNOTSUPP);
	assert_int_equal(weightd_redistribution(0, WEIGHTD_SHARD, 0, &d), -EOPNOTSUPP);
	assert_int_equal(weightd_redistribution(WEIGHTD_PARTIAL, WEIGHTD_SHARD, WEIGHTD_PARTIAL, &d),
			 -EOPNOTSUPP);
	assert_string_equal(weightd_train_error(),
			    "the gradient of a value in Shard cannot be Partial");
	assert_int_equal(weightd_redistribution(WEIGHTD_PARTIAL, WEIGHTD_SHARD, 7, &d), -EOPNOTSUPP);
	assert_int_equal(weightd_redistribution(WEIGHTD_PARTIAL, WEIGHTD_SHARD, 0, &unset), -EINVAL);
	assert_int_equal(weightd_redistribution_bytes(WEIGHTD_PARTIAL, WEIGHTD_SHARD, 10, cuts, 3,
						      0, &n),
			 -EINVAL);
	assert_int_equal(weightd_redistribution_bytes(WEIGHTD_PARTIAL, WEIGHTD_SHARD, 10, NULL, 3,
						      0, &n),
			 -EINVAL);
	assert_int_equal(weightd_redistribution_bytes(WEIGHTD_PARTIAL, WEIGHTD_SHARD, 9, NULL, 3, 3,
						      &n),
			 -EINVAL);
	assert_int_equal(weightd_redistribution_bytes(WEIGHTD_SHARD, WEIGHTD_SHARD, 9, NULL, 3, 0,
						      &n),
			 -EOPNOTSUPP);
	assert_int_equal(weightd_redistribution_bytes(WEIGHTD_PARTIAL, WEIGHTD_SHARD,
						      UINT64_MAX - 255, NULL, 256, 0, &n),
			 0);
	assert_int_equal(weightd_redistribution_bytes(WEIGHTD_PARTIAL, WEIGHTD_REPLICATE,
						      UINT64_MAX - 255, NULL, 256, 0, &n),
			 -EINVAL);
}

static void bytes_are_those_that_the_ranks_take_from_each_other(void **state)
{
	static const struct {
		enum weightd_placement from, to;
	} changes[] = {{WEIGHTD_PARTIAL, WEIGHTD_SHARD},
		       {WEIGHTD_SHARD, WEIGHTD_REPLICATE},
		       {WEIGHTD_REPLICATE, WEIGHTD_SHARD},
		       {WEIGHTD_REPLICATE, WEIGHTD_REPLICATE}};

	(void)state;
	for (int round = 0; round < ROUNDS; round++)
		for (size_t c = 0; c < ARRAY_LEN(changes); c++) {
			struct weightd_redistribution d = {.size = sizeof(d)};
			struct world w = draw_world(1 + (uint32_t)round % RANKS);
			uint64_t elements[RANKS], bytes, sum = 0;
			memory_t x, made;

			memcpy(w.to_cuts, w.from_cuts, sizeof(w.to_cuts));
			draw_memory(&w, changes[c].from, w.from_cuts, x);
			assert_int_equal(
				weightd_redistribution(changes[c].from, changes[c].to, 0, &d), 0);
			run(&w, d.name, w.from_cuts, w.to_cuts, x, made, elements);
			for (uint32_t r = 0; r < w.n; r++) {
				assert_int_equal(weightd_redistribution_bytes(changes[c].from,
									      changes[c].to,
									      w.length, w.from_cuts,
									      w.n, r, &bytes),
						 0);
				assert_int_equal(bytes, elements[r]);
				sum += bytes;
			}
			/* S (N - 1) / N each, S (N - 1) in all, however ragged. */
			assert_int_equal(sum, c < 2 ? w.length * (w.n - 1) : 0);
		}
}

/* An all-reduce is a reduce-scatter and an all-gather: 2 S (N - 1) / N. */
static void all_reduce_moves_what_its_halves_move(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 8; n++)
		for (uint32_t rank = 0; rank < n; rank++) {
			uint64_t bytes;

			assert_int_equal(weightd_redistribution_bytes(WEIGHTD_PARTIAL,
								      WEIGHTD_REPLICATE, 840 * n,
								      NULL, n, rank, &bytes),
					 0);
			assert_int_equal(bytes, 2 * 840 * (n - 1));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forward_and_backward_are_a_matrix_and_its_transpose),
		cmocka_unit_test(table_of_the_notes),
		cmocka_unit_test(usual_gradient_exchanges_replicate_and_partial),
		cmocka_unit_test(what_there_is_not_is_refused),
		cmocka_unit_test(bytes_are_those_that_the_ranks_take_from_each_other),
		cmocka_unit_test(all_reduce_moves_what_its_halves_move),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
