/*
 * Tests of passes that are repeated, by a rank that was killed or interrupted, and of others meanwhile
 *
 * A rank is killed before it publishes a certain exchange, whose bytes it has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <time.h>

#include "tests/unit/train_node_jobs.h"

/* A run; shared by its processes. */
struct scene {
	struct setup setup;
	uint32_t victim; /* of the mesh */
	uint64_t position; /* that it is killed at */
	_Atomic unsigned n_lives; /* of the victim */
	_Atomic bool closes; /* the victim, in its second life */
	_Atomic unsigned n_interrupted; /* calls */
};

static struct scene *scene;
static const struct weightd_train *own; /* of this process, if it is the victim in its first life */
static _Atomic bool has_memory = true;

/* --- Wrapped ------------------------------------------------------------------------------------------- */

void __real_wait_publish(struct control_word *word, uint64_t value);
void __wrap_wait_publish(struct control_word *word, uint64_t value);
void *__real_reallocarray(void *memory, size_t n, size_t size);
void *__wrap_reallocarray(void *memory, size_t n, size_t size);

void __wrap_wait_publish(struct control_word *word, uint64_t value)
{
	if (own && value == scene->position && word == &trainer_words(own)->line)
		(void)kill(getpid(), SIGKILL);
	__real_wait_publish(word, value);
}

void *__wrap_reallocarray(void *memory, size_t n, size_t size)
{
	return has_memory ? __real_reallocarray(memory, n, size) : NULL;
}

/* --- Runs ---------------------------------------------------------------------------------------------- */

static void scene_start(const struct setup *setup, uint32_t victim, uint64_t position)
{
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_ptr_not_equal(scene, MAP_FAILED);
	*scene = (struct scene){.setup = *setup, .victim = victim, .position = position};
	nodes_start(&scene->setup);
}

/* The bits are those of a plain loop. */
static void scene_stop(void)
{
	struct union_result ours = nodes_stop(&scene->setup);
	struct result plain = oracle_run(&scene->setup);

	floats_compare("parameter", ours.value, plain.values, plain.n_elements);
	union_free(&ours);
	result_free(&plain);
	(void)munmap(scene, sizeof(*scene));
	scene = NULL;
}

/* The values do not matter. */
static void scene_abandon(void)
{
	for (uint32_t node = 0; node < nodes_of(&scene->setup); node++) {
		train_job = jobs[node];
		train_job_stop();
	}
	places_stop(&scene->setup);
	(void)munmap(scene, sizeof(*scene));
}

static int node_main(uint32_t rank, void *data)
{
	if (rank == scene->victim)
		scene->n_lives++;
	return node_run(&scene->setup, rank, &scene->setup, false, (int (*)(uint32_t, void *))data);
}

static void run_once(int (*fn)(uint32_t rank, void *data))
{
	pid_t pids[RANKS_MAX];

	for (uint32_t rank = 0; rank < scene->setup.n_ranks; rank++)
		pids[rank] = train_job_fork(node_main, rank, (void *)fn);
	for (uint32_t rank = 0; rank < scene->setup.n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
}

/* Starts all ranks, and the victim once more. */
static void run_twice(int (*fn)(uint32_t rank, void *data))
{
	pid_t pids[RANKS_MAX];

	for (uint32_t rank = 0; rank < scene->setup.n_ranks; rank++)
		pids[rank] = train_job_fork(node_main, rank, (void *)fn);
	assert_int_equal(train_job_join(pids[scene->victim]), 128 + SIGKILL);
	pids[scene->victim] = train_job_fork(node_main, scene->victim, (void *)fn);
	for (uint32_t i = scene->setup.n_ranks; i-- > 0;)
		assert_int_equal(train_job_join(pids[i]), 0);
}

static void await_link(struct weightd_train *t)
{
	struct link *l = &t->exchange.link;
	bool is_connected = false;

	while (!is_connected) {
		(void)usleep(1000);
		pthread_mutex_lock(&l->lock);
		is_connected = l->is_connected;
		pthread_mutex_unlock(&l->lock);
	}
}

/* --- Repeated passes ----------------------------------------------------------------------------------- */

static bool is_slow; /* the successor: its thread serves others before it lacks parameters */

static void before_step(struct weightd_train *t)
{
	if (rank_of(t) != scene->victim)
		return;
	if (scene->n_lives == 1)
		own = t;
	else if (is_slow && control_exchange_step(trainer_word(&trainer_words(t)->line)) ==
				    weightd_train_step(t) + 1)
		await_link(t);
}

static const struct setup shapes[] = {
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 2},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4, .without_prefetch = true},
	{.strategy = "zero3", .n_nodes = 3, .n_ranks = 3, .keeps_units = true},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2, .is_blind = true},
};

