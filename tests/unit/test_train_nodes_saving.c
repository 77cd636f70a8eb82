/*
 * Tests checkpoints of several nodes: saved on one mesh, loaded on others, and a rank that is killed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/nodes/star.h"
#include "tests/unit/train_folder.h"
#include "tests/unit/train_node_jobs.h"

#define SAVED 9 /* the step whose checkpoint is loaded; some step before it was skipped */
#define DEADLINE_MS 300

struct run {
	struct setup setup;
	const char *save, *load; /* folders; NULL: not */
	bool is_same; /* mesh, as that which saved */
	bool is_late; /* loads after weightd_train_begin() */
	bool has_pairs; /* an engine of the caller */
	uint64_t until; /* the last step */
	/* A rank of the mesh is killed at a point of its save or load; 0: none. Shared by all processes. */
	uint32_t victim;
	enum {
		BEFORE_SAVE = 1,
		BEHIND_SAVE,
		BEFORE_LOAD,
		IN_LOAD,
		BEHIND_LOAD,
		BEFORE_KEEP /* the others go on, and this rank has not noted that they may */
	} fatal;
	_Atomic bool has_died;
	_Atomic uint32_t n_failed, n_saved; /* ranks whose save ended so */
	_Atomic pid_t waits; /* a rank that signals are to interrupt */
};

static const struct setup types[] = {
	{.nan_step = 4},
	{.dtype = WEIGHTD_BF16, .nan_step = 4},
	{.dtype = WEIGHTD_F16, .init_scale = 1024, .overflow_step = 7},
};

static const char *const strategies[] = {"shared", "zero1", "replicated", "zero2", "zero3"};
#define ZERO3 4

static struct setup setup_of(size_t strategy, size_t type, uint32_t n_nodes, uint32_t n_ranks)
{
	struct setup setup = types[type % ARRAY_LEN(types)];

	setup.strategy = strategies[strategy % ARRAY_LEN(strategies)];
	setup.form = WEIGHTD_STEP_TWO_PHASE;
	setup.n_nodes = n_nodes;
	setup.n_ranks = n_ranks;
	return setup;
}

/* --- Folders ----------------------------------------------------------------------------------------- */

static bool has_checkpoint(void)
{
	char path[128];

	(void)snprintf(path, sizeof(path), "%s/step-%012d/trainer.json", folder, SAVED);
	return access(path, F_OK) == 0;
}

/* --- A rank ------------------------------------------------------------------------------------------ */

static bool is_fatal(const struct run *run, uint32_t rank, unsigned point)
{
	return rank == run->victim && point == run->fatal && !run->has_died;
}

static void point_pass(struct run *run, uint32_t rank, unsigned point)
{
	if (!is_fatal(run, rank, point))
		return;
	run->has_died = true;
	(void)raise(SIGKILL);
}

static int check_nothing(void *data, bool is_interrupted)
{
	(void)data;
	(void)is_interrupted;
	return 0;
}

static int load(struct run *run, struct weightd_train *t)
{
	uint32_t rank = rank_of(t);
	struct star star = {
		.what = "load", .is_load = true, .deadline_ms = -1, .check = check_nothing};
	int r;

	if (weightd_train_step(t)) /* of a process before this one */
		return 0;
	point_pass(run, rank, BEFORE_LOAD);
	/* The others have connected to this rank. */
	if (is_fatal(run, rank, IN_LOAD))
		assert(star_place(&t->exchange.link, t->plan, true, &star.place) == 0 &&
		       star_open(&star, t->plan) == 0);
	point_pass(run, rank, IN_LOAD);
	r = weightd_train_load(t, run->load);
	point_pass(run, rank, BEHIND_LOAD);
	if (is_fatal(run, rank, BEFORE_KEEP))
		wait_publish(&trainer_words(t)->loaded, 0);
	point_pass(run, rank, BEFORE_KEEP);
	return r;
}

static int open_trainer(const struct run *run, uint32_t rank, struct weightd_train **ret)
{
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.rank = rank % ranks_of(&run->setup),
						.nodes = rank_nodes,
						.deadline_ms = 60000};
	struct weightd_plan *plan = plan_make(&run->setup);
	int r = weightd_train_open(NULL, plan, &options, ret);

	weightd_plan_free(plan);
	return r;
}

