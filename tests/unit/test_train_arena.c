/*
 * The parts of a job as ranks map them. One process is all ranks here: their mappings show each other's writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>

#include "ipc/base/num.h"
#include "libclient/train/engine/arena.h"
#include "tests/unit/train_job.h"

#define N_RANKS 3
#define HUGE_SIZE (2 * MIB)

struct setup {
	const char *strategy;
	enum weightd_step_form form;
	uint32_t staleness, n_copies;
	uint64_t length; /* of the large tensor */
	uint32_t n_ranks; /* of the mesh; 0: N_RANKS */
	uint32_t n_nodes;
};

static struct weightd_plan *plan_make(const struct setup *setup)
{
	const uint64_t small[] = {7}, large[] = {setup->length ? setup->length : 10007},
		       counts[] = {3};
	const struct weightd_train_tensor tensors[] = {
		{.size = sizeof(tensors[0]),
		 .name = "large",
		 .shape = large,
		 .n_dims = 1,
		 .dtype = WEIGHTD_F32,
		 .role = WEIGHTD_PARAM},
		{.size = sizeof(tensors[0]),
		 .name = "small",
		 .shape = small,
		 .n_dims = 1,
		 .dtype = WEIGHTD_F32,
		 .role = WEIGHTD_PARAM},
		{.size = sizeof(tensors[0]),
		 .name = "count",
		 .shape = counts,
		 .n_dims = 1,
		 .dtype = WEIGHTD_I64,
		 .role = WEIGHTD_BUFFER},
	};
	const struct weightd_group group = {
		.size = sizeof(group), .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
	const struct weightd_mesh_dim dim = {"dp", setup->n_ranks ? setup->n_ranks : N_RANKS};
	struct weightd_plan_options options = {
		.size = sizeof(options),
		.strategy = setup->strategy,
		.optimizer = WEIGHTD_ADAMW,
		.groups = &group,
		.n_groups = 1,
		.form = setup->form,
		.staleness = setup->staleness,
		.n_copies = setup->n_copies,
		.n_nodes = setup->n_nodes,
	};
	struct weightd_mesh *mesh;
	struct weightd_plan *plan;

	assert_int_equal(weightd_mesh_new(&dim, 1, &mesh), 0);
	options.mesh = mesh;
	if (weightd_plan_new(tensors, ARRAY_LEN(tensors), &options, &plan) < 0)
		fail_msg("%s", weightd_train_error());
	weightd_mesh_free(mesh);
	return plan;
}

static void open_all(const struct weightd_plan *plan, struct arena *ret)
{
	for (uint32_t i = 0; i < N_RANKS; i++)
		if (arena_open(NULL, plan, TRAIN_JOB_TOKEN, 0, i, &ret[i]) < 0)
			fail_msg("%s", weightd_train_error());
}

static void close_all(struct arena *arenas)
{
	for (uint32_t i = 0; i < N_RANKS; i++)
		arena_close(&arenas[i]);
}

/* Memory of an fp32 plan. */
static float *floats(const void *memory)
{
	return (float *)(uintptr_t)memory;
}

static int write_zero(uint32_t rank, void *data)
{
	(void)rank;
	(void)signal(SIGSEGV, SIG_DFL);
	*(volatile float *)data = 0;
	return 0;
}

static int read_value(uint32_t rank, void *data)
{
	(void)rank;
	(void)signal(SIGSEGV, SIG_DFL);
	return *(volatile float *)data == 5 ? 0 : 1;
}

/* A child does not inherit writable mappings, so that this holds for any address but those that are read-only. */
static bool child_can(int (*access)(uint32_t rank, void *data), const void *address)
{
	return train_job_join(train_job_fork(access, 0, (void *)(uintptr_t)address)) == 0;
}

/* In this process, without a fault. */
static bool is_writable(const void *address)
{
	unsigned long start, end;
	char flags[5];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "re");