static uint32_t count_exchanges(const struct setup *setup)
{
	struct weightd_plan *plan = plan_make(setup);
	uint32_t n = plan->n_exchanges;

	weightd_plan_free(plan);
	return n;
}

static void expect_repeated(const struct setup *shape, uint32_t index)
{
	struct setup setup = *shape;

	setup.before_step = before_step;
	scene_start(&setup, index % setup.n_ranks, control_exchange(3, CONTROL_PASSES + index));
	run_twice(rank_main);
	scene_stop();
}

static void test_passes_are_repeated_from_any_exchange_on(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		uint32_t n = count_exchanges(&shapes[i]);
		uint32_t stride = is_long_form() ? (i ? 4 : 1) : (i ? 11 : 3);

		for (uint32_t index = 1 + (uint32_t)i; index <= n; index += stride)
			expect_repeated(&shapes[i], index);
	}
}

static void test_a_rank_serves_others_before_it_lacks_parameters(void **state)
{
	(void)state;
	is_slow = true;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		expect_repeated(&shapes[i], 2 + (uint32_t)i);
	is_slow = false;
}

/* Ranks gather the last unit before the passes of step 3. */
static void evaluate_last(struct weightd_train *t)
{
	uint32_t last = weightd_plan_n_units(weightd_train_plan(t)) - 1;

	before_step(t);
	if (weightd_train_step(t) != 2)
		return;
	assert(weightd_train_unit_open(t, last, WEIGHTD_PASS_EVALUATION) == 0);
	assert(weightd_train_unit_close(t, last) == 0);
}

/* The other rank has begun its passes by then, with another unit. */
static void test_an_evaluation_is_repeated_from_its_last_exchange_on(void **state)
{
	const struct setup setup = {.strategy = "zero3",
				    .n_nodes = 2,
				    .n_ranks = 2,
				    .without_prefetch = true,
				    .before_step = evaluate_last};

	(void)state;
	scene_start(&setup, 1, control_exchange(3, 1));
	run_twice(rank_main);
	scene_stop();
}

/* --- Those that serve ---------------------------------------------------------------------------------- */

/*
 * Behind the last step a unit is opened. Node 0 is busy with it, and node 1 closes, when the victim, which was killed before it
 * had the unit, asks for it again.
 */
static int evaluate(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	int r = 0;

	while (!r && weightd_train_step(t) < N_STEPS)
		r = rank_step(setup, t);
	if (rank == scene->victim && scene->n_lives == 1)
		own = t;
	if (!r)
		r = weightd_train_unit_open(t, 0, WEIGHTD_PASS_EVALUATION);
	if (!r)
		r = weightd_train_unit_close(t, 0);
	if (r < 0)
		return rank_fail("evaluation", r);
	if (rank == scene->victim)
		scene->closes = true;
	while (rank_of(t) == 0 && !scene->closes)
		(void)usleep(1000);
	if (rank_of(t) == 0)
		await_link(t);
	if (weightd_train_close(t) < 0)
		return rank_fail("close", 0);
	weightd_train_free(t);
	return 0;
}

