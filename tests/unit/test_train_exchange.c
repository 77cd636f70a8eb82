/*
 * Tests that ranks of several nodes leave the bits of a plain loop. Each node is a job of its own; the ranks are children of
 * the test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <sys/user.h>

#include "tests/unit/train_node_runs.h"

/* --- Curves ------------------------------------------------------------------------------------------- */

static const struct setup kinds[] = {
	{.strategy = "shared"},
	{.strategy = "zero1"},
	{.strategy = "replicated"},
	{.strategy = "shared", .overlap = true, .says_ready = true},
	{.strategy = "replicated", .overlap = true, .says_ready = true},
	{.strategy = "shared", .is_weighted = true},
	{.strategy = "zero1", .is_weighted = true, .overlap = true, .says_ready = true},
	{.strategy = "shared", .max_norm = 0.5},
	{.strategy = "replicated", .max_norm = 0.5, .nan_step = 5},
	{.strategy = "shared", .nan_step = 7, .overlap = true, .says_ready = true},
	{.strategy = "shared", .has_unused = true},
	{.strategy = "zero1", .has_unused = true, .overlap = true, .says_ready = true},
	{.strategy = "shared", .dtype = WEIGHTD_BF16, .grad_dtype = WEIGHTD_F32},
	{.strategy = "replicated", .dtype = WEIGHTD_BF16},
	{.strategy = "shared", .dtype = WEIGHTD_F16, .init_scale = 262144, .overflow_step = 6},
	{.strategy = "zero1",
	 .dtype = WEIGHTD_F16,
	 .init_scale = 262144,
	 .overlap = true,
	 .says_ready = true},
};

static void test_nodes_leave_the_bits_of_a_plain_loop(void **state)
{
	(void)state;
	has_pairs = true;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
			struct setup setup = kind_in_shape(&kinds[k], &shapes[i]);

			if (is_some_pair(i, k, ranks_of(&setup) > 1 ? 2 : 3))
				expect_bits(&setup);
		}
}

/* The mean over nodes of their values, in the order of nodes. */
static void oracles_average(struct oracle *nodes, uint32_t n)
{
	for (uint64_t i = 0; i < nodes[0].p->n_elements; i++) {
		float sum = nodes[0].value[i];

		for (uint32_t node = 1; node < n; node++)
			sum += nodes[node].value[i];
		for (uint32_t node = 0; node < n; node++)
			nodes[node].value[i] = sum * (1 / (float)n);
	}
	for (uint32_t node = 0; node < n; node++)
		oracle_round(&nodes[node]);
}

/* Each node takes steps of its own; moments are those of the last one. */
static struct result oracle_run_local(const struct setup *setup)
{
	struct setup local = *setup;
	struct oracle nodes[NODES_MAX];

	local.n_ranks = ranks_of(setup);
	local.n_nodes = 0;
	local.sync_every = 0;
	for (uint32_t node = 0; node < setup->n_nodes; node++) {
		oracle_init(&nodes[node], &local);
		nodes[node].first = node * local.n_ranks;
		oracle_round(&nodes[node]);
	}
	for (uint64_t step = 1; step <= N_STEPS; step++) {
		for (uint32_t node = 0; node < setup->n_nodes; node++)
			(void)oracle_step(&nodes[node], step);
		if (step % setup->sync_every == 0)
			oracles_average(nodes, setup->n_nodes);
	}
	for (uint32_t node = 0; node + 1 < setup->n_nodes; node++) {
		struct result other = oracle_end(&nodes[node]);

		result_free(&other);
	}
	return oracle_end(&nodes[setup->n_nodes - 1]);
}

static const struct setup local_kinds[] = {
	{.strategy = "shared", .sync_every = 4},
	{.strategy = "shared", .sync_every = 5, .form = WEIGHTD_STEP_TWO_PHASE, .max_norm = 0.5},
	{.strategy = "shared", .sync_every = 2, .nan_step = 6, .is_weighted = true},
	{.strategy = "shared", .sync_every = 1, .dtype = WEIGHTD_BF16},
};

static void expect_local(const struct setup *setup)
{
	struct union_result ours = nodes_run(setup);
	struct result plain = oracle_run_local(setup);

	expect_result(setup, &ours, &plain);
	union_free(&ours);
	result_free(&plain);
}

static void test_nodes_average_parameters_after_steps_of_their_own(void **state)
{
	(void)state;
	has_pairs = true;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (size_t k = 0; k < ARRAY_LEN(local_kinds); k++) {
			struct setup setup = kind_in_shape(&local_kinds[k], &shapes[i]);

			if (is_some_pair(i, k, 2))
				expect_local(&setup);
		}
}

