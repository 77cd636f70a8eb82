/*
 * Tests of what ranks return when another node is late, lost, new, or different
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/eventfd.h>

#include "tests/unit/train_node_jobs.h"

#define DIE_STEP 6
#define STEP_DEADLINE_MS 400 /* steps are called again, what comes before and after them is not */
#define N_SENTENCE 512

/* One run; shared by its processes. */
struct scene {
	struct setup setup;
	bool has_pairs;
	int events_fd; /* counts what the test waits for */
	_Atomic bool is_dead; /* node 1: who is late before that is so on a busy machine */
	_Atomic bool is_second_life; /* of the ranks of node 1 */
	_Atomic bool has_named[RANKS_MAX]; /* the node that does not come */
	char sentences[RANKS_MAX][N_SENTENCE];
	_Atomic int results[RANKS_MAX];
};

static struct scene *scene;

static void scene_start(const struct setup *setup)
{
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_ptr_not_equal(scene, MAP_FAILED);
	scene->setup = *setup;
	scene->events_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	assert_true(scene->events_fd >= 0);
	nodes_start(&scene->setup);
}

static void scene_end(void)
{
	close(scene->events_fd);
	(void)munmap(scene, sizeof(*scene));
}

/* The values of the nodes do not matter. */
static void scene_stop(void)
{
	for (uint32_t node = 0; node < scene->setup.n_nodes; node++) {
		train_job = jobs[node];
		train_job_stop();
	}
	places_stop(&scene->setup);
	scene_end();
}

static void event_send(void)
{
	assert(eventfd_write(scene->events_fd, 1) == 0);
}

static void events_wait(uint32_t n)
{
	eventfd_t value;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(eventfd_read(scene->events_fd, &value), 0);
}

static uint32_t my_rank; /* of the mesh */

/* Keeps the result of a call of this rank, with its sentence. */
static int record(int r)
{
	(void)snprintf(scene->sentences[my_rank], N_SENTENCE, "%s", weightd_train_error());
	scene->results[my_rank] = r;
	return r;
}

static int (*scene_main)(void); /* of each rank */

static int scene_run(uint32_t rank, void *data)
{
	(void)data;
	my_rank = rank;
	return scene_main();
}

static int scene_node_main(uint32_t rank, void *data)
{
	return node_run(&scene->setup, rank, data, scene->has_pairs, scene_run);
}

static pid_t rank_fork(uint32_t rank)
{
	return train_job_fork(scene_node_main, rank, NULL);
}

static void expect_sentence(uint32_t rank, int r, const char *part)
{
	if (scene->results[rank] != r || !strstr(scene->sentences[rank], part))
		fail_msg("rank %u: %d, '%s'; expected %d, '%s'", rank, scene->results[rank],
			 scene->sentences[rank], r, part);
}

static bool has_other_plan; /* this process */

/* Up to the begin, whose result is recorded. */
static int scene_open(struct weightd_train **ret)
{
	const struct setup *setup = &scene->setup;
	struct setup planned = *setup;
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.rank = my_rank % ranks_of(setup),
						.nodes = rank_nodes,
						.deadline_ms = setup->deadline_ms,
						.on_death = setup->on_death,
						.interruptible = setup->interruptible};
	struct weightd_plan *plan;
	int r;

	if (has_other_plan)
		planned.optimizer = WEIGHTD_SGD;
	plan = plan_make(&planned);
	r = weightd_train_open(NULL, plan, &options, ret);
	weightd_plan_free(plan);
	if (r < 0)
		return record(r);
	if (weightd_train_is_empty(*ret) && options.rank == 0)
		rank_fill(*ret);
	return record(weightd_train_begin(*ret));
}

/* --- Nodes that are killed ----------------------------------------------------------------------------- */

/* A step that other calls may have to complete. The first failure after the death of node 1 is recorded, and is an event. */
static int step_until_complete(struct weightd_train *t)
{
	double lr[N_GROUPS];
	uint64_t cursor, step = weightd_train_step(t);
	struct weightd_update u = rank_arguments(&scene->setup, t, lr, &cursor);
	bool has_failed = false;
	int r;

	rank_compute(&scene->setup, t);
	while ((r = weightd_train_update(t, &u)) == -ETIMEDOUT || r == -EOWNERDEAD) {
		if (weightd_train_step(t) != step)
			return rank_fail("a failure changed the step", r);
		/* A rank of its own node may be late as well, and for the step before. */
		if (has_failed ||
		    (r == -ETIMEDOUT &&
		     (!scene->is_dead || !strstr(weightd_train_error(), "take part in step 6"))))
			continue;
		has_failed = true;
		record(r);
		event_send();
	}
	return r;
}