static struct weightd_train *open_run(struct run *run, uint32_t rank)
{
	struct weightd_train *t;
	int r = open_trainer(run, rank, &t);

	if (r == 0 && run->load && !run->is_late)
		r = load(run, t);
	else if (r == 0 && t->arena.rank == 0 && weightd_train_is_empty(t))
		rank_fill(t);
	if (r == 0)
		r = weightd_train_begin(t);
	if (r == 0 && run->load && run->is_late)
		r = load(run, t);
	if (r == 0)
		return t;
	(void)rank_fail("open", r);
	exit(1);
}

/* Those of the checkpoint's rank 0, where the mesh is another one. */
static bool state_fits(const struct run *run, struct weightd_train *t)
{
	uint64_t size, step = weightd_train_step(t);
	const uint64_t *cursor = weightd_train_state(t, &size);
	const int64_t *count = weightd_train_buffer(t, COUNT);

	if (!run->load || run->is_same)
		return rank_state_fits(t);
	return step == SAVED && size == sizeof(*cursor) && *cursor == SAVED * 1000 &&
	       count[0] == SAVED * (SAVED + 1) / 2;
}

/* Saves the last step, and waits for it. */
static int save(struct run *run, struct weightd_train *t)
{
	uint32_t rank = rank_of(t);
	int r;

	if (!run->fatal) /* a successor would not repeat it */
		assert(rank_forward(t) == 0);
	point_pass(run, rank, BEFORE_SAVE);
	if (run->fatal)
		t->place.deadline_ms = DEADLINE_MS;
	r = weightd_train_save(t, run->save, NULL);
	point_pass(run, rank, BEHIND_SAVE);
	if (r == 0)
		r = weightd_train_save_wait(t);
	t->place.deadline_ms = 60000;
	if (r < 0 && !run->fatal)
		return r;
	if (r < 0)
		run->n_failed++;
	else
		run->n_saved++;
	return 0;
}

static int step_once(const struct run *run, struct weightd_train *t)
{
	int r = rank_step(&run->setup, t);

	return r == -EDOM ? 0 : r;
}

static int run_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);

	rank_record(t);
	if (!state_fits(run, t))
		return rank_fail("state of another step", 0);
	while (weightd_train_step(t) < run->until) {
		int r = step_once(run, t);

		rank_record(t);
		if (r == 0 && run->save && weightd_train_step(t) == SAVED)
			r = save(run, t);
		if (r < 0)
			return rank_fail("step", r);
	}
	if (run->load && run->save && save(run, t) < 0)
		return rank_fail("save", 0);
	if (weightd_train_close(t) < 0)
		return rank_fail("end", 0);
	weightd_train_free(t);
	return 0;
}

static int run_rank(uint32_t rank, void *data)
{
	const struct run *run = data;

	return node_run(&run->setup, rank, data, run->has_pairs, run_main);
}

static struct union_result result_of(struct run *run)
{
	uint32_t n = run->setup.n_ranks;
	pid_t pids[RANKS_MAX];

	nodes_start(&run->setup);
	for (uint32_t rank = 0; rank < n; rank++)
		pids[rank] = train_job_fork(run_rank, rank, run);
	if (run->fatal) {
		assert_int_equal(train_job_join(pids[run->victim]), 128 + SIGKILL);
		pids[run->victim] = train_job_fork(run_rank, run->victim, run);
	}
	for (uint32_t rank = 0; rank < n; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	return nodes_stop(&run->setup);
}

/* --- Tests ------------------------------------------------------------------------------------------- */

static void save_at(struct setup setup, uint64_t until, struct union_result *ret)
{
	struct run run = {.setup = setup, .save = folder, .until = until, .has_pairs = true};

	*ret = result_of(&run);
}

static void test_two_nodes_go_on_with_the_same_bits_after_a_load(void **state)
{
	(void)state;
	for (size_t i = 0; i < 2 * ARRAY_LEN(strategies); i += is_long_form() ? 1 : 2) {
		struct run load = {.setup = setup_of(i, i, 2, 4),
				   .load = folder,
				   .is_same = true,
				   .is_late = i >= ARRAY_LEN(strategies),
				   .has_pairs = i / 2 % 2, /* else sums of pools are on a thread */
				   .until = N_STEPS};
		struct union_result whole, loaded;

		save_at(load.setup, N_STEPS, &whole);
		loaded = result_of(&load);
		union_compare(&loaded, &whole);
		union_free(&whole);
		union_free(&loaded);
	}
}

/* Nodes and ranks of all of them. */
static const struct setup meshes[] = {
	{.n_nodes = 2, .n_ranks = 4}, {.n_nodes = 1, .n_ranks = 4}, {.n_nodes = 1, .n_ranks = 3},
	{.n_nodes = 2, .n_ranks = 2}, {.n_nodes = 1, .n_ranks = 1}, {.n_nodes = 3, .n_ranks = 3},
};

static void expect_loads(const struct union_result *saved, uint32_t from, size_t strategy,
			 size_t type)
{
	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		if (!is_some_pair(i, type, 2))
			continue;
		struct run load = {.setup = setup_of(strategy + i, type, meshes[i].n_nodes,
						     meshes[i].n_ranks),
				   .load = folder,
				   .is_same = meshes[i].n_ranks == from,
				   .is_late = i % 2,
				   .has_pairs = true,
				   .until = SAVED};
		struct union_result loaded = result_of(&load);

		union_compare(&loaded, saved);
		union_free(&loaded);
	}
}

