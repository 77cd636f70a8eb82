/*
 * Tests that ranks which are killed, at random moments and at random instructions, leave the bits of a run in which none was
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <sys/pidfd.h>

#include "tests/unit/train_ranks.h"

struct lives {
	pid_t pids[RANKS_MAX]; /* 0: done */
	int fds[RANKS_MAX];
	uint32_t n_done;
	unsigned n_kills, n_steps,
		n_updates; /* kills; within a step; between its first block and its last word */
};

/* Counts where a rank was killed. */
static void rank_examine(struct lives *l, const struct setup *setup, uint32_t rank)
{
	struct weightd_plan *plan = plan_make(setup);
	struct arena a = {.plan = plan, .layout = control_layout(plan)};

	l->n_kills++;
	a.journal = mmap(NULL, a.layout.size, PROT_READ, MAP_SHARED, train_job->fds[0], 0);
	assert_ptr_not_equal(a.journal, MAP_FAILED);
	if (lseek(train_job->fds[0], 0, SEEK_END) >= (off_t)a.layout.size) {
		struct control_rank *words = arena_rank(&a, rank);
		uint64_t grad = trainer_word(&words->grad), param = trainer_word(&words->param);

		l->n_steps += grad > setup->staleness + param;
		l->n_updates += control_journal_step(trainer_word(&words->journal)) > param;
	}
	(void)munmap(a.journal, a.layout.size);
	weightd_plan_free(plan);
}

static void rank_start(struct lives *l, const struct setup *setup, uint32_t rank)
{
	l->pids[rank] = train_job_fork(rank_main, rank, (void *)setup);
	l->fds[rank] = pidfd_open(l->pids[rank], 0);
	assert_true(l->fds[rank] >= 0);
}

/* Waits for the end of a rank, which was killed or is done; starts it anew if it was killed. */
static void rank_reap(struct lives *l, const struct setup *setup, uint32_t rank)
{
	int status = train_job_join(l->pids[rank]);

	close(l->fds[rank]);
	if (status == 128 + SIGKILL) {
		rank_examine(l, setup, rank);
		rank_start(l, setup, rank);
		return;
	}
	assert_int_equal(status, 0);
	l->pids[rank] = 0;
	l->fds[rank] = -1;
	l->n_done++;
}

/* Waits for the first rank that ends, or the time. */
static void ranks_wait(struct lives *l, const struct setup *setup, int64_t ns)
{
	struct pollfd fds[RANKS_MAX];
	struct timespec time = {.tv_nsec = ns};

	for (uint32_t i = 0; i < setup->n_ranks; i++)
		fds[i] = (struct pollfd){.fd = l->fds[i], .events = POLLIN};
	(void)ppoll(fds, setup->n_ranks, &time, NULL);
	for (uint32_t i = 0; i < setup->n_ranks; i++)
		if (fds[i].revents)
			rank_reap(l, setup, i);
}

/* Kills a random rank, and now and then all of them, at random moments, `n_kills` times or until all are done. */
static struct result run_killed(const struct setup *setup, unsigned n_kills, unsigned seed)
{
	struct lives l = {.n_done = 0};
	struct result result;

	srand(seed);
	train_job_start(setup->n_ranks);
	scales_start();
	for (uint32_t rank = 0; rank < setup->n_ranks; rank++)
		rank_start(&l, setup, rank);
	while (l.n_done < setup->n_ranks) {
		bool all = rand() % 4 == 0;
		uint32_t victim = (uint32_t)rand() % setup->n_ranks;

		ranks_wait(&l, setup, l.n_kills < n_kills ? 1000000 + rand() % 9000000 : 999999999);
		for (uint32_t rank = 0; l.n_kills < n_kills && rank < setup->n_ranks; rank++)
			if (l.pids[rank] && (all || rank == victim))
				kill(l.pids[rank], SIGKILL);
	}
	print_message("%u kills, %u in a step, %u in its update\n", l.n_kills, l.n_steps,
		      l.n_updates);
	result = result_read(setup);
	train_job_stop();
	return result;
}

#define N_INSTRUCTIONS 8000 /* about as many as an update has */

/*
 * Kills ranks at random instructions, less than `n_instructions` from the start: of the update of a step, then of the
 * opening that follows.
 */
static struct result run_followed(const struct setup *given, unsigned n_kills, unsigned seed,
				  uint64_t n_instructions)
{
	struct setup setup = *given;
	struct lives l = {.n_done = 0};
	struct result result;

	srand(seed);
	train_job_start(setup.n_ranks);
	scales_start();
	setup.stop = STOP_BEFORE_UPDATE;
	for (uint32_t rank = 0; rank < setup.n_ranks; rank++)
		rank_start(&l, &setup, rank);
	while (l.n_kills < n_kills) {
		uint32_t victim = setup.stop_rank;

		if (!rank_follow(l.pids[victim], (uint64_t)rand() % n_instructions))
			break;
		kill(l.pids[victim], SIGKILL);
		setup.stop = setup.stop == STOP_BEFORE_UPDATE ? STOP_BEFORE_OPEN
							      : STOP_BEFORE_UPDATE;
		if (l.n_kills + 1 == n_kills)
			setup.stop = STOP_NEVER;
		rank_reap(&l, &setup, victim);
	}
	while (l.n_done < setup.n_ranks)
		ranks_wait(&l, &setup, 999999999);
	print_message("%u kills, %u in a step, %u in its update\n", l.n_kills, l.n_steps,
		      l.n_updates);
	result = result_read(&setup);
	train_job_stop();
	return result;
}