static void test_a_rank_that_serves_is_not_taken_for_one_that_is_apart(void **state)
{
	const struct setup setup = {
		.strategy = "zero3", .n_nodes = 3, .n_ranks = 3, .without_prefetch = true};

	(void)state;
	scene_start(&setup, 2, control_exchange(N_STEPS + 1, 1));
	run_twice(evaluate);
	scene_stop();
}

/* --- Those that are open ------------------------------------------------------------------------------- */

/* Another rank could fetch into the room that this one still reads. */
static void begin_in_evaluation(struct weightd_train *t)
{
	assert(weightd_train_unit_open(t, 0, WEIGHTD_PASS_EVALUATION) == 0);
	assert(weightd_train_bucket_open(t, 0) == -EINVAL);
	assert(weightd_train_unit_close(t, 0) == 0);
}

static void test_passes_do_not_begin_in_a_unit_of_an_evaluation(void **state)
{
	const struct setup setup = {
		.strategy = "zero3", .n_nodes = 2, .n_ranks = 2, .before_step = begin_in_evaluation};

	(void)state;
	scene_start(&setup, UINT32_MAX, 0);
	run_once(rank_main);
	scene_stop();
}

/* --- Without memory ------------------------------------------------------------------------------------ */

/* The first request of a step finds no room. */
static int ready_twice(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	uint32_t deep = N_TENSORS - 1;

	if (weightd_train_bucket_open(t, 0) < 0)
		return rank_fail("open", 0);
	tensor_compute(setup, t, deep);
	has_memory = false;
	if (weightd_train_ready(t, deep) != -ENOMEM)
		return rank_fail("ready without memory", 0);
	has_memory = true;
	if (weightd_train_ready(t, deep) < 0 || weightd_train_bucket_open(t, 1) < 0)
		return rank_fail("ready", 0);
	weightd_train_free(t);
	return 0;
}

static void test_a_bucket_is_handed_over_once_there_is_memory(void **state)
{
	const struct setup setup = {.strategy = "zero2", .n_ranks = 1};
	pid_t pid;

	(void)state;
	scene_start(&setup, UINT32_MAX, 0);
	pid = train_job_fork(node_main, 0, (void *)ready_twice);
	assert_int_equal(train_job_join(pid), 0);
	scene_abandon();
}

/* --- Signals ------------------------------------------------------------------------------------------- */

#define SIGNAL_NS 200000

static timer_t timer; /* of this process */

static void ignore_signal(int number)
{
	(void)number;
}

static void signals_init(void)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};

	assert(sigaction(SIGUSR1, &action, NULL) == 0);
	assert(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
}

static void signal_soon(void)
{
	struct itimerspec once = {.it_value = {0, SIGNAL_NS}};

	assert(timer_settime(timer, 0, &once, NULL) == 0);
}

/* The result of a call that a signal may interrupt, once. */
#define UNINTERRUPTED(call)                                                                        \
	({                                                                                         \
		int result;                                                                        \
		signal_soon();                                                                     \
		do                                                                                 \
			result = call;                                                             \
		while (result == -EINTR && ++scene->n_interrupted);                                \
		result;                                                                            \
	})

static int open_and_close(struct weightd_train *t, uint32_t unit)
{
	int r = UNINTERRUPTED(weightd_train_unit_open(t, unit, WEIGHTD_PASS_FORWARD));

	return r < 0 ? r : weightd_train_unit_close(t, unit);
}

/* A unit of the test's model has one tensor. */
static int bucket_interrupted(const struct setup *setup, struct weightd_train *t, uint32_t bucket)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	uint32_t unit = plan_unit_of_bucket(p, bucket), tensor = 0;
	int r = UNINTERRUPTED(weightd_train_unit_open(t, unit, WEIGHTD_PASS_BACKWARD));

	if (!r)
		r = UNINTERRUPTED(weightd_train_bucket_open(t, bucket));
	while (!plan_is_trained(&p->tensors[tensor]) || p->tensors[tensor].unit != unit)
		tensor++;
	if (r < 0)
		return r;
	tensor_compute(setup, t, tensor);
	r = weightd_train_ready(t, tensor);
	return r < 0 ? r : weightd_train_unit_close(t, unit);
}