static void test_a_checkpoint_of_nodes_loads_on_every_mesh(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++) {
		struct union_result saved;

		save_at(setup_of(i, i, 2, 4), SAVED, &saved);
		expect_loads(&saved, 4, i, i);
		union_free(&saved);
	}
}

static void test_a_checkpoint_of_one_node_loads_on_several(void **state)
{
	struct union_result saved;

	(void)state;
	save_at(setup_of(0, 1, 1, 3), SAVED, &saved);
	expect_loads(&saved, 3, 0, 1);
	union_free(&saved);
}

#define FIRST 3 /* ranks whose states are in the first checkpoint */

static const struct setup passes[] = {
	{.strategy = "zero2", .n_nodes = 3, .n_ranks = FIRST},
	{.strategy = "zero3", .n_nodes = 3, .n_ranks = FIRST},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2},
	{.strategy = "zero2", .n_nodes = 2, .n_ranks = 4, .n_replicas = 2},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4},
};

/* Loads a checkpoint, and saves it again. */
static void expect_passes(const struct union_result *saved, const struct setup *pass, size_t type)
{
	struct run run = {.setup = setup_of(0, type, pass->n_nodes, pass->n_ranks),
			  .load = folder,
			  .save = folder,
			  .is_same = pass->n_ranks == FIRST,
			  .has_pairs = true,
			  .until = SAVED};
	struct union_result passed;

	run.setup.strategy = pass->strategy;
	run.setup.n_replicas = pass->n_replicas;
	passed = result_of(&run);
	union_compare(&passed, saved);
	union_free(&passed);
}

static void test_sharded_parameters_are_saved_and_loaded(void **state)
{
	(void)state;
	for (size_t type = 0; type < ARRAY_LEN(types); type++) {
		struct union_result saved;

		save_at(setup_of(0, type, 1, FIRST), SAVED, &saved);
		for (size_t i = 0; i < ARRAY_LEN(passes); i++)
			if (is_some_pair(i, type, 2))
				expect_passes(&saved, &passes[i], type);
		expect_loads(&saved, 0, type, type);
		union_free(&saved);
	}
}

/* --- Kills ------------------------------------------------------------------------------------------- */

static struct run *run_shared(const struct run *run)
{
	struct run *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(shared, MAP_FAILED);
	memcpy(shared, run, sizeof(*shared));
	return shared;
}

/* The others fail, unless the rank had nothing left to do; and then there is a whole checkpoint, or none. */
static void expect_killed(const struct run *run)
{
	uint32_t n_failed = run->n_failed, n_saved = run->n_saved;

	assert_int_equal(n_failed + n_saved, run->setup.n_ranks - 1);
	if (run->fatal == BEFORE_SAVE)
		assert_int_equal(n_saved, 0);
	if (n_saved)
		assert_true(has_checkpoint());
	if (has_checkpoint()) {
		struct run load = {.setup = run->setup,
				   .load = folder,
				   .is_same = true,
				   .has_pairs = true,
				   .until = SAVED};
		struct union_result loaded = result_of(&load);

		union_free(&loaded);
	}
}

static const char *const killed_strategies[] = {"shared", "zero3"};