	assert_non_null(maps);
	while (!found && fscanf(maps, "%lx-%lx %4s%*[^\n]", &start, &end, flags) == 3)
		found = start <= (uintptr_t)address && (uintptr_t)address < end;
	(void)fclose(maps);
	assert_true(found);
	return flags[1] == 'w';
}

static const struct setup setups[] = {
	{"shared", WEIGHTD_STEP_FUSED, 0, 1, 0, 0, 0},
	{"shared", WEIGHTD_STEP_FUSED, 2, 2, 0, 0, 0},
	{"shared", WEIGHTD_STEP_TWO_PHASE, 0, 1, 0, 0, 0},
	{"zero1", WEIGHTD_STEP_FUSED, 0, 0, 0, 0, 0},
	{"zero1", WEIGHTD_STEP_TWO_PHASE, 0, 0, 0, 0, 0},
	{"replicated", WEIGHTD_STEP_TWO_PHASE, 0, 0, 0, 0, 0},
};

/* --- Mappings ----------------------------------------------------------------------------------- */

/* The alias of each updated element is the element that the ranks of that copy read; nothing else can write it. */
static void check_params(const struct arena *arenas)
{
	const struct weightd_plan *p = arenas[0].plan;
	float value = 1;

	for (uint32_t rank = 0; rank < N_RANKS; rank++) {
		const struct arena *a = &arenas[rank];
		uint64_t begin = a->updated.begin, n = a->updated.end - begin;

		assert_false(is_writable(a->param));
		for (uint32_t copy = 0; copy < p->n_copies; copy++) {
			if (plan_is_replicated(p) && copy != plan_copy(p, rank)) {
				assert_null(a->params[copy]);
				continue;
			}
			floats(a->params[copy])[0] = value;
			floats(a->params[copy])[n - 1] = value + 1;
			for (uint32_t reader = 0; reader < N_RANKS; reader++)
				if (plan_copy(p, reader) == copy) {
					const float *param = floats(arenas[reader].param);

					assert_true(param[begin] == value);
					assert_true(param[begin + n - 1] == value + 1);
				}
			value += 2;
		}
	}
}

static void check_grads(const struct arena *arenas)
{
	uint32_t n_slots = arenas[0].plan->n_slots, n = N_RANKS * n_slots;

	for (uint32_t i = 0; i < n; i++)
		floats(arenas[i / n_slots].grads[i])[i] = (float)(100 + i);
	for (uint32_t rank = 0; rank < N_RANKS; rank++)
		for (uint32_t i = 0; i < n; i++) {
			assert_true(floats(arenas[rank].grads[i])[i] == (float)(100 + i));
			assert_int_equal(is_writable(arenas[rank].grads[i]), i / n_slots == rank);
		}
}

/* Each moment of each rank has memory of its own. */
static void check_moments(const struct arena *arenas)
{
	uint64_t n;

	for (int pass = 0; pass < 2; pass++)
		for (uint32_t rank = 0; rank < N_RANKS; rank++)
			for (uint32_t i = 0; i < arenas[0].plan->n_moments; i++) {
				float *moment = arenas[rank].moments[i],
				      value = (float)(10 * rank + i + 1);

				n = arenas[rank].updated.end - arenas[rank].updated.begin;
				if (pass == 0)
					moment[0] = moment[n - 1] = value;
				assert_true(moment[0] == value && moment[n - 1] == value);
			}
}

static void check_rest(const struct arena *arenas)
{
	const struct weightd_plan *p = arenas[0].plan;

	if (p->form == WEIGHTD_STEP_TWO_PHASE) {
		arenas[0].reduced[p->n_elements - 1] = 3;
		assert_true(arenas[2].reduced[p->n_elements - 1] == 3);
	} else {
		assert_null(arenas[0].reduced);
	}
	for (uint32_t rank = 0; rank < N_RANKS; rank++) {
		assert_true(arenas[rank].buffer_stride >= p->buffer_size);
		memset(arenas[rank].buffers, (int)rank + 1, 2 * arenas[rank].buffer_stride);
	}
	for (uint32_t rank = 0; rank < N_RANKS; rank++)
		assert_int_equal(arenas[rank].buffers[2 * arenas[rank].buffer_stride - 1], rank + 1);
}

