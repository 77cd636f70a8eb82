/*
 * Units of zero3: how tensors are dealt to them, their rooms, and what a step asks for.
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
#include <time.h>

#include "tests/unit/train_model.h"

#define ROUNDS 100
#define NODES 3

/* A root with a few parameters of its own, blocks in it, and linear layers in them. */
static void init_nested(struct model *m, uint32_t n_nodes)
{
	static const struct {
		const char *name;
		uint64_t rows;
		uint32_t unit, level;
	} tensors[] = {
		{"embed", 500, 0, 0},   {"norm", 1, 0, 0},      {"0.scale", 16, 1, 1},
		{"0.up", 400, 2, 2},    {"0.up.bias", 1, 2, 2}, {"0.down", 410, 3, 2},
		{"1.scale", 17, 4, 1},  {"1.up", 300, 5, 2},    {"1.down", 310, 6, 2},
		{"2.scale", 150, 7, 1}, {"2.up", 420, 8, 2},    {"2.down", 200, 9, 2},
	};

	model_init(m, 2 * n_nodes, "zero3", WEIGHTD_ADAMW);
	m->options.n_nodes = n_nodes;
	for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
		struct weightd_train_tensor *t = model_add(m, tensors[i].name, WEIGHTD_PARAM,
							   WEIGHTD_F32, tensors[i].rows, 64);

		t->unit = tensors[i].unit;
		t->level = tensors[i].level;
	}
}

/* A plan with units of a random model; where it is to be, with several nodes in each replica. */
static struct weightd_plan *draw_plan(struct model *m, bool has_nodes)
{
	for (;;) {
		model_draw(m);
		if (!strcmp(m->options.strategy, "zero3") && model_is_possible(m)) {
			struct weightd_plan *p = model_plan(m);

			if (!has_nodes || p->n_nodes > mesh_replicas(p))
				return p;
			weightd_plan_free(p);
		}
		model_deinit(m);
	}
}

static uint64_t pages(uint64_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

/* Bytes of a unit of init_nested(), by its tensors. */
static uint64_t size_of(const struct model *m, uint32_t unit)
{
	uint64_t rows = 0;

	for (uint32_t i = 0; i < m->n_tensors; i++)
		rows += m->tensors[i].unit == unit ? m->shapes[i][0] : 0;
	return pages(rows * 64 * 4);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* --- Intervals ---------------------------------------------------------------------------------- */

static void units_are_the_buckets_and_the_whole_range(void **state)
{
	unsigned n_units = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct model m;
		struct weightd_plan *p = draw_plan(&m, false);
		uint64_t end = 0;

		assert_int_equal(weightd_plan_n_units(p), p->n_buckets);
		for (uint32_t i = 0; i < p->n_units; i++) {
			uint32_t bucket = p->n_units - 1 - i;

			assert_int_equal(p->units[i].interval.begin, end);
			end = p->units[i].interval.end;
			assert_memory_equal(&p->units[i].interval, &p->buckets[bucket],
					    sizeof(p->buckets[bucket]));
			assert_int_equal(plan_unit_of_bucket(p, bucket), i);
		}
		assert_int_equal(end, p->n_elements);
		for (uint32_t i = 0; i < p->n_tensors; i++) {
			uint32_t bucket;

			if (!model_has_elements(&m.tensors[i])) {
				assert_int_equal(weightd_plan_bucket(p, i, &bucket), -ENOENT);
				continue;
			}
			assert_int_equal(weightd_plan_bucket(p, i, &bucket), 0);
			assert_int_equal(plan_unit_of_bucket(p, bucket), m.tensors[i].unit);
			assert_int_equal(p->units[m.tensors[i].unit].level, m.tensors[i].level);
		}
		n_units += p->n_units;
		weightd_plan_free(p);
		model_deinit(&m);
	}
	assert_true(n_units > 4 * ROUNDS);
}

static void other_strategies_have_no_units(void **state)
{
	static const char *const strategies[] = {"shared", "zero1", "zero2", "replicated"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++) {
		struct weightd_train_tensor t = {.size = sizeof(t)};
		struct weightd_plan *p;
		struct model m;

		init_nested(&m, NODES);
		m.options.strategy = strategies[i];
		m.tensors[0].unit = 77;
		p = model_plan(&m);
		assert_int_equal(weightd_plan_n_units(p), 0);
		assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED), 0);
		assert_int_equal(weightd_plan_tensor(p, 0, &t), 0);
		assert_int_equal(t.unit, 0);
		assert_int_equal(p->n_asked, 0);
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

/* F-4: a unit is cut between nodes at multiples of a block, as evenly as blocks allow, and nothing is added to it. */
static void nodes_have_as_much_of_a_unit_but_for_a_block(void **state)
{
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_nested(&m, NODES);
	p = model_plan(&m);
	for (uint32_t u = 0; u < p->n_units; u++) {
		struct plan_interval unit = p->units[u].interval;
		uint64_t total = 0;

		for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
			uint64_t begin = plan_owned(p, rank, unit).begin, most = 0,
				 least = UINT64_MAX;

			for (uint32_t node = 0; node < NODES; node++) {
				const struct plan_piece *piece = plan_piece_of(
					plan_pieces(p, node, rank), p->n_units - 1 - u);
				uint64_t n = piece ? piece->interval.end - piece->interval.begin : 0;

				assert_int_equal(piece ? (piece->interval.begin - begin) % PLAN_CUT
						       : 0,
						 0);
				most = larger(most, n);
				least = n < least ? n : least;
				total += n;
			}
			assert_true(most - least <= PLAN_CUT);
		}
		assert_int_equal(total, unit.end - unit.begin);
	}
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Rooms -------------------------------------------------------------------------------------- */

/* Rooms of a job follow each other, and each has room for all of its units. */
static void check_rooms(const struct weightd_plan *p)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < p->n_rooms; i++) {
		assert_int_equal(p->rooms[i].offset, end);
		assert_int_equal(end % PLAN_PAGE, 0);
		end += p->rooms[i].size;
	}
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED), end);
	for (uint32_t i = 0; i < p->n_units; i++) {
		const struct plan_unit *u = &p->units[i];
		uint64_t size = (u->interval.end - u->interval.begin) *
				plan_element_size(p, WEIGHTD_KIND_PARAM);

		assert_true(u->room < p->n_rooms && size <= p->rooms[u->room].size);
		assert_int_equal(u->level, p->rooms[u->room].level);
		/* While it is open, the next one, and the one before, can be fetched. */
		for (uint32_t k = i + 1; k < p->n_units && !p->without_prefetch; k++)
			if (p->units[k].level == u->level) {
				assert_int_not_equal(p->units[k].room, u->room);
				break;
			}
	}
}