static void kill_in_save(const struct setup *setup, const struct union_result *whole,
			 uint32_t victim, unsigned fatal)
{
	struct run killed = {
		.setup = *setup, .save = folder, .until = N_STEPS, .victim = victim, .fatal = fatal};
	struct run *run = run_shared(&killed);
	struct union_result result = result_of(run);

	union_compare(&result, whole);
	union_free(&result);
	expect_killed(run);
	(void)munmap(run, sizeof(*run));
	assert_int_equal(folder_remove(NULL) + folder_make(NULL), 0);
}

static void test_a_rank_that_is_killed_in_a_save_ends_no_training(void **state)
{
	struct run plain = {.setup = setup_of(0, 1, 2, 4), .until = N_STEPS, .has_pairs = true};
	struct union_result whole;

	(void)state;
	whole = result_of(&plain);
	for (size_t i = 0; i < ARRAY_LEN(killed_strategies); i++) {
		plain.setup.strategy = killed_strategies[i];
		for (uint32_t victim = 0; victim < 4; victim += 3)
			for (unsigned fatal = BEFORE_SAVE; fatal <= BEHIND_SAVE; fatal++)
				if (is_some_pair(i + victim, fatal, 2))
					kill_in_save(&plain.setup, &whole, victim, fatal);
	}
	union_free(&whole);
}

static void kill_in_load(const struct setup *setup, const struct union_result *whole,
			 uint32_t victim, unsigned fatal)
{
	struct run killed = {.setup = *setup,
			     .load = folder,
			     .is_same = true,
			     .is_late = victim,
			     .until = N_STEPS,
			     .victim = victim,
			     .fatal = fatal};
	struct run *run = run_shared(&killed);
	struct union_result result = result_of(run);

	union_compare(&result, whole);
	union_free(&result);
	(void)munmap(run, sizeof(*run));
}

static void test_a_rank_that_is_killed_in_a_load_loads_again(void **state)
{
	struct run plain = {.setup = setup_of(0, 1, 2, 4), .until = N_STEPS, .has_pairs = true};
	struct union_result whole;

	(void)state;
	plain.save = folder;
	whole = result_of(&plain);
	for (size_t i = 0; i < ARRAY_LEN(killed_strategies); i++) {
		plain.setup.strategy = killed_strategies[i];
		for (unsigned fatal = BEFORE_LOAD; fatal <= BEFORE_KEEP; fatal++)
			for (uint32_t victim = 0; victim < (fatal == BEFORE_KEEP ? 1 : 4);
			     victim += 3)
				if (is_some_pair(i + victim, fatal, 2))
					kill_in_load(&plain.setup, &whole, victim, fatal);
	}
	union_free(&whole);
}

/* --- Failures ---------------------------------------------------------------------------------------- */

static int expect(int r, int wanted, const char *sentence)
{
	if (r == wanted && strstr(weightd_train_error(), sentence))
		return 0;
	fprintf(stderr, "%d, not %d: %s; not: %s\n", r, wanted, weightd_train_error(), sentence);
	return 1;
}

/* Node 0 has a place that cannot be a folder. */
static int failing_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int wrong;

	wrong = expect(weightd_train_load(t, "/nowhere"), -ENOENT, "/nowhere");
	assert(rank_step(&run->setup, t) == 0);
	assert(weightd_train_save(t, t->arena.node ? "/else" : "/proc/version", NULL) == 0);
	wrong += expect(weightd_train_save_wait(t), -ENOTDIR, "/proc/version");
	assert(rank_step(&run->setup, t) == 0);
	assert(weightd_train_save(t, folder, NULL) == 0 && weightd_train_save_wait(t) == 0);
	return wrong || weightd_train_close(t) < 0;
}

/* After a step that does not average, the nodes have different parameters. */
static int local_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int wrong;

	assert(rank_step(&run->setup, t) == 0);
	wrong = expect(weightd_train_save(t, folder, NULL), -EINVAL, "save after such a step");
	assert(rank_step(&run->setup, t) == 0);
	assert(weightd_train_save(t, folder, NULL) == 0 && weightd_train_save_wait(t) == 0);
	return wrong || weightd_train_close(t) < 0;
}