static void test_gloo_leaves_the_same_bits(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct setup setup = kind_in_shape(&kinds[i], &shapes[i]);

		has_pairs = false;
		expect_bits(&setup);
	}
}

/* --- Kills -------------------------------------------------------------------------------------------- */

static void test_killed_ranks_and_nodes_leave_the_same_bits(void **state)
{
	(void)state;
	has_pairs = false;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i += 3) {
		struct setup setup = kind_in_shape(&kinds[i], &shapes[i % ARRAY_LEN(shapes)]);
		struct union_result killed = run_killed(&setup, kills_wanted(4), (unsigned)i);

		expect_plain(&setup, &killed);
		union_free(&killed);
	}
}

static void test_kills_between_averages_leave_the_same_bits(void **state)
{
	struct setup setup = kind_in_shape(&local_kinds[0], &shapes[3]);
	struct union_result killed;
	struct result plain = oracle_run_local(&setup);

	(void)state;
	has_pairs = false;
	killed = run_killed(&setup, kills_wanted(6), 1);
	expect_result(&setup, &killed, &plain);
	union_free(&killed);
	result_free(&plain);
}

#define N_INSTRUCTIONS 60000 /* about as many as a step has whose connection is there */

/* Kills a rank at random instructions, in turns of the update of a step and of an opening. */
static struct union_result run_followed(const struct setup *given, unsigned n_kills, unsigned seed)
{
	struct setup setup = *given;
	struct lives l = {.n_done = 0};

	srand(seed);
	nodes_start(&setup);
	setup.stop = seed % 2 ? STOP_BEFORE_OPEN : STOP_BEFORE_UPDATE;
	setup.stop_rank = (uint32_t)rand() % setup.n_ranks;
	for (uint32_t rank = 0; rank < setup.n_ranks; rank++)
		rank_start(&l, &setup, rank);
	while (l.n_kills < n_kills) {
		uint32_t victim = setup.stop_rank;

		if (!rank_follow(l.pids[victim], (uint64_t)rand() % N_INSTRUCTIONS)) {
			rank_end(&l, victim);
			break;
		}
		kill(l.pids[victim], SIGKILL);
		setup.stop = setup.stop == STOP_BEFORE_UPDATE ? STOP_BEFORE_OPEN
							      : STOP_BEFORE_UPDATE;
		if (l.n_kills + 1 == n_kills)
			setup.stop = STOP_NEVER;
		rank_reap(&l, &setup, victim);
	}
	while (l.n_done < setup.n_ranks)
		ranks_wait(&l, &setup, 999999999);
	print_message("%u kills\n", l.n_kills);
	return nodes_stop(&setup);
}

/* Single steps take 30 us each. */
static void test_ranks_killed_at_any_instruction_leave_the_same_bits(void **state)
{
	(void)state;
	has_pairs = false;
	for (size_t i = 0; i < (is_long_form() ? 2 : 1); i++) {
		struct setup setup = kind_in_shape(&kinds[2 * i], &shapes[3 * i]);
		struct union_result killed = run_followed(&setup, kills_wanted(1), (unsigned)i);

		expect_plain(&setup, &killed);
		union_free(&killed);
	}
}

/* --- Replays ------------------------------------------------------------------------------------------ */

/* Has a breakpoint at wait_publish(), which begins with this byte then. The test's own addresses are those of its children. */
#define BREAKPOINT 0xcc

static long breakpoint_set(pid_t pid)
{
	long text = ptrace(PTRACE_PEEKTEXT, pid, (void *)wait_publish, NULL);

	assert_int_equal(ptrace(PTRACE_POKETEXT, pid, (void *)wait_publish,
				(void *)((text & ~0xffl) | BREAKPOINT)),
			 0);
	return text;
}

/* Executes the instruction under the breakpoint, where the process is. */
static void breakpoint_pass(pid_t pid, long text, struct user_regs_struct *regs)
{
	int status;

	regs->rip--;
	assert_int_equal(ptrace(PTRACE_SETREGS, pid, NULL, regs), 0);
	assert_int_equal(ptrace(PTRACE_POKETEXT, pid, (void *)wait_publish, (void *)text), 0);
	assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSTOPPED(status));
	(void)breakpoint_set(pid);
}

