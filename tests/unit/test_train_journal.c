/*
 * Tests the journal: an update that is killed anywhere continues to the same bits
 */
#include "libclient/train/journal.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "libclient/train/optimizer.h"
#include "libclient/train/plan/strategy.h"

#define N_STEPS 40
#define N_COPIES 2
#define N_GROUPS 2

/* One rank of two; gradients of both are made from PARAM, so that a torn step has consequences. */
struct scene {
	struct weightd_plan plan;
	struct weightd_group groups[N_GROUPS];
	struct plan_run runs[3];
	struct arena arena;
	struct plan_piece piece;
	struct plan_pieces updates;
	void *params[N_COPIES];
	float *grads[2];
	struct journal_step step;
	size_t size; /* of a copy of PARAM */
	uint8_t *values; /* all that a kill must not change: copies, moments */
	size_t values_size;
};

static void *memory_new(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static void *range_take(uint8_t **at, size_t size)
{
	void *range = *at;

	*at += size;
	return range;
}

static void scene_init_typed(struct scene *s, enum weightd_dtype dtype,
			     enum weightd_optimizer optimizer, uint32_t n_moments,
			     uint64_t n_elements, bool without_journal)
{
	struct weightd_plan *p = &s->plan;
	size_t range = n_elements * sizeof(float);
	float *value;
	uint8_t *at;

	memset(s, 0, sizeof(*s));
	for (uint32_t i = 0; i < N_GROUPS; i++)
		s->groups[i] = (struct weightd_group){.size = sizeof(s->groups[i]),
						      .weight_decay = 0.01 * i,
						      .beta1 = 0.9,
						      .beta2 = 0.99,
						      .eps = 1e-8,
						      .momentum = n_moments ? 0.9 : 0};
	/* The runs change inside of blocks, and the rank's range begins and ends inside of them. */
	s->runs[0] = (struct plan_run){{0, 512}, 0};
	s->runs[1] = (struct plan_run){{512, 512 + PLAN_BLOCK + 48}, 1};
	s->runs[2] = (struct plan_run){{512 + PLAN_BLOCK + 48, n_elements + 64}, 0};
	*p = (struct weightd_plan){
		.n_ranks = 2,
		.strategy = "zero1",
		.row = strategy_find("zero1"),
		.optimizer = optimizer,
		.form = WEIGHTD_STEP_FUSED,
		.without_journal = without_journal,
		.n_copies = N_COPIES,
		.n_moments = n_moments,
		.n_slots = 1,
		.param_dtype = dtype,
		.grad_dtype = WEIGHTD_F32,
		.state_size = 64,
		.groups = s->groups,
		.n_groups = N_GROUPS,
		.n_elements = n_elements + 64,
		.runs = s->runs,
		.n_runs = 3,
	};
	s->arena = (struct arena){
		.plan = p,
		.rank = 0,
		.layout = control_layout(p),
		.params = s->params,
		.updated = {32, 32 + n_elements},
		.updates = &s->updates,
	};
	s->piece = (struct plan_piece){.interval = s->arena.updated, .at = s->arena.updated.begin};
	s->updates = (struct plan_pieces){.pieces = &s->piece, .n = 1, .n_elements = n_elements};
	s->arena.journal = memory_new(s->arena.layout.size);
	s->size = n_elements * plan_element_size(p, WEIGHTD_KIND_PARAM);
	s->values_size = s->size * N_COPIES + range * (n_moments + plan_has_master(p));
	at = s->values = memory_new(s->values_size);
	if (plan_has_master(p))
		s->arena.master = range_take(&at, range);
	for (uint32_t i = 0; i < N_COPIES; i++)
		s->params[i] = range_take(&at, s->size);
	for (uint32_t i = 0; i < n_moments; i++)
		s->arena.moments[i] = range_take(&at, range);
	for (uint32_t i = 0; i < 2; i++)
		s->grads[i] = memory_new(p->n_elements * sizeof(float));
	value = plan_has_master(p) ? s->arena.master : s->params[0];
	for (uint64_t k = 0; k < n_elements; k++)
		value[k] = (float)(k % 97) / 97 - 0.5f;
	for (uint32_t i = plan_has_master(p) ? 0 : 1; i < N_COPIES; i++)
		kernels_get()->round(s->params[i], optimizer_type(dtype), value, n_elements);
}

static void scene_init(struct scene *s, enum weightd_optimizer optimizer, uint32_t n_moments,
		       uint64_t n_elements, bool without_journal)
{
	scene_init_typed(s, WEIGHTD_F32, optimizer, n_moments, n_elements, without_journal);
}

static void scene_deinit(struct scene *s)
{
	munmap(s->arena.journal, s->arena.layout.size);
	munmap(s->values, s->values_size);
	for (uint32_t i = 0; i < 2; i++)
		munmap(s->grads[i], s->plan.n_elements * sizeof(float));
}

static uint64_t word_get(struct control_word *word)
{
	return atomic_load_explicit(&word->value, memory_order_acquire);
}

static void word_set(struct control_word *word, uint64_t value)
{
	atomic_store_explicit(&word->value, value, memory_order_release);
}

static void scene_compute(struct scene *s)
{
	uint64_t first = s->arena.updated.begin, n = s->arena.updated.end - first;
	enum kernel_type type = optimizer_type(s->plan.param_dtype);

	for (uint32_t i = 0; i < 2; i++)
		kernels_get()->widen(s->grads[i] + first, s->params[i], type, n);
	for (uint64_t k = first; k < first + n; k++) {
		s->grads[0][k] = s->grads[0][k] * 0.7f + 0.01f;
		s->grads[1][k] = s->grads[1][k] * s->grads[1][k] - 0.3f;
	}
}

/* Trains to the last step from wherever the words are. `kernels`: others than the machine's. */
static void scene_train(struct scene *s, uint64_t n_steps, const struct kernels *kernels)
{
	struct control_rank *words = arena_rank(&s->arena, 0);

	while (word_get(&words->param) < n_steps) {
		uint64_t step = word_get(&words->param) + 1;
		double lr[N_GROUPS] = {0.01 / (double)step, 0.02};

		if (word_get(&words->grad) < step) {
			scene_compute(s);
			word_set(&words->grad, step);
		}
		optimizer_begin(&s->step, &s->plan, lr, step);
		optimizer_weigh(&s->step, (double[]){1, 3}, 2, 0, 2);
		for (uint32_t i = 0; i < 2; i++)
			s->step.grads[i] = s->grads[i];
		if (kernels)
			s->step.kernels = kernels;
		journal_update(&s->arena, 0, step, &s->step);
		word_set(&words->param, step);
	}
}

/* A life of the rank: true if it ended by itself within the time. */
static bool scene_live(struct scene *s, uint64_t n_steps, const struct kernels *kernels,
		       int64_t life_ns)
{
	pid_t pid = fork();
	int status, fd;

	assert_true(pid >= 0);
	if (!pid) {
		scene_train(s, n_steps, kernels);
		_exit(0);
	}
	fd = pidfd_open(pid, 0);
	assert_true(fd >= 0);
	if (life_ns >= 0) {
		struct timespec life = {life_ns / 1000000000, life_ns % 1000000000};

		(void)ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, &life, NULL);
		kill(pid, SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(fd);
	if (WIFSIGNALED(status))
		assert_int_equal(WTERMSIG(status), SIGKILL);
	else
		assert_int_equal(WEXITSTATUS(status), 0);
	return WIFEXITED(status);
}

static bool scene_is_inside(const struct scene *s)
{
	struct control_rank *words = arena_rank(&s->arena, 0);

	return word_get(&words->grad) > word_get(&words->param) &&
	       control_journal_step(word_get(&words->journal)) == word_get(&words->grad);
}

/*
 * Kills at random until the last step; returns how many kills hit an update. Lives grow where they are too short for
 * this machine to do anything.
 */
static unsigned scene_kill_at_random(struct scene *s, unsigned seed)
{
	struct control_word *journal = &arena_rank(&s->arena, 0)->journal;
	unsigned n_inside = 0;
	int64_t life_ns = 1000000;

	srand(seed);
	for (;;) {
		uint64_t before = word_get(journal);

		if (scene_live(s, N_STEPS, NULL, life_ns / 2 + rand() % life_ns))
			return n_inside;
		n_inside += scene_is_inside(s);
		if (word_get(journal) == before)
			life_ns += life_ns / 2;
	}
}

static void test_killed_update_continues_to_the_same_bits(void **state)
{
	struct scene whole;
	unsigned n_inside = 0;

	(void)state;
	scene_init(&whole, WEIGHTD_ADAMW, 2, 40 * PLAN_BLOCK + 1056, false);
	scene_train(&whole, N_STEPS, NULL);
	for (unsigned seed = 0; seed < 10 || !n_inside; seed++) {
		struct scene killed;

		scene_init(&killed, WEIGHTD_ADAMW, 2, 40 * PLAN_BLOCK + 1056, false);
		n_inside += scene_kill_at_random(&killed, seed);
		assert_memory_equal(whole.values, killed.values, whole.values_size);
		scene_deinit(&killed);
	}
	print_message("%u kills inside an update\n", n_inside);
	scene_deinit(&whole);
}

/* --- Kills at every call of a kernel --------------------------------------------------------------- */

static struct {
	const struct kernels *kernels;
	unsigned n_calls, fatal; /* the call that dies half-way, from 1 on */
} mortal;

static size_t mortal_part(size_t n, size_t multiple)
{
	return ++mortal.n_calls == mortal.fatal ? n / 2 / multiple * multiple : n;
}

static void mortal_end(void)
{
	if (mortal.n_calls == mortal.fatal)
		raise(SIGKILL);
}

static void mortal_adam(const struct kernel_adam *k, const struct kernel_grads *g,
			const struct kernel_state *s, size_t n)
{
	mortal.kernels->adam(k, g, s, mortal_part(n, 32));
	mortal_end();
}

static void mortal_sgd(const struct kernel_sgd *k, const struct kernel_grads *g,
		       const struct kernel_state *s, size_t n)
{
	mortal.kernels->sgd(k, g, s, mortal_part(n, 32));
	mortal_end();
}

static void mortal_copy(void *to, const void *from, size_t n_bytes, bool stream)
{
	mortal.kernels->copy(to, from, mortal_part(n_bytes, 64), stream);
	mortal_end();
}

static const struct kernels mortal_kernels = {
	.isa = "mortal", .adam = mortal_adam, .sgd = mortal_sgd, .copy = mortal_copy};

/* Kills the rank in each call of a kernel in turn; the values that 3 steps leave must be those of no kill. */
static void kill_at_every_call(enum weightd_dtype dtype, enum weightd_optimizer optimizer,
			       uint32_t n_moments)
{
	struct scene whole;
	bool is_done = false;

	mortal.kernels = kernels_get();
	scene_init_typed(&whole, dtype, optimizer, n_moments, 2 * PLAN_BLOCK + 96, false);
	scene_train(&whole, 3, NULL);
	for (unsigned fatal = 1; !is_done; fatal++) {
		struct scene killed;

		scene_init_typed(&killed, dtype, optimizer, n_moments, 2 * PLAN_BLOCK + 96, false);
		mortal.fatal = fatal;
		is_done = scene_live(&killed, 3, &mortal_kernels, -1);
		mortal.fatal = 0;
		assert_true(scene_live(&killed, 3, &mortal_kernels, -1));
		assert_memory_equal(whole.values, killed.values, whole.values_size);
		assert_true(!is_done || fatal > 3 * 3 * 3);
		scene_deinit(&killed);
	}
	scene_deinit(&whole);
}

static void test_each_call_may_be_the_last_of_adamw(void **state)
{
	(void)state;
	kill_at_every_call(WEIGHTD_F32, WEIGHTD_ADAMW, 2);
}

static void test_each_call_may_be_the_last_of_sgd(void **state)
{
	(void)state;
	kill_at_every_call(WEIGHTD_F32, WEIGHTD_SGD, 1);
	kill_at_every_call(WEIGHTD_F32, WEIGHTD_SGD, 0);
}

static void test_each_call_may_be_the_last_of_16_bits(void **state)
{
	(void)state;
	kill_at_every_call(WEIGHTD_BF16, WEIGHTD_ADAMW, 2);
	kill_at_every_call(WEIGHTD_F16, WEIGHTD_SGD, 0);
}

/* --- Controls --------------------------------------------------------------------------------------- */

static void test_without_journal_the_values_differ(void **state)
{
	struct scene whole, killed;

	(void)state;
	mortal.kernels = kernels_get();
	scene_init(&whole, WEIGHTD_ADAMW, 2, 2 * PLAN_BLOCK + 96, true);
	scene_train(&whole, 3, NULL);
	scene_init(&killed, WEIGHTD_ADAMW, 2, 2 * PLAN_BLOCK + 96, true);
	mortal.fatal = 2;
	assert_false(scene_live(&killed, 3, &mortal_kernels, -1));
	mortal.fatal = 0;
	assert_true(scene_live(&killed, 3, &mortal_kernels, -1));
	assert_memory_not_equal(whole.values, killed.values, whole.values_size);
	scene_deinit(&whole);
	scene_deinit(&killed);
}

static void test_an_update_that_is_done_is_not_done_again(void **state)
{
	struct scene once, twice;

	(void)state;
	for (int without_journal = 0; without_journal < 2; without_journal++) {
		scene_init(&once, WEIGHTD_ADAMW, 2, 2 * PLAN_BLOCK + 96, without_journal);
		scene_init(&twice, WEIGHTD_ADAMW, 2, 2 * PLAN_BLOCK + 96, without_journal);
		scene_train(&once, 3, NULL);
		scene_train(&twice, 3, NULL);
		/* Not committed: an exchange of several nodes failed behind it. */
		word_set(&arena_rank(&twice.arena, 0)->param, 2);
		scene_train(&twice, 3, NULL);
		assert_memory_equal(once.values, twice.values, once.values_size);
		scene_deinit(&once);
		scene_deinit(&twice);
	}
}

static void test_journal_changes_no_bits(void **state)
{
	static const enum weightd_dtype dtypes[] = {WEIGHTD_F32, WEIGHTD_BF16, WEIGHTD_F16};
	struct scene with, without;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
		scene_init_typed(&with, dtypes[i], WEIGHTD_ADAM, 2, 3 * PLAN_BLOCK + 32, false);
		scene_init_typed(&without, dtypes[i], WEIGHTD_ADAM, 2, 3 * PLAN_BLOCK + 32, true);
		scene_train(&with, 5, NULL);
		scene_train(&without, 5, NULL);
		assert_memory_equal(with.values, without.values, with.values_size);
		scene_deinit(&with);
		scene_deinit(&without);
	}
}

/* PARAM is the rounding of MASTER, which moves by less than PARAM can. */
static void test_params_of_16_bits_are_the_rounded_originals(void **state)
{
	static const enum weightd_dtype dtypes[] = {WEIGHTD_BF16, WEIGHTD_F16};
	uint16_t rounded[PLAN_BLOCK + 32];
	struct scene s;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
		scene_init_typed(&s, dtypes[i], WEIGHTD_ADAMW, 2, ARRAY_LEN(rounded), false);
		scene_train(&s, 4, NULL);
		kernels_get()->round(rounded, optimizer_type(dtypes[i]), s.arena.master,
				     ARRAY_LEN(rounded));
		for (uint32_t copy = 0; copy < N_COPIES; copy++)
			assert_memory_equal(s.params[copy], rounded, sizeof(rounded));
		scene_deinit(&s);
	}
}