/* The node `victim` saves the first step alone, and all save the second one. */
static int alone_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	bool is_alone = t->arena.node == run->victim;
	int wrong = 0;

	assert(rank_step(&run->setup, t) == 0);
	assert(!is_alone || weightd_train_save(t, folder, NULL) == 0);
	assert(rank_step(&run->setup, t) == 0);
	if (is_alone)
		wrong = expect(weightd_train_save_wait(t), -EINVAL, "this rank in that of step 1;");
	assert(weightd_train_save(t, folder, NULL) == 0);
	wrong += expect(weightd_train_save_wait(t), 0, "");
	return wrong || weightd_train_close(t) < 0;
}

/* Parameters are read between the step and its save, which rank 0 of node 0 comes to last: it has not gone on without it. */
static int reading_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int wrong;

	assert(rank_step(&run->setup, t) == 0 && rank_forward(t) == 0);
	if (rank == 0)
		(void)poll(NULL, 0, 4 * WAIT_TICK_MS); /* the others look for it */
	assert(weightd_train_save(t, folder, NULL) == 0);
	wrong = expect(weightd_train_save_wait(t), 0, "");
	assert(rank_step(&run->setup, t) == 0);
	return wrong || weightd_train_close(t) < 0;
}

static int unit_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int wrong;

	assert(rank_forward(t) == 0);
	wrong = expect(weightd_train_load(t, folder), -EINVAL, "units of parameters were opened");
	assert(rank_step(&run->setup, t) == 0);
	return wrong || weightd_train_close(t) < 0;
}

static int (*mixed_main)(uint32_t rank, void *data);

static int mixed_rank(uint32_t rank, void *data)
{
	const struct run *run = data;

	return node_run(&run->setup, rank, data, run->has_pairs, mixed_main);
}

static void run_mixed(struct run *run, int (*fn)(uint32_t rank, void *data))
{
	struct union_result result;
	pid_t pids[RANKS_MAX];

	mixed_main = fn;
	nodes_start(&run->setup);
	for (uint32_t rank = 0; rank < run->setup.n_ranks; rank++)
		pids[rank] = train_job_fork(mixed_rank, rank, run);
	for (uint32_t rank = 0; rank < run->setup.n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	result = nodes_stop(&run->setup);
	union_free(&result);
}

static void test_a_failure_of_node_0_is_that_of_all_nodes(void **state)
{
	struct run run = {.setup = setup_of(0, 1, 2, 4), .has_pairs = true};

	(void)state;
	run_mixed(&run, failing_main);
}

static void test_units_may_be_read_before_a_save(void **state)
{
	struct run run = {.setup = setup_of(ZERO3, 1, 2, 4)};
	struct run load = {
		.setup = run.setup, .load = folder, .is_same = true, .has_pairs = true, .until = 2};
	struct run plain = {.setup = run.setup, .has_pairs = true, .until = 2};
	struct union_result whole = result_of(&plain), loaded;

	(void)state;
	run_mixed(&run, reading_main);
	loaded = result_of(&load);
	union_compare(&loaded, &whole);
	union_free(&whole);
	union_free(&loaded);
}

static void test_units_may_not_be_read_before_a_load(void **state)
{
	struct run run = {.setup = setup_of(ZERO3, 1, 2, 4)};
	struct union_result saved;

	(void)state;
	save_at(run.setup, SAVED, &saved);
	union_free(&saved);
	run_mixed(&run, unit_main);
}

static void test_a_save_that_a_node_missed_does_not_fail_the_next(void **state)
{
	(void)state;
	for (uint32_t alone = 0; alone < 2; alone++) {
		struct run run = {.setup = setup_of(0, 1, 3, 3), .has_pairs = true, .victim = alone};

		run_mixed(&run, alone_main);
	}
}

static void test_nodes_that_average_save_after_an_average(void **state)
{
	struct run run = {.setup = setup_of(0, 1, 2, 4), .has_pairs = true};

	(void)state;
	run.setup.sync_every = 2;
	run_mixed(&run, local_main);
	run.load = folder;
	run.is_same = true;
	run.until = N_STEPS;
	run_mixed(&run, run_main);
}

/* --- Nodes that do not come, or wait for each other ---------------------------------------------------- */

static void wait_for_failures(const struct run *run, uint32_t n)
{
	while (run->n_failed < n)
		(void)poll(NULL, 0, 1);
}

/* The wait has the deadline of the save, and may end before it. */
static int save_wait(struct weightd_train *t)
{
	int r;

	do
		r = weightd_train_save_wait(t);
	while (r == -ETIMEDOUT && strstr(weightd_train_error(), "save its part"));
	return r;
}

/* Node 1 does not save. */
static int absent_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int wrong = 0;

	t->place.deadline_ms = DEADLINE_MS;
	if (t->arena.node != 1) {
		assert(weightd_train_save(t, folder, NULL) == 0);
		wrong = expect(save_wait(t), -ETIMEDOUT,
			       "rank 0 of node 1 did not take part in the save within 0.3 s");
		run->n_failed++;
	}
	wait_for_failures(run, 2);
	t->place.deadline_ms = 60000;
	return weightd_train_close(t) < 0 || wrong;
}