static void each_level_has_two_rooms(void **state)
{
	struct weightd_plan *p;
	struct model m;
	uint64_t size;

	(void)state;
	init_nested(&m, NODES);
	p = model_plan(&m);
	check_rooms(p);
	assert_int_equal(p->n_rooms, 5);
	/* The root is alone; every other unit of a level is in one room. */
	size = size_of(&m, 0) + larger(size_of(&m, 1), size_of(&m, 7)) + size_of(&m, 4);
	size += larger(size_of(&m, 2), larger(size_of(&m, 5), size_of(&m, 8)));
	size += larger(size_of(&m, 3), larger(size_of(&m, 6), size_of(&m, 9)));
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED), size);
	weightd_plan_free(p);

	m.options.without_prefetch = true;
	p = model_plan(&m);
	check_rooms(p);
	assert_int_equal(p->n_rooms, 3);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED),
			 size_of(&m, 0) + size_of(&m, 7) + size_of(&m, 8));
	weightd_plan_free(p);
	model_deinit(&m);
}

static void units_that_stay_have_a_room_each(void **state)
{
	struct weightd_plan *p;
	struct model m;
	uint64_t size = 0;

	(void)state;
	init_nested(&m, NODES);
	m.options.keeps_units = true;
	for (uint32_t u = 0; u < 10; u++)
		size += size_of(&m, u);
	for (unsigned without_prefetch = 0; without_prefetch < 2; without_prefetch++) {
		m.options.without_prefetch = without_prefetch;
		p = model_plan(&m);
		check_rooms(p);
		assert_int_equal(p->n_rooms, 10);
		assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED), size);
		for (uint32_t u = 0; u < p->n_units; u++)
			assert_false(plan_is_fetched_again(p, u));
		weightd_plan_free(p);
	}
	model_deinit(&m);
}