/* Ranks of node 1 are killed once, before they take part in a step. */
static int killed_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	if (!r && scene->setup.on_death == WEIGHTD_DEATH_WAIT)
		t->place.deadline_ms = STEP_DEADLINE_MS;
	while (!r && weightd_train_step(t) < N_STEPS) {
		if (my_rank >= ranks_of(&scene->setup) && !scene->is_second_life &&
		    weightd_train_step(t) + 1 == DIE_STEP)
			(void)kill(getpid(), SIGKILL);
		r = step_until_complete(t);
	}
	if (!r) {
		t->place.deadline_ms = scene->setup.deadline_ms;
		r = weightd_train_close(t);
	}
	if (r)
		return rank_fail("killed_main", r);
	weightd_train_free(t);
	return 0;
}

static void kill_node(enum weightd_on_death on_death, int expected, const char *sentence)
{
	struct setup setup = {.strategy = "shared",
			      .n_nodes = 2,
			      .n_ranks = 4,
			      .deadline_ms = 60000,
			      .on_death = on_death};
	struct union_result ours;
	struct result plain = oracle_run(&setup);
	pid_t pids[4];

	scene_main = killed_main;
	scene_start(&setup);
	for (uint32_t rank = 0; rank < 4; rank++)
		pids[rank] = rank_fork(rank);
	for (uint32_t rank = 2; rank < 4; rank++)
		assert_int_equal(train_job_join(pids[rank]), 128 + SIGKILL);
	scene->is_dead = true;
	events_wait(2);
	expect_sentence(0, expected, sentence);
	expect_sentence(1, expected, sentence);
	scene->is_second_life = true;
	for (uint32_t rank = 2; rank < 4; rank++)
		pids[rank] = rank_fork(rank);
	for (uint32_t rank = 0; rank < 4; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	ours = nodes_stop(&setup);
	floats_compare("parameter", ours.value, plain.values, plain.n_elements);
	union_free(&ours);
	result_free(&plain);
	scene_end();
}

static void test_ranks_time_out_for_a_killed_node_and_continue_with_its_successor(void **state)
{
	(void)state;
	kill_node(WEIGHTD_DEATH_WAIT, -ETIMEDOUT, "did not take part in step 6 within 0.4 s");
}

static void test_ranks_fail_at_once_for_a_killed_node_if_they_ask_for_it(void **state)
{
	(void)state;
	kill_node(WEIGHTD_DEATH_FAIL, -EOWNERDEAD, "in step 6");
}

/* Rank 1 dies between two steps, while rank 0 waits for something else. */
static int watching_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	if (!r)
		r = rank_step(&scene->setup, t);
	while (!r && my_rank == 1)
		(void)pause();
	event_send();
	while (!r && t->exchange.link.is_connected)
		link_watch(&t->exchange.link);
	if (!r)
		r = record(rank_step(&scene->setup, t));
	weightd_train_free(t);
	return r == -EOWNERDEAD ? 0 : rank_fail("watching_main", r);
}

static void test_a_loss_between_exchanges_fails_the_next_one_at_once(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_nodes = 2,
			      .n_ranks = 2,
			      .deadline_ms = 20000,
			      .on_death = WEIGHTD_DEATH_FAIL};
	pid_t pids[2];

	(void)state;
	scene_main = watching_main;
	scene_start(&setup);
	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = rank_fork(rank);
	events_wait(1);
	kill(pids[1], SIGKILL);
	assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
	assert_int_equal(train_job_join(pids[0]), 0);
	expect_sentence(0, -EOWNERDEAD, "lost its connection to another node in step 2: node 1: ");
	scene_stop();
}

/* --- Nodes that do not come ---------------------------------------------------------------------------- */