static void ranks_map_the_same_memory(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		struct weightd_plan *plan = plan_make(&setups[i]);
		struct arena arenas[N_RANKS];

		train_job_start(N_RANKS);
		open_all(plan, arenas);
		check_params(arenas);
		check_grads(arenas);
		check_moments(arenas);
		check_rest(arenas);
		close_all(arenas);
		train_job_stop();
		weightd_plan_free(plan);
	}
}

static const struct setup two_nodes = {
	.strategy = "shared", .n_copies = 1, .n_ranks = 2 * N_RANKS, .n_nodes = 2};

/* The moments of all ranks of a node are together; RECEIVED is that of all of them. */
static void ranks_of_nodes_map_their_places(void **state)
{
	struct weightd_plan *plan = plan_make(&two_nodes);
	struct arena arenas[N_RANKS];
	const float *all;

	(void)state;
	train_job_start(N_RANKS);
	for (uint32_t i = 0; i < N_RANKS; i++)
		assert_int_equal(arena_open(NULL, plan, TRAIN_JOB_TOKEN, 1, i, &arenas[i]), 0);
	assert_int_equal(plan_part(plan, WEIGHTD_KIND_MOMENTS)->used, 2 * plan->n_state * 4);
	assert_true(plan->n_state <= plan->n_elements / 2 + N_RANKS * PLAN_CUT);
	all = arena_map_all(&arenas[0], WEIGHTD_KIND_MOMENTS, 0);
	for (uint32_t rank = 0; rank < N_RANKS; rank++) {
		const struct arena *a = &arenas[rank];
		struct plan_interval places = plan_places(a->updates);

		assert_ptr_equal(a->updates->pieces, plan_pieces(plan, 1, rank)->pieces);
		assert_true(!rank || places.begin >= plan_places(arenas[rank - 1].updates).end);
		for (uint32_t i = 0; i < plan->n_moments; i++) {
			a->moments[i][0] = (float)(10 * rank + i + 1);
			a->moments[i][places.end - places.begin - 1] = (float)(10 * rank + i + 2);
			assert_true(all[i * plan->n_state + places.begin] ==
				    (float)(10 * rank + i + 1));
			assert_true(all[i * plan->n_state + places.end - 1] ==
				    (float)(10 * rank + i + 2));
		}
		for (uint32_t node = 0; node < plan->n_nodes; node++)
			a->received[node][places.begin] = (float)(10 * rank + node + 1);
		*(float *)arena_element(a, WEIGHTD_KIND_PARAM, a->updated.begin + 3) = 7;
		assert_true(floats(a->param)[a->updated.begin + 3] == 7);
	}
	for (uint32_t rank = 0; rank < N_RANKS; rank++)
		for (uint32_t node = 0; node < plan->n_nodes; node++)
			assert_true(
				arenas[0].received[node][plan_places(arenas[rank].updates).begin] ==
				(float)(10 * rank + node + 1));
	close_all(arenas);
	train_job_stop();
	weightd_plan_free(plan);
}