/* Single steps take 30 us each. $WEIGHTD_KILLS asks for more kills, or for fewer. */
static unsigned kills_wanted(unsigned usual)
{
	const char *wanted = getenv("WEIGHTD_KILLS");

	return wanted ? (unsigned)atoi(wanted) : usual;
}

static void expect_unharmed(const struct setup *setup, unsigned n_kills, unsigned n_followed)
{
	struct result whole = run_whole(setup);
	struct result killed = run_killed(setup, kills_wanted(n_kills), 7);

	result_compare(&whole, &killed);
	result_free(&killed);
	killed = run_followed(setup, kills_wanted(n_followed), 7, N_INSTRUCTIONS);
	result_compare(&whole, &killed);
	result_free(&whole);
	result_free(&killed);
}

/* --- Kills --------------------------------------------------------------------------------------------- */

static void test_every_strategy_survives_kills(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (pools_grads(&setup)) /* they have a thread: test_train_exchange kills them */
			continue;
		setup.overlap =
			false; /* its thread is killed by tests/integration/train/test_kills.py */
		setup.n_ranks = 2 + i % 2;
		setup.max_norm = setup.form == WEIGHTD_STEP_TWO_PHASE ? 1 : 0;
		setup.is_weighted = i % 3 == 0;
		setup.nan_step = 3;
		if (is_some_pair(i, 0, 2))
			expect_unharmed(&setup, 10, 4);
	}
}

static void test_survivors_finish_and_the_bits_are_the_same(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (pools_grads(&setup))
			continue;
		setup.overlap = false;
		setup.n_ranks = 3;
		setup.on_death = WEIGHTD_DEATH_FINISH;
		if (is_some_pair(i, 1, 2))
			expect_unharmed(&setup, 10, 4);
	}
}

/* The scale, and the steps that overflow, are compared as well: results have them. */
static void test_16_bits_and_scales_survive_kills(void **state)
{
	static const struct setup setups[] = {
		{.strategy = "zero1",
		 .n_ranks = 2,
		 .form = WEIGHTD_STEP_FUSED,
		 .dtype = WEIGHTD_BF16,
		 .on_death = WEIGHTD_DEATH_FINISH},
		{.strategy = "shared",
		 .n_ranks = 2,
		 .form = WEIGHTD_STEP_TWO_PHASE,
		 .dtype = WEIGHTD_F16,
		 .init_scale = 262144},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++)
		expect_unharmed(&setups[i], 5, 1);
}

/* --- Staleness ------------------------------------------------------------------------------------------ */

/* Gradients that do not depend on the parameters make staleness invisible, once all updates are made. */
static void test_stale_updates_are_all_made_in_the_end(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 3, .is_blind = true};
	struct result plain = oracle_run(&setup);

	(void)state;
	for (uint32_t k = 0; k < 4; k++) {
		struct result stale;

		setup.staleness = k;
		stale = run_whole(&setup);
		result_compare(&stale, &plain);
		result_free(&stale);
		setup.on_death = k % 2 ? WEIGHTD_DEATH_FINISH : WEIGHTD_DEATH_WAIT;
		stale = run_killed(&setup, 12, k);
		result_compare(&stale, &plain);
		result_free(&stale);
	}
	result_free(&plain);
}

/* --- Control ------------------------------------------------------------------------------------------- */

static bool results_differ(const struct result *a, const struct result *b)
{
	return memcmp(a->param, b->param, a->param_size) != 0;
}

static void test_without_journal_kills_leave_other_bits(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 2, .without_journal = true};
	struct result whole = run_whole(&setup);
	bool differ = false;

	(void)state;
	for (unsigned seed = 0; !differ && seed < 20; seed++) {
		struct result killed = run_followed(&setup, 12, seed, N_INSTRUCTIONS * (1 + seed));

		differ = results_differ(&whole, &killed);
		result_free(&killed);
	}
	assert_true(differ);
	result_free(&whole);
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_every_strategy_survives_kills),
		cmocka_unit_test(test_survivors_finish_and_the_bits_are_the_same),
		cmocka_unit_test(test_16_bits_and_scales_survive_kills),
		cmocka_unit_test(test_stale_updates_are_all_made_in_the_end),
		cmocka_unit_test(test_without_journal_kills_leave_other_bits),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