static void test_all_name_the_node_that_does_not_save(void **state)
{
	struct run absent = {.setup = setup_of(0, 1, 3, 3)};
	struct run *run = run_shared(&absent);

	(void)state;
	run_mixed(run, absent_main);
	(void)munmap(run, sizeof(*run));
}

static void on_signal(int signal)
{
	(void)signal;
}

static void handle_signals(void)
{
	const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	assert(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* A signal interrupts the next step of node 0, whose save waits for node 1. */
static int gives_up(struct run *run, struct weightd_train *t)
{
	struct weightd_update u = {.size = sizeof(u)};
	int r;

	handle_signals();
	assert(weightd_train_save(t, folder, NULL) == 0);
	t->place.is_interruptible = true;
	run->waits = getpid();
	r = rank_step(&run->setup, t);
	t->place.is_interruptible = false;
	if (r != -EINTR)
		return rank_fail("not interrupted", r);
	run->n_failed = 1;
	r = weightd_train_save_wait(t);
	return r < 0 ? rank_fail("save of node 0", r) : weightd_train_update(t, &u);
}

static int saves_late(const struct run *run, struct weightd_train *t)
{
	int r;

	for (; !run->n_failed; (void)poll(NULL, 0, 1))
		if (run->waits)
			(void)kill(run->waits, SIGUSR1);
	while (t->exchange.link.is_connected)
		link_watch(&t->exchange.link);
	assert(weightd_train_save(t, folder, NULL) == 0);
	r = weightd_train_save_wait(t);
	return r < 0 ? rank_fail("save of node 1", r) : rank_step(&run->setup, t);
}

static int interrupted_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t = open_run(run, rank);

	return (rank ? saves_late(run, t) : gives_up(run, t)) || weightd_train_close(t) < 0;
}

static void test_an_interrupted_step_ends_no_save(void **state)
{
	struct run interrupted = {.setup = setup_of(0, 1, 2, 2)};
	struct run *run = run_shared(&interrupted);

	(void)state;
	run_mixed(run, interrupted_main);
	(void)munmap(run, sizeof(*run));
}

struct interrupter {
	struct run *run;
	struct weightd_train *t;
	pthread_t thread;
};

/* From where this rank has the values on, until its load has failed. */
static void *interrupt(void *data)
{
	const struct interrupter *i = data;

	while (!trainer_word(&trainer_words(i->t)->loaded))
		(void)poll(NULL, 0, 1);
	for (; !i->run->n_failed; (void)poll(NULL, 0, 1))
		(void)pthread_kill(i->thread, SIGUSR1);
	return NULL;
}

static int loads_twice(struct run *run, struct weightd_train *t)
{
	struct interrupter i = {.run = run, .t = t, .thread = pthread_self()};
	pthread_t thread;
	int wrong;

	handle_signals();
	t->place.is_interruptible = true;
	assert(pthread_create(&thread, NULL, interrupt, &i) == 0);
	wrong = expect(weightd_train_load(t, folder), -EINTR, "a signal interrupted the load");
	run->n_failed = 1;
	(void)pthread_join(thread, NULL);
	t->place.start_ms = 30000;
	return wrong + expect(weightd_train_load(t, folder), 0, "");
}

/* As a rank that loads, but says that it has the values when another one was interrupted. */
static int confirms_late(const struct run *run, struct weightd_train *t)
{
	struct star star = {
		.what = "load", .is_load = true, .deadline_ms = -1, .check = check_nothing};
	struct {
		int64_t result;
		uint64_t size;
	} head;
	cleanup(freep) uint8_t *bytes = malloc(1 << 20);

	assert(bytes && star_place(&t->exchange.link, t->plan, true, &star.place) == 0 &&
	       star_open(&star, t->plan) == 0);
	do
		assert(star_receive(&star, 0, &head, sizeof(head)) == 0 && head.result == 0 &&
		       star_receive(&star, 0, bytes, head.size) == 0);
	while (head.size != 1);
	wait_for_failures(run, 1);
	assert(star_send(&star, 0, bytes, 1) == 0);
	star_close(&star);
	return 0;
}

static int repeated_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct weightd_train *t;
	int wrong;

	assert(open_trainer(run, rank, &t) == 0);
	if (rank == 0)
		wrong = expect(weightd_train_load(t, folder), 0, "");
	else
		wrong = rank == 1 ? loads_twice(run, t) : confirms_late(run, t);
	weightd_train_free(t);
	return wrong;
}