/* Otherwise the kernel maps a huge page in small ones. */
static void large_mappings_allow_huge_pages(void **state)
{
	const struct setup setup = {"zero1", WEIGHTD_STEP_FUSED, 0, 0, 3 * MIB + 5, 0, 0};
	struct weightd_plan *plan = plan_make(&setup);
	uint64_t stride = plan_part(plan, WEIGHTD_KIND_PARAM)->stride;
	struct arena arenas[N_RANKS];

	(void)state;
	train_job_start(N_RANKS);
	open_all(plan, arenas);
	for (uint32_t rank = 0; rank < N_RANKS; rank++) {
		const struct arena *a = &arenas[rank];
		uint64_t begin = a->updated.begin * sizeof(float);

		assert_int_equal(((uintptr_t)a->param - plan_copy(plan, rank) * stride) % HUGE_SIZE,
				 0);
		for (uint32_t copy = 0; copy < plan->n_copies; copy++)
			assert_int_equal(((uintptr_t)a->params[copy] - copy * stride - begin) %
						 HUGE_SIZE,
					 0);
		for (uint32_t i = 0; i < plan->n_moments; i++)
			assert_int_equal(((uintptr_t)a->moments[i] - i * plan->n_elements * 4 -
					  begin) %
						 HUGE_SIZE,
					 0);
	}
	close_all(arenas);
	train_job_stop();
	weightd_plan_free(plan);
}

static void a_borrowed_arena_is_that_of_the_dead_rank(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		struct weightd_plan *plan = plan_make(&setups[i]);
		struct arena arenas[N_RANKS], borrowed;
		uint32_t copy = plan_copy(plan, 1);

		train_job_start(N_RANKS);
		open_all(plan, arenas);
		assert_int_equal(arena_borrow(&arenas[0], 1, &borrowed), 0);
		assert_int_equal(borrowed.rank, 1);
		assert_int_equal(borrowed.updated.begin, arenas[1].updated.begin);
		floats(borrowed.params[copy])[3] = 8;
		borrowed.moments[1][3] = 9;
		assert_true(floats(arenas[1].params[copy])[3] == 8 && arenas[1].moments[1][3] == 9);
		assert_true(floats(borrowed.param)[borrowed.updated.begin + 3] == 8);
		assert_ptr_equal(arena_rank(&borrowed, 1), arena_rank(&arenas[0], 1));
		arena_borrow_end(&borrowed);
		arenas[0].moments[0][0] = 4; /* its own are still mapped */
		close_all(arenas);
		train_job_stop();
		weightd_plan_free(plan);
	}
}

static void the_first_fill_writes_all_of_a_copy(void **state)
{
	struct weightd_plan *plan = plan_make(&setups[3]);
	struct arena arenas[N_RANKS];

	(void)state;
	train_job_start(N_RANKS);
	open_all(plan, arenas);
	for (uint32_t copy = 0; copy < plan->n_copies; copy++) {
		float *all = arena_map_all(&arenas[0], WEIGHTD_KIND_PARAM, copy);

		assert_non_null(all);
		all[plan->n_elements - 1] = (float)copy;
		arena_unmap_all(&arenas[0], all);
		assert_true(floats(arenas[copy].param)[plan->n_elements - 1] == (float)copy);
	}
	close_all(arenas);
	train_job_stop();
	weightd_plan_free(plan);
}

/* A child that outlives its dead parent could write while the parent's successor does. */
static void a_forked_child_reads_parameters_and_writes_nothing(void **state)
{
	struct weightd_plan *plan = plan_make(&setups[0]);
	struct arena arenas[N_RANKS];

	(void)state;
	train_job_start(N_RANKS);
	open_all(plan, arenas);
	floats(arenas[0].params[0])[0] = 5;
	assert_true(child_can(read_value, arenas[0].param));
	assert_false(child_can(write_zero, arenas[0].param));
	assert_false(child_can(write_zero, arenas[0].params[0]));
	assert_false(child_can(write_zero, arenas[0].grads[0]));
	assert_false(child_can(write_zero, arenas[0].moments[0]));
	assert_false(child_can(write_zero, arenas[0].journal));
	assert_true(floats(arenas[0].param)[0] == 5);
	close_all(arenas);
	train_job_stop();
	weightd_plan_free(plan);
}

/* --- Refusals ----------------------------------------------------------------------------------- */