static void test_copies_are_equal(void **state)
{
	struct scene s;

	(void)state;
	scene_init(&s, WEIGHTD_ADAMW, 2, PLAN_BLOCK + 32, false);
	scene_train(&s, 4, NULL);
	assert_memory_equal(s.params[0], s.params[1], s.size);
	scene_deinit(&s);
}

static uint64_t places_left(const struct scene *s, uint64_t step)
{
	struct plan_interval rest = journal_rest(&s->arena, 0, step);

	return rest.end - rest.begin;
}

static void test_empty_range_moves_the_word(void **state)
{
	struct scene s;

	(void)state;
	scene_init(&s, WEIGHTD_ADAMW, 2, PLAN_BLOCK, false);
	s.arena.updated.end = s.piece.interval.end = s.arena.updated.begin;
	scene_train(&s, 2, NULL);
	assert_int_equal(control_journal_step(word_get(&arena_rank(&s.arena, 0)->journal)), 2);
	assert_int_equal(places_left(&s, 2), 0);
	scene_deinit(&s);
}

static void test_rest_is_what_was_not_done(void **state)
{
	struct scene s;
	struct control_word *word;

	(void)state;
	scene_init(&s, WEIGHTD_ADAMW, 2, 3 * PLAN_BLOCK + 32, false);
	word = &arena_rank(&s.arena, 0)->journal;
	word_set(word, control_journal(4, 4, 0));
	assert_int_equal(places_left(&s, 5), 3 * PLAN_BLOCK + 32);
	word_set(word, control_journal(5, 1, CONTROL_LOGGED));
	assert_int_equal(places_left(&s, 5), 2 * PLAN_BLOCK + 32);
	word_set(word, control_journal(5, 4, 0));
	assert_int_equal(places_left(&s, 5), 0);
	scene_deinit(&s);
}