/* Follows a rank until it is about to publish a position. */
static void rank_follow_to(pid_t pid, uint64_t position)
{
	struct user_regs_struct regs;
	long text;
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	text = breakpoint_set(pid);
	for (;;) {
		assert_int_equal(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
			fail_msg("position %llx does not come: %x", (unsigned long long)position,
				 (unsigned)status);
		assert_int_equal(ptrace(PTRACE_GETREGS, pid, NULL, &regs), 0);
		if (regs.rdi == (uintptr_t)*rank_line && regs.rsi == position)
			return;
		breakpoint_pass(pid, text, &regs);
	}
}

/* Waits until a rank has completed an exchange. */
static void line_wait(const struct setup *setup, uint32_t rank, uint64_t position)
{
	uint32_t n = ranks_of(setup);
	struct weightd_plan *plan = plan_make(setup);
	struct arena a = {.plan = plan, .layout = control_layout(plan)};

	a.journal = mmap(NULL, a.layout.size, PROT_READ, MAP_SHARED, jobs[rank / n]->fds[0], 0);
	assert_ptr_not_equal(a.journal, MAP_FAILED);
	while (trainer_word(&arena_rank(&a, rank % n)->line) < position)
		(void)usleep(1000);
	(void)munmap(a.journal, a.layout.size);
	weightd_plan_free(plan);
}

#define POSITIONS_MAX 16

/*
 * Kills a rank that has received all of an exchange, and has not published it, once its peer has completed it and is in the
 * next one; then its successors, likewise in later exchanges.
 */
static void expect_replays(const struct setup *given, uint32_t victim, const uint64_t *positions,
			   uint32_t n)
{
	struct setup setup = *given;
	struct lives l = {.n_done = 0};
	struct union_result ours;
	struct result plain = setup.sync_every ? oracle_run_local(&setup) : oracle_run(&setup);

	rank_line = mmap(NULL, sizeof(*rank_line), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(rank_line, MAP_FAILED);
	has_pairs = false;
	nodes_start(&setup);
	setup.stop = STOP_BEFORE_BEGIN;
	setup.stop_rank = victim;
	for (uint32_t rank = 0; rank < setup.n_ranks; rank++)
		rank_start(&l, &setup, rank);
	for (uint32_t i = 0; i < n; i++) {
		rank_follow_to(l.pids[victim], positions[i]);
		line_wait(&setup, (victim + ranks_of(&setup)) % setup.n_ranks, positions[i]);
		kill(l.pids[victim], SIGKILL);
		if (i + 1 == n)
			setup.stop = STOP_NEVER;
		rank_reap(&l, &setup, victim);
	}
	while (l.n_done < setup.n_ranks)
		ranks_wait(&l, &setup, 999999999);
	(void)munmap(rank_line, sizeof(*rank_line));
	rank_line = NULL;
	ours = nodes_stop(&setup);
	expect_result(&setup, &ours, &plain);
	union_free(&ours);
	result_free(&plain);
}

/* Those of the first values, of each exchange of a step, in steps of its own, and of the end; in their order. */
static uint32_t positions_make(const struct setup *setup, uint64_t *ret)
{
	struct weightd_plan *plan = plan_make(setup);
	uint32_t n = 0, n_exchanges = plan->n_exchanges;

	weightd_plan_free(plan);
	assert_in_range(2 * n_exchanges, 1, N_STEPS);
	assert_in_range(n_exchanges + 4, 1, POSITIONS_MAX);
	for (uint32_t point = CONTROL_FETCH; point <= CONTROL_SENT; point++)
		ret[n++] = control_exchange(0, control_values(0, point));
	for (uint32_t index = 1; index <= n_exchanges; index++)
		ret[n++] = control_exchange(2 * index, index);
	ret[n++] = control_exchange(N_STEPS, CONTROL_ENDS);
	return n;
}

static void test_ranks_that_are_ahead_send_each_exchange_again(void **state)
{
	static const struct setup setups[] = {
		{.strategy = "shared", .n_nodes = 2, .n_ranks = 2, .dtype = WEIGHTD_BF16},
		{.strategy = "replicated", .n_nodes = 2, .n_ranks = 4, .is_weighted = true},
		{.strategy = "zero1", .n_nodes = 2, .n_ranks = 4, .has_unused = true},
		{.strategy = "shared", .n_nodes = 2, .n_ranks = 2, .sync_every = 2},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		uint64_t positions[POSITIONS_MAX];
		uint32_t n = positions_make(&setups[i], positions);

		if (is_some_pair(i, 0, 2))
			expect_replays(&setups[i], 0, positions, n);
		if (is_some_pair(i, 1, 2))
			expect_replays(&setups[i], setups[i].n_ranks - 1, positions, n);
	}
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_nodes_leave_the_bits_of_a_plain_loop),
		cmocka_unit_test(test_nodes_average_parameters_after_steps_of_their_own),
		cmocka_unit_test(test_gloo_leaves_the_same_bits),
		cmocka_unit_test(test_killed_ranks_and_nodes_leave_the_same_bits),
		cmocka_unit_test(test_kills_between_averages_leave_the_same_bits),
		cmocka_unit_test(test_ranks_that_are_ahead_send_each_exchange_again),
		cmocka_unit_test(test_ranks_killed_at_any_instruction_leave_the_same_bits),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