/* F-2: alike units; the whole model as one. */
static void gathered_is_two_units_or_one_or_all(void **state)
{
	uint64_t unit = pages(250 * 64 * 4), gathered[3];

	(void)state;
	for (unsigned round = 0; round < ARRAY_LEN(gathered); round++) {
		struct weightd_plan *p;
		struct model m;

		model_init(&m, 4, "zero3", WEIGHTD_ADAMW);
		m.options.n_nodes = 2;
		m.options.without_prefetch = round == 1;
		for (uint32_t i = 0; i < 8; i++) {
			char name[24];

			(void)snprintf(name, sizeof(name), "%u", i);
			model_add(&m, name, WEIGHTD_PARAM, WEIGHTD_F32, 250, 64)->unit = round == 2
												 ? 0
												 : i;
		}
		p = model_plan(&m);
		gathered[round] = weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED);
		assert_int_equal(weightd_plan_n_units(p), round == 2 ? 1 : 8);
		weightd_plan_free(p);
		model_deinit(&m);
	}
	assert_int_equal(gathered[0], 2 * unit);
	assert_int_equal(gathered[1], unit);
	assert_int_equal(gathered[2], pages(8 * 250 * 64 * 4));
}

static void one_node_gathers_nothing(void **state)
{
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_nested(&m, 1);
	m.options.n_copies = 1;
	p = model_plan(&m);
	assert_int_equal(weightd_plan_n_units(p), 10);
	assert_int_equal(p->n_rooms, 0);
	assert_int_equal(p->n_asked, 0);
	assert_int_equal(p->n_exchanges, 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED), 0);
	assert_int_equal(plan_part(p, WEIGHTD_KIND_PARAM)->used, p->n_elements * 4);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Requests of a step ------------------------------------------------------------------------- */

/* Walks forward and backward with the rooms alone, as a caller does that opens every unit, and counts fetches of each. */
static void walk(const struct weightd_plan *p, uint32_t *counts)
{
	uint32_t *in_room = calloc(p->n_rooms, sizeof(*in_room)); /* 1 + the unit */

	assert_non_null(in_room);
	for (uint32_t i = 0; i < 2 * p->n_units; i++) {
		uint32_t u = i < p->n_units ? i : 2 * p->n_units - 1 - i;
		uint32_t *room = &in_room[p->units[u].room];

		counts[u] += *room != 1 + u;
		*room = 1 + u;
	}
	free(in_room);
}

static void backward_fetches_what_was_replaced(void **state)
{
	unsigned n_again = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t counts[TENSORS] = {0}, planned[TENSORS] = {0}, n = 0;
		struct model m;
		struct weightd_plan *p = draw_plan(&m, true);

		check_rooms(p);
		walk(p, counts);
		for (uint32_t i = 0; i < p->n_ops; i++)
			if (p->ops[i].type == PLAN_FETCH)
				planned[plan_unit_of_bucket(p, p->ops[i].bucket)]++;
		for (uint32_t u = 0; u < p->n_units; u++) {
			const struct plan_op *op = plan_fetch(p, u);

			assert_int_equal(planned[u], counts[u]);
			assert_int_equal(counts[u], plan_is_fetched_again(p, u) ? 2 : 1);
			assert_int_equal(op->type, PLAN_FETCH);
			assert_int_equal(op->bucket, p->n_units - 1 - u);
			/* And its SCATTER, and the two between replicas. */
			n += counts[u] + (mesh_replicas(p) > 1 ? 3 : 1);
			n_again += counts[u] - 1;
		}
		assert_int_equal(p->n_asked, n);
		assert_int_equal(p->n_exchanges, n + 2); /* AGREE, DECIDE */
		for (uint32_t b = 0; b < p->n_buckets; b++) {
			const struct plan_op *op = plan_scatter(p, b);

			assert_non_null(op);
			assert_int_equal(op->bucket, b);
			assert_in_range(op->exchange, 1, p->n_asked);
		}
		weightd_plan_free(p);
		model_deinit(&m);
	}
	assert_true(n_again > ROUNDS);
}