/* Until both have named it: one that is started late finds the other one gone otherwise. */
static int lonely_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	while (r == -ETIMEDOUT) {
		if (strstr(weightd_train_error(), "node 1 (its rank 0)"))
			scene->has_named[my_rank] = true;
		if (scene->has_named[0] && scene->has_named[2])
			break;
		r = weightd_train_begin(t);
		if (!scene->has_named[my_rank])
			(void)record(r);
	}

	weightd_train_free(t);
	return r == -ETIMEDOUT ? 0 : rank_fail("lonely_main", r);
}

static void test_a_node_that_does_not_come_is_named(void **state)
{
	struct setup setup = {.strategy = "shared", .n_nodes = 3, .n_ranks = 3, .deadline_ms = 300};

	(void)state;
	scene_main = lonely_main;
	scene_start(&setup);
	/* Nodes 0 and 2 are there, and both name node 1. */
	pid_t first = rank_fork(0), last = rank_fork(2);

	assert_int_equal(train_job_join(first), 0);
	assert_int_equal(train_job_join(last), 0);
	expect_sentence(0, -ETIMEDOUT,
			"node 1 (its rank 0) did not take part in the first values within 0.3 s");
	expect_sentence(2, -ETIMEDOUT, "node 1 (its rank 0)");
	expect_sentence(2, -ETIMEDOUT, "it did not meet the others at 127.");
	scene_stop();
}

static void on_signal(int signal)
{
	(void)signal;
}

/* The signal is sent until the wait has it: one that arrives before the wait does not interrupt it. */
static int interrupted_main(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct weightd_train *t;
	int r;

	if (sigaction(SIGUSR1, &action, NULL) < 0)
		return 1;
	event_send();
	r = scene_open(&t);
	if (my_rank == 0) {
		if (r != -EINTR)
			return rank_fail("not interrupted", r);
		event_send();
		while ((r = weightd_train_begin(t)) == -EINTR)
			;
	}
	while (!r && weightd_train_step(t) < 3)
		r = rank_step(&scene->setup, t);
	weightd_train_free(t);
	return r ? rank_fail("interrupted_main", r) : 0;
}

static void test_signals_interrupt_the_wait_for_a_node(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_nodes = 2,
			      .n_ranks = 2,
			      .deadline_ms = 30000,
			      .interruptible = true};
	pid_t pids[2];

	(void)state;
	scene_main = interrupted_main;
	scene_start(&setup);
	pids[0] = rank_fork(0);
	events_wait(1);
	while (scene->results[0] != -EINTR) {
		kill(pids[0], SIGUSR1);
		(void)poll(NULL, 0, 1);
	}
	events_wait(1);
	pids[1] = rank_fork(1);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[1]), 0);
	expect_sentence(0, -EINTR,
			"waited for node 1 (its rank 0) to take part in the first values");
	scene_stop();
}

/* Rank 1 of node 0 is killed while rank 0 waits for the other node. */
static int bereaved_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	weightd_train_free(t);
	return r == -EOWNERDEAD ? 0 : rank_fail("bereaved_main", r);
}

static enum control_topic topic_of(uint32_t rank, uint32_t *ret_rank)
{
	struct weightd_plan *plan = plan_make(&scene->setup);
	struct arena a = {.plan = plan, .layout = control_layout(plan)};
	uint64_t now = 0;

	a.journal = mmap(NULL, a.layout.size, PROT_READ, MAP_SHARED, jobs[0]->fds[0], 0);
	assert_ptr_not_equal(a.journal, MAP_FAILED);
	if (lseek(jobs[0]->fds[0], 0, SEEK_END) >= (off_t)a.layout.size)
		now = atomic_load(&arena_status(&a, rank)->now);
	(void)munmap(a.journal, a.layout.size);
	weightd_plan_free(plan);
	*ret_rank = control_activity_rank(now);
	return control_activity_phase(now) == CONTROL_WAITING ? control_activity_topic(now)
							      : CONTROL_UNNAMED;
}

static void test_a_death_in_the_node_ends_the_wait_for_another_one(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_nodes = 2,
			      .n_ranks = 4,
			      .deadline_ms = 60000,
			      .on_death = WEIGHTD_DEATH_FAIL};
	uint32_t node[2];
	pid_t pids[2];

	(void)state;
	scene_main = bereaved_main;
	scene_start(&setup);
	pids[1] = rank_fork(1);
	while (topic_of(1, &node[1]) != CONTROL_FIRST_VALUES)
		(void)usleep(1000);
	pids[0] = rank_fork(0); /* meets rank 1, whose death it would not notice otherwise */
	while (topic_of(0, &node[0]) != CONTROL_NODES || topic_of(1, &node[1]) != CONTROL_NODES)
		(void)usleep(1000);
	assert_int_equal(node[0], 1);
	assert_int_equal(node[1], 1);
	kill(pids[1], SIGKILL);
	assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
	assert_int_equal(train_job_join(pids[0]), 0);
	expect_sentence(0, -EOWNERDEAD, "rank 1 (process ");
	scene_stop();
}