static void assert_refused(const struct weightd_plan *plan, uint32_t rank, int error,
			   const char *sentence)
{
	struct arena a;

	assert_int_equal(arena_open(NULL, plan, TRAIN_JOB_TOKEN, 0, rank, &a), error);
	if (!strstr(weightd_train_error(), sentence))
		fail_msg("'%s' is not in '%s'", sentence, weightd_train_error());
}

static void ranks_that_do_not_fit_are_refused(void **state)
{
	const struct setup longer = {"shared", WEIGHTD_STEP_FUSED, 0, 1, 10008, 0, 0};
	const struct setup wider = {"shared", WEIGHTD_STEP_FUSED, 0, 1, 0, N_RANKS + 1, 0};
	struct weightd_plan *plan = plan_make(&setups[0]), *other = plan_make(&longer),
			    *mesh = plan_make(&wider);
	struct arena a;

	(void)state;
	train_job_start(N_RANKS);
	assert_refused(mesh, 0, -EPROTOTYPE, "the job has 3 ranks, the mesh of the plan has 4");
	assert_int_equal(train_job->n_parts, 0); /* and has nothing of the wrong rank */
	assert_refused(plan, N_RANKS, -EINVAL, "there is no rank 3");
	assert_int_equal(arena_open(NULL, plan, TRAIN_JOB_TOKEN, 0, 0, &a), 0);
	assert_refused(other, 1, -EPROTOTYPE, "'large'");
	arena_head(&a)->abi++;
	assert_refused(plan, 1, -EPROTOTYPE, "of another release of weightd-train");
	arena_close(&a);
	train_job_stop();
	weightd_plan_free(plan);
	weightd_plan_free(other);
	weightd_plan_free(mesh);
}

/* A rank that was killed between the words of the head leaves it to the next. */
static void a_head_that_is_half_written_is_written_again(void **state)
{
	struct weightd_plan *plan = plan_make(&setups[0]);
	struct arena a;

	(void)state;
	train_job_start(N_RANKS);
	assert_int_equal(arena_open(NULL, plan, TRAIN_JOB_TOKEN, 0, 0, &a), 0);
	assert_int_equal(arena_head(&a)->magic, CONTROL_MAGIC);
	arena_head(&a)->magic = 0;
	arena_head(&a)->n_ranks = 0;
	arena_close(&a);
	assert_int_equal(arena_open(NULL, plan, TRAIN_JOB_TOKEN, 0, 1, &a), 0);
	assert_int_equal(arena_head(&a)->magic, CONTROL_MAGIC);
	assert_int_equal(arena_head(&a)->n_ranks, N_RANKS);
	arena_close(&a);
	train_job_stop();
	weightd_plan_free(plan);
}

/* Ranks of two nodes that open a new job at the same time: the second one sees no head either. */
static void a_job_has_the_node_that_came_first(void **state)
{
	struct weightd_plan *plan = plan_make(&two_nodes);
	struct arena a;

	(void)state;
	train_job_start(N_RANKS);
	assert_int_equal(arena_open(NULL, plan, TRAIN_JOB_TOKEN, 1, 0, &a), 0);
	assert_refused(plan, 1, -EINVAL,
		       "is that of node 1, and rank 1 was started as one of node 0");
	arena_head(&a)->magic = 0;
	assert_refused(plan, 1, -EINVAL,
		       "is that of node 1, and rank 1 was started as one of node 0");
	arena_close(&a);
	train_job_stop();
	weightd_plan_free(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_map_the_same_memory),
		cmocka_unit_test(ranks_of_nodes_map_their_places),
		cmocka_unit_test(large_mappings_allow_huge_pages),
		cmocka_unit_test(a_borrowed_arena_is_that_of_the_dead_rank),
		cmocka_unit_test(the_first_fill_writes_all_of_a_copy),
		cmocka_unit_test(a_forked_child_reads_parameters_and_writes_nothing),
		cmocka_unit_test(ranks_that_do_not_fit_are_refused),
		cmocka_unit_test(a_head_that_is_half_written_is_written_again),
		cmocka_unit_test(a_job_has_the_node_that_came_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