/* Z-3: 3 S (N - 1) / N bytes of each rank that is a node, 2 S where units stay; S in PARAM, and in fp32 for the sums. */
static void ranks_that_are_nodes_send_three_times_their_part(void **state)
{
	static const struct {
		enum weightd_dtype dtype;
		bool keeps_units;
		uint64_t per_element;
	} cases[] = {{WEIGHTD_F32, false, 4 + 4 + 4},
		     {WEIGHTD_F32, true, 4 + 4},
		     {WEIGHTD_BF16, false, 2 + 2 + 4}};

	(void)state;
	for (size_t c = 0; c < ARRAY_LEN(cases); c++)
		for (uint32_t n = 2; n <= 4; n++) {
			uint64_t sent = 0, fetched_once = 0;
			uint32_t size = cases[c].dtype == WEIGHTD_F32 ? 4 : 2;
			struct weightd_plan *p;
			struct model m;

			model_init(&m, n, "zero3", WEIGHTD_ADAMW);
			m.options.n_nodes = n;
			m.options.keeps_units = cases[c].keeps_units;
			for (uint32_t i = 0; i < 12; i++) {
				char name[24];

				(void)snprintf(name, sizeof(name), "%u", i);
				model_add(&m, name, WEIGHTD_PARAM, cases[c].dtype, 33 + i, 61)->unit =
					i;
			}
			p = model_plan(&m);
			for (uint32_t rank = 0; rank < n; rank++) {
				struct weightd_traffic t = {.size = sizeof(t)};

				assert_int_equal(plan_exchange(p, p->n_asked + 1)->type, PLAN_AGREE);
				assert_int_equal(weightd_plan_traffic(p, rank, &t), 0);
				assert_int_equal(t.read, 0);
				assert_int_equal(t.written, 0);
				/* 544 bytes of a summary, a weight, 12 bits; a norm. */
				sent += t.sent - (n - 1) * (576 + 8);
			}
			/* Backward finds the last two units where they were. */
			if (!cases[c].keeps_units)
				fetched_once = (p->n_elements - p->units[10].interval.begin) * size;
			assert_int_equal(sent, (n - 1) * (p->n_elements * cases[c].per_element -
							  fetched_once));
			weightd_plan_free(p);
			model_deinit(&m);
		}
}

/* --- Bad input ---------------------------------------------------------------------------------- */

static void bad_first(struct model *m)
{
	for (uint32_t i = 0; i < m->n_tensors; i++)
		m->tensors[i].unit++;
}

static void bad_gap(struct model *m)
{
	m->tensors[6].unit = 5;
}

static void bad_order(struct model *m)
{
	m->tensors[4].unit = 1;
}

static void bad_level(struct model *m)
{
	m->tensors[4].level = 1;
}

static void bad_deep(struct model *m)
{
	m->tensors[2].level = WEIGHTD_LEVELS_MAX;
}

static void bad_copies(struct model *m)
{
	m->options.n_copies = 2;
}

static void bad_form(struct model *m)
{
	m->options.form = WEIGHTD_STEP_FUSED;
}

static void bad_average(struct model *m)
{
	m->options.sync_every = 4;
}

static void bad_staleness(struct model *m)
{
	m->options.staleness = 1;
}

static void bad_keeps_units(struct model *m)
{
	m->options.strategy = "zero2";
	m->options.keeps_units = true;
}

static void bad_prefetch(struct model *m)
{
	m->options.strategy = "shared";
	m->options.without_prefetch = true;
}

static void bad_units_are_refused_with_a_reason(void **state)
{
	static const struct {
		void (*change)(struct model *m);
		const char *sentence;
	} cases[] = {
		{bad_first,
		 "'embed' is in unit 1, where unit 0 is next; units count from 0 on, and the "
		 "tensors of one follow each other"},
		{bad_gap, "'1.scale' is in unit 5, where unit 4 is next"},
		{bad_order, "'0.up.bias' is in unit 1, where unit 3 is next"},
		{bad_level,
		 "'0.up.bias' has level 1, and its unit 2 has level 2; those of a unit have "
		 "one level"},
		{bad_deep, "'0.scale' has level 8; units are nested in 7 others at most"},
		{bad_copies,
		 "with the strategy 'zero3' each node has a part of the parameters, and no "
		 "copy; n_copies cannot be 2"},
		{bad_form, "the strategy 'zero3' has no fused step; use the form 'two-phase'"},
		{bad_average, "sync_every needs the strategy 'shared'"},
		{bad_staleness, "the strategy 'zero3' has no staleness; 'shared' has"},
		{bad_keeps_units, "keeps_units is for the strategy 'zero3', and this one is 'zero2'"},
		{bad_prefetch,
		 "without_prefetch is for the strategy 'zero3', and this one is 'shared'"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *p = NULL;
		struct model m;

		init_nested(&m, NODES);
		cases[i].change(&m);
		assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &m.options, &p), -EINVAL);
		if (strncmp(weightd_train_error(), cases[i].sentence, strlen(cases[i].sentence)))
			fail_msg("'%s' is not '%s'", weightd_train_error(), cases[i].sentence);
		assert_null(p);
		model_deinit(&m);
	}
}