/* Ranks 0 of both nodes end; then rank 1 of node 0 does, whose peer does not. */
static int ending_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	if (!r)
		r = rank_step(&scene->setup, t);
	if (!r && my_rank == 1) {
		t->place.deadline_ms = 200;
		(void)raise(SIGSTOP);
	}
	while (!r && my_rank == 3)
		(void)pause();
	if (!r)
		r = record(weightd_train_close(t));
	weightd_train_free(t);
	return r == (my_rank == 1 ? -ETIMEDOUT : 0) ? 0 : rank_fail("ending_main", r);
}

static void test_ranks_of_the_node_may_end_before_others(void **state)
{
	struct setup setup = {
		.strategy = "shared", .n_nodes = 2, .n_ranks = 4, .on_death = WEIGHTD_DEATH_FAIL};
	pid_t pids[4];
	int status;

	(void)state;
	scene_main = ending_main;
	scene_start(&setup);
	for (uint32_t rank = 0; rank < 4; rank++)
		pids[rank] = rank_fork(rank);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[2]), 0);
	assert_int_equal(waitpid(pids[1], &status, WUNTRACED), pids[1]);
	assert_true(WIFSTOPPED(status));
	kill(pids[1], SIGCONT);
	assert_int_equal(train_job_join(pids[1]), 0);
	expect_sentence(1, -ETIMEDOUT, "node 1 (its rank 1)");
	kill(pids[3], SIGKILL);
	assert_int_equal(train_job_join(pids[3]), 128 + SIGKILL);
	scene_stop();
}

/* A rank whose thread exchanges a bucket that the other node does not have. */
static int abandoned_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	while (!r && weightd_train_step(t) < 2)
		r = rank_step(&scene->setup, t);
	if (!r && my_rank == 0)
		rank_compute(&scene->setup, t);
	if (!r)
		weightd_train_free(t);
	return r ? rank_fail("abandoned_main", r) : 0;
}

static void test_a_trainer_ends_while_its_thread_waits_for_a_node(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_nodes = 2,
			      .n_ranks = 2,
			      .overlap = true,
			      .says_ready = true};
	pid_t pids[2];

	(void)state;
	scene_main = abandoned_main;
	scene_start(&setup);
	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = rank_fork(rank);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	scene_stop();
}

/* --- Nodes that do not fit ----------------------------------------------------------------------------- */

static int some_steps_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);
	uint64_t last;

	if (r)
		return 0;
	last = weightd_train_step(t) + 5;
	while (!r && weightd_train_step(t) < last)
		r = record(rank_step(&scene->setup, t));
	weightd_train_free(t);
	return 0;
}

static void run_both(void)
{
	pid_t pids[2];

	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = rank_fork(rank);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
}

static void job_renew(uint32_t node)
{
	train_job = jobs[node];
	train_job_stop();
	train_job_start(1);
	jobs[node] = train_job;
}

static void test_a_node_with_a_new_job_is_refused(void **state)
{
	struct setup setup = {.strategy = "shared", .n_nodes = 2, .n_ranks = 2, .deadline_ms = 20000};

	(void)state;
	scene_main = some_steps_main;
	scene_start(&setup);
	run_both();
	assert_int_equal(scene->results[0], 0);
	job_renew(1);
	run_both();
	expect_sentence(0, -EUCLEAN,
			"node 1 (its rank 0) is in the first values and node 0 in step 6");
	expect_sentence(1, -EUCLEAN, "load a checkpoint into new jobs on all nodes");
	scene_stop();
}

/* Node 1 has the first values, and waits for the fence behind them. */
static void line_set(uint64_t position)
{
	struct weightd_plan *plan = plan_make(&scene->setup);
	struct arena a = {.plan = plan, .layout = control_layout(plan)};

	a.journal = mmap(NULL, a.layout.size, PROT_READ | PROT_WRITE, MAP_SHARED, jobs[1]->fds[0],
			 0);
	assert_ptr_not_equal(a.journal, MAP_FAILED);
	atomic_store(&arena_rank(&a, 0)->line.value, position);
	(void)munmap(a.journal, a.layout.size);
	weightd_plan_free(plan);
}