/* --- Weights ----------------------------------------------------------------------------------------- */

static void test_equal_weights_are_the_mean(void **state)
{
	struct journal_step s = {0};

	(void)state;
	optimizer_weigh(&s, (double[]){0, 0, 0}, 3, 0, 3);
	assert_false(s.is_weighted);
	assert_true(s.scale == 1 / 3.f);
	optimizer_weigh(&s, (double[]){5, 5}, 2, 0, 2);
	assert_false(s.is_weighted);
	assert_true(s.scale == 0.5f);
}

static void test_weights_are_parts_of_their_sum(void **state)
{
	struct journal_step s = {0};

	(void)state;
	optimizer_weigh(&s, (double[]){3, 0, 7}, 3, 0, 3);
	assert_true(s.is_weighted);
	assert_true(s.scale == 1);
	assert_true(s.weights[0] == (float)(3 / 10.) && s.weights[1] == 0 &&
		    s.weights[2] == (float)(7 / 10.));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed_update_continues_to_the_same_bits),
		cmocka_unit_test(test_each_call_may_be_the_last_of_adamw),
		cmocka_unit_test(test_each_call_may_be_the_last_of_sgd),
		cmocka_unit_test(test_each_call_may_be_the_last_of_16_bits),
		cmocka_unit_test(test_without_journal_the_values_differ),
		cmocka_unit_test(test_an_update_that_is_done_is_not_done_again),
		cmocka_unit_test(test_journal_changes_no_bits),
		cmocka_unit_test(test_params_of_16_bits_are_the_rounded_originals),
		cmocka_unit_test(test_copies_are_equal),
		cmocka_unit_test(test_empty_range_moves_the_word),
		cmocka_unit_test(test_rest_is_what_was_not_done),
		cmocka_unit_test(test_equal_weights_are_the_mean),
		cmocka_unit_test(test_weights_are_parts_of_their_sum),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