static void set_unit(struct model *m)
{
	for (uint32_t i = 4; i < m->n_tensors; i++)
		m->tensors[i].unit++;
}

static void set_level(struct model *m)
{
	m->tensors[2].level = 2;
}

static void set_keeps_units(struct model *m)
{
	m->options.keeps_units = true;
}

static void set_without_prefetch(struct model *m)
{
	m->options.without_prefetch = true;
}

static void differences_are_named(void **state)
{
	static const struct {
		void (*change)(struct model *m);
		const char *sentence;
	} cases[] = {
		{set_unit,
		 "this rank's model has '0.up.bias' in unit 3 of level 2, the job's in unit 2 "
		 "of level 2"},
		{set_level,
		 "this rank's model has '0.scale' in unit 1 of level 2, the job's in unit 1 "
		 "of level 1"},
		{set_keeps_units,
		 "this rank's plan is with units that stay (keeps_units), the job's is "
		 "without"},
		{set_without_prefetch,
		 "this rank's plan is without prefetch of units, the job's is with"},
	};
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_nested(&m, NODES);
	p = model_plan(&m);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *other;
		char difference[256];
		struct model changed;

		init_nested(&changed, NODES);
		cases[i].change(&changed);
		other = model_plan(&changed);
		assert_int_equal(weightd_plan_compare(other, p, difference, sizeof(difference)), 1);
		assert_string_equal(difference, cases[i].sentence);
		weightd_plan_free(other);
		model_deinit(&changed);
	}
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Limits ------------------------------------------------------------------------------------- */

static struct weightd_train_tensor *make_units(uint32_t n, char (*names)[16])
{
	static const uint64_t one = 1;
	struct weightd_train_tensor *tensors = calloc(n, sizeof(*tensors));

	assert_true(tensors && names);
	for (uint32_t i = 0; i < n; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%u", i);
		tensors[i] = (struct weightd_train_tensor){.size = sizeof(*tensors),
							   .name = names[i],
							   .shape = &one,
							   .n_dims = 1,
							   .dtype = WEIGHTD_F32,
							   .role = WEIGHTD_PARAM,
							   .unit = i};
	}
	return tensors;
}

/* The description of a job is a rank's, and other processes read it: it must not keep them busy. */
static void units_have_a_limit_and_take_no_time(void **state)
{
	enum {
		N = 150000,
		SECONDS_MAX = 15
	};
	char(*names)[16] = calloc(N, sizeof(*names));
	struct weightd_train_tensor *tensors = make_units(N, names);
	struct weightd_plan *p = NULL;
	clock_t began = clock();
	struct model m;

	(void)state;
	model_init(&m, WEIGHTD_RANKS_MAX, "zero3", WEIGHTD_ADAMW);
	m.options.n_nodes = WEIGHTD_NODES_MAX;
	m.options.keeps_units = true;
	assert_int_equal(weightd_plan_new(tensors, N, &m.options, &p), -EINVAL);
	assert_string_equal(weightd_train_error(), "'16384' begins unit 16384, and a plan has 16384 "
						   "units at most: give larger ones");
	assert_int_equal(weightd_plan_new(tensors, PLAN_BUCKETS_MAX, &m.options, &p), 0);
	assert_int_equal(weightd_plan_n_units(p), PLAN_BUCKETS_MAX);
	assert_int_equal(p->n_rooms, PLAN_BUCKETS_MAX);
	assert_in_range((clock() - began) / CLOCKS_PER_SEC, 0, SECONDS_MAX);
	weightd_plan_free(p);
	model_deinit(&m);
	free(tensors);
	free(names);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(units_are_the_buckets_and_the_whole_range),
		cmocka_unit_test(other_strategies_have_no_units),
		cmocka_unit_test(nodes_have_as_much_of_a_unit_but_for_a_block),
		cmocka_unit_test(each_level_has_two_rooms),
		cmocka_unit_test(units_that_stay_have_a_room_each),
		cmocka_unit_test(gathered_is_two_units_or_one_or_all),
		cmocka_unit_test(one_node_gathers_nothing),
		cmocka_unit_test(backward_fetches_what_was_replaced),
		cmocka_unit_test(ranks_that_are_nodes_send_three_times_their_part),
		cmocka_unit_test(bad_units_are_refused_with_a_reason),
		cmocka_unit_test(differences_are_named),
		cmocka_unit_test(units_have_a_limit_and_take_no_time),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