static int begun_main(void)
{
	struct weightd_train *t;

	(void)scene_open(&t);
	weightd_train_free(t);
	return 0;
}

static void test_a_new_job_of_node_0_does_not_fill_again(void **state)
{
	struct setup setup = {.strategy = "shared", .n_nodes = 2, .n_ranks = 2, .deadline_ms = 20000};

	(void)state;
	scene_main = begun_main;
	scene_start(&setup);
	run_both();
	assert_int_equal(scene->results[0], 0);
	assert_int_equal(scene->results[1], 0);
	line_set(control_exchange(0, control_values(0, CONTROL_SEND)));
	job_renew(0);
	run_both();
	for (uint32_t rank = 0; rank < 2; rank++)
		expect_sentence(rank, -EUCLEAN,
				"node 0 (its rank 0) is in the first values and node 1 in the end of "
				"the first values");
	scene_stop();
}

/* Values may not be written while the next step's gradients go to other nodes. */
static int writing_main(void)
{
	struct weightd_train *t;
	int r = scene_open(&t);

	for (int i = 0; !r && i < 3; i++) {
		double lr[N_GROUPS];
		uint64_t cursor;
		struct weightd_update u = rank_arguments(&scene->setup, t, lr, &cursor);

		rank_compute(&scene->setup, t);
		if (record(weightd_train_write_begin(t)) != -EINVAL)
			return rank_fail("not refused", scene->results[my_rank]);
		r = weightd_train_update(t, &u);
	}
	if (!r)
		r = weightd_train_write_begin(t);
	if (!r)
		r = weightd_train_write_end(t);
	if (!r)
		r = weightd_train_close(t);
	weightd_train_free(t);
	return r ? rank_fail("writing_main", r) : 0;
}

static void test_values_are_not_written_while_gradients_are_exchanged(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_nodes = 2,
			      .n_ranks = 2,
			      .overlap = true,
			      .says_ready = true,
			      .deadline_ms = 20000};

	(void)state;
	scene_main = writing_main;
	scene_start(&setup);
	run_both();
	for (uint32_t rank = 0; rank < 2; rank++)
		expect_sentence(rank, -EINVAL, "gradients of step 3 were handed over");
	scene_stop();
}

static int other_plan_main(void)
{
	has_other_plan = my_rank == 1;
	return some_steps_main();
}

static void test_another_plan_is_refused_by_its_difference(void **state)
{
	struct setup setup = {.strategy = "shared", .n_nodes = 2, .n_ranks = 2, .deadline_ms = 20000};

	(void)state;
	for (int has_pairs = 0; has_pairs < 2; has_pairs++) { /* Gloo, too */
		scene_main = other_plan_main;
		scene_start(&setup);
		scene->has_pairs = has_pairs;
		run_both();
		expect_sentence(0, -EPROTOTYPE, "node 0 and node 1 have different plans: ");
		expect_sentence(1, -EPROTOTYPE, "node 1 and node 0 have different plans: ");
		assert_non_null(strstr(scene->sentences[1], "optimizer"));
		scene_stop();
	}
}

static void open_refused(const struct weightd_nodes *nodes, enum weightd_on_death on_death,
			 uint32_t n_nodes, const char *sentence)
{
	struct setup setup = {.strategy = "shared", .n_nodes = n_nodes, .n_ranks = 4};
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.nodes = nodes,
						.on_death = on_death};
	struct weightd_plan *plan = plan_make(&setup);
	struct weightd_train *t;

	assert_int_equal(weightd_train_open(NULL, plan, &options, &t), -EINVAL);
	if (!strstr(weightd_train_error(), sentence))
		fail_msg("'%s' is not in '%s'", sentence, weightd_train_error());
	weightd_plan_free(plan);
}