static int step_interrupted(const struct setup *setup, struct weightd_train *t)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u = rank_arguments(setup, t, lr, &cursor);
	int r = 0;

	for (uint32_t unit = 0; !r && unit < p->n_units; unit++)
		r = open_and_close(t, unit);
	for (uint32_t i = 0; !r && i < p->n_buckets; i++)
		r = bucket_interrupted(setup, t, i);
	if (r < 0)
		return r;
	do
		r = weightd_train_update(t, &u);
	while (r == -EINTR);
	return r;
}

static int interrupted_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	rank_record(t);
	signals_init();
	while (weightd_train_step(t) < N_STEPS) {
		int r = step_interrupted(setup, t);

		if (r < 0)
			return rank_fail("step", r);
	}
	if (weightd_train_close(t) < 0)
		return rank_fail("close", 0);
	weightd_train_free(t);
	return 0;
}

static void test_calls_are_repeated_after_signals(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct setup setup = shapes[i];

		setup.interruptible = true;
		scene_start(&setup, UINT32_MAX, 0);
		run_once(interrupted_main);
		assert_true(scene->n_interrupted);
		scene_stop();
	}
}

/* --- Words of others ----------------------------------------------------------------------------------- */

static int read_asked(uint32_t rank, void *data)
{
	struct weightd_train *t = rank_open(data, rank);

	for (uint64_t code = 0; code < 4; code++) {
		trainer_words(t)->asked[0][1] = 4 * (uint64_t)UINT32_MAX + code;
		if (exchange_op(t, control_exchange(1, 1)))
			return 1;
	}
	weightd_train_free(t);
	return 0;
}

static void test_words_that_were_overwritten_name_no_exchange(void **state)
{
	(void)state;
	scene_start(&shapes[3], UINT32_MAX, 0);
	run_once(read_asked);
	scene_abandon();
}

/* --- Small models -------------------------------------------------------------------------------------- */

/* Shards, pieces and units of some ranks and nodes are empty. */
static const struct setup small_models[] = {
	{.strategy = "zero2", .n_nodes = 1, .n_ranks = 4},
	{.strategy = "zero2", .n_nodes = 2, .n_ranks = 4, .max_norm = 0.5},
	{.strategy = "zero2", .n_nodes = 4, .n_ranks = 4, .has_unused = true},
	{.strategy = "zero2", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2, .is_blind = true},
	{.strategy = "zero3", .n_nodes = 1, .n_ranks = 4},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4, .max_norm = 0.5},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4, .is_one_unit = true},
	{.strategy = "zero3", .n_nodes = 3, .n_ranks = 3, .nan_step = 5, .dtype = WEIGHTD_BF16},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .has_unused = true},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2, .is_blind = true},
};

static void test_models_with_less_than_a_block_for_each_rank_leave_the_same_bits(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(small_models); i++) {
		struct setup setup = small_models[i];

		if (!is_some_pair(i, 0, 1))
			continue;
		setup.is_small = true;
		scene_start(&setup, UINT32_MAX, 0);
		run_once(rank_main);
		scene_stop();
	}
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_passes_are_repeated_from_any_exchange_on),
		cmocka_unit_test(test_a_rank_serves_others_before_it_lacks_parameters),
		cmocka_unit_test(test_an_evaluation_is_repeated_from_its_last_exchange_on),
		cmocka_unit_test(test_passes_do_not_begin_in_a_unit_of_an_evaluation),
		cmocka_unit_test(test_words_that_were_overwritten_name_no_exchange),
		cmocka_unit_test(test_calls_are_repeated_after_signals),
		cmocka_unit_test(
			test_models_with_less_than_a_block_for_each_rank_leave_the_same_bits),
		cmocka_unit_test(test_a_bucket_is_handed_over_once_there_is_memory),
		cmocka_unit_test(test_a_rank_that_serves_is_not_taken_for_one_that_is_apart),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