static void test_a_load_that_is_interrupted_in_the_end_can_be_repeated(void **state)
{
	struct run repeated = {.setup = setup_of(0, 1, 3, 3)};
	struct run *run = run_shared(&repeated);
	struct union_result saved;

	(void)state;
	save_at(repeated.setup, SAVED, &saved);
	union_free(&saved);
	run_mixed(run, repeated_main);
	(void)munmap(run, sizeof(*run));
}

static int check_over(void *data, bool is_interrupted)
{
	const struct run *run = data;

	(void)is_interrupted;
	return run->n_failed ? -ECANCELED : 0;
}

/* Node 1 is killed in each load as soon as it is connected. */
static int doomed_main(uint32_t rank, void *data)
{
	struct run *run = data;
	struct star star = {
		.what = "load", .is_load = true, .deadline_ms = -1, .check = check_over, .data = run};
	struct weightd_train *t;
	int wrong = 0;

	assert(open_trainer(run, rank, &t) == 0);
	if (rank) {
		(void)poll(NULL, 0, 2 * ENGINE_TICK_MS); /* it starts */
		assert(star_place(&t->exchange.link, t->plan, true, &star.place) == 0);
		if (star_open(&star, t->plan) == 0)
			(void)raise(SIGKILL);
	} else {
		t->place.start_ms = DEADLINE_MS;
		wrong = expect(weightd_train_load(t, folder), -ETIMEDOUT,
			       "rank 0 of node 1 did not take part in the load within 0.3 s");
		run->n_failed = 1;
	}
	weightd_train_free(t);
	return wrong;
}

static void test_a_node_that_is_killed_in_every_load_is_late_in_the_end(void **state)
{
	struct run doomed = {.setup = setup_of(0, 1, 2, 2)};
	struct run *run = run_shared(&doomed);
	struct union_result saved;
	pid_t first;

	(void)state;
	save_at(doomed.setup, SAVED, &saved);
	union_free(&saved);
	mixed_main = doomed_main;
	nodes_start(&run->setup);
	first = train_job_fork(mixed_rank, 0, run);
	for (int i = 0; i < 50 && !run->n_failed; i++)
		(void)train_job_join(train_job_fork(mixed_rank, 1, run));
	if (!run->n_failed)
		(void)kill(first, SIGKILL);
	assert_int_equal(train_job_join(first), 0);
	saved = nodes_stop(&run->setup);
	union_free(&saved);
	(void)munmap(run, sizeof(*run));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
	const struct CMUnitTest tests[] = {
		TEST(test_two_nodes_go_on_with_the_same_bits_after_a_load),
		TEST(test_a_checkpoint_of_nodes_loads_on_every_mesh),
		TEST(test_a_checkpoint_of_one_node_loads_on_several),
		TEST(test_sharded_parameters_are_saved_and_loaded),
		TEST(test_a_rank_that_is_killed_in_a_save_ends_no_training),
		TEST(test_a_rank_that_is_killed_in_a_load_loads_again),
		TEST(test_a_failure_of_node_0_is_that_of_all_nodes),
		TEST(test_units_may_be_read_before_a_save),
		TEST(test_units_may_not_be_read_before_a_load),
		TEST(test_a_save_that_a_node_missed_does_not_fail_the_next),
		TEST(test_all_name_the_node_that_does_not_save),
		TEST(test_an_interrupted_step_ends_no_save),
		TEST(test_a_load_that_is_interrupted_in_the_end_can_be_repeated),
		TEST(test_a_node_that_is_killed_in_every_load_is_late_in_the_end),
		TEST(test_nodes_that_average_save_after_an_average),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