static void test_places_that_cannot_be_are_refused(void **state)
{
	struct weightd_nodes nodes = {
		.size = sizeof(nodes), .address = "127.0.0.1", .port = 1, .node = 1};

	(void)state;
	open_refused(&nodes, WEIGHTD_DEATH_FINISH, 2, "WEIGHTD_DEATH_FINISH is for one node");
	open_refused(&nodes, WEIGHTD_DEATH_WAIT, 1, "there is no node 1: the plan has 1 node");
	nodes.node = 2;
	open_refused(&nodes, WEIGHTD_DEATH_WAIT, 2, "there is no node 2: the plan has 2 nodes");
	nodes.node = 0;
	nodes.address = NULL;
	unsetenv("MASTER_ADDR");
	unsetenv("MASTER_PORT");
	open_refused(&nodes, WEIGHTD_DEATH_WAIT, 2, "$MASTER_ADDR");
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	nodes.port = 0;
	open_refused(&nodes, WEIGHTD_DEATH_WAIT, 2, "set $MASTER_PORT");
	setenv("MASTER_PORT", "65535", 1);
	open_refused(&nodes, WEIGHTD_DEATH_WAIT, 2, "choose a lower port");
	open_refused(NULL, WEIGHTD_DEATH_WAIT, 2, "$GROUP_RANK is not set");
}

/* --- Bytes --------------------------------------------------------------------------------------------- */

static int counting_main(void)
{
	struct weightd_traffic planned = {.size = sizeof(planned)}, before, after;
	struct weightd_train *t;
	int r = scene_open(&t);

	before = after = planned;
	if (!r)
		r = weightd_plan_traffic(weightd_train_plan(t), my_rank, &planned);
	while (!r && weightd_train_step(t) < 5) {
		(void)weightd_train_traffic(t, &before);
		r = rank_step(&scene->setup, t);
		(void)weightd_train_traffic(t, &after);
		if (after.sent - before.sent != planned.sent) {
			fprintf(stderr, "rank %u sent %llu bytes, planned %llu\n", my_rank,
				(unsigned long long)(after.sent - before.sent),
				(unsigned long long)planned.sent);
			return 1;
		}
	}
	if (!r)
		r = weightd_train_close(t);
	weightd_train_free(t);
	return r ? rank_fail("counting_main", r) : 0;
}

static void test_ranks_send_what_the_plan_says(void **state)
{
	static const struct setup setups[] = {
		{.strategy = "shared", .n_nodes = 2, .n_ranks = 2},
		{.strategy = "zero1", .n_nodes = 3, .n_ranks = 3, .overlap = true},
		{.strategy = "replicated", .n_nodes = 2, .n_ranks = 4, .overlap = true},
		{.strategy = "shared", .n_nodes = 2, .n_ranks = 4, .sync_every = 1},
		{.strategy = "shared", .n_nodes = 4, .n_ranks = 4, .dtype = WEIGHTD_BF16},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		pid_t pids[RANKS_MAX];

		scene_main = counting_main;
		scene_start(&setups[i]);
		scene->has_pairs = true;
		for (uint32_t rank = 0; rank < setups[i].n_ranks; rank++)
			pids[rank] = rank_fork(rank);
		for (uint32_t rank = 0; rank < setups[i].n_ranks; rank++)
			assert_int_equal(train_job_join(pids[rank]), 0);
		scene_stop();
	}
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(
			test_ranks_time_out_for_a_killed_node_and_continue_with_its_successor),
		cmocka_unit_test(test_ranks_fail_at_once_for_a_killed_node_if_they_ask_for_it),
		cmocka_unit_test(test_a_loss_between_exchanges_fails_the_next_one_at_once),
		cmocka_unit_test(test_a_node_that_does_not_come_is_named),
		cmocka_unit_test(test_signals_interrupt_the_wait_for_a_node),
		cmocka_unit_test(test_a_death_in_the_node_ends_the_wait_for_another_one),
		cmocka_unit_test(test_ranks_of_the_node_may_end_before_others),
		cmocka_unit_test(test_a_trainer_ends_while_its_thread_waits_for_a_node),
		cmocka_unit_test(test_a_node_with_a_new_job_is_refused),
		cmocka_unit_test(test_a_new_job_of_node_0_does_not_fill_again),
		cmocka_unit_test(test_values_are_not_written_while_gradients_are_exchanged),
		cmocka_unit_test(test_another_plan_is_refused_by_its_difference),
		cmocka_unit_test(test_places_that_cannot_be_are_refused),
		cmocka_unit_test(test_ranks_send_what_the_plan_says),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
