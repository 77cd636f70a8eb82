/*
 * Tests the executor: ranks that are children of the test train a made-up model, whose gradients depend on its parameters,
 * and must leave the bits of a plain loop, whoever is killed and when
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/ptrace.h>

#include "ipc/base/num.h"
#include "libclient/train/executor.h"
#include "libclient/train/handover.h"
#include "libclient/train/saved.h"
#include "libclient/train/step.h"
#include "tests/unit/train_job.h"

#define N_STEPS 20
#define N_GROUPS 2
#define RANKS_MAX 4

static const uint64_t shape_wide[] = {29, 31}, shape_bias[] = {37}, shape_deep[] = {67, 64},
		      shape_count[] = {3};

static const struct weightd_train_tensor tensors[] = {
	{.size = sizeof(*tensors),
	 .name = "wide",
	 .shape = shape_wide,
	 .n_dims = 2,
	 .dtype = WEIGHTD_F32,
	 .role = WEIGHTD_PARAM},
	{.size = sizeof(*tensors),
	 .name = "bias",
	 .shape = shape_bias,
	 .n_dims = 1,
	 .dtype = WEIGHTD_F32,
	 .role = WEIGHTD_PARAM,
	 .group = 1},
	{.size = sizeof(*tensors),
	 .name = "count",
	 .shape = shape_count,
	 .n_dims = 1,
	 .dtype = WEIGHTD_I64,
	 .role = WEIGHTD_BUFFER},
	{.size = sizeof(*tensors),
	 .name = "deep",
	 .shape = shape_deep,
	 .n_dims = 2,
	 .dtype = WEIGHTD_F32,
	 .role = WEIGHTD_PARAM},
};
#define N_TENSORS ARRAY_LEN(tensors)
#define COUNT 2 /* the buffer */

enum stop {
	STOP_NEVER,
	STOP_BEFORE_OPEN,
	STOP_BEFORE_UPDATE
};

struct setup {
	const char *strategy;
	uint32_t n_ranks;
	enum weightd_step_form form;
	enum weightd_optimizer optimizer;
	uint32_t staleness;
	bool overlap;
	bool without_journal;
	bool says_ready; /* during the step, tensor by tensor */
	bool is_blind; /* gradients do not depend on the parameters */
	bool is_weighted;
	double max_norm;
	uint64_t nan_step; /* of rank 1 */
	enum weightd_on_death on_death;
	int deadline_ms;
	enum stop stop; /* of stop_rank, for the test to follow it instruction by instruction */
	uint32_t stop_rank;
};

/* The parts of a job that a test compares, read after the last rank ended. */
struct result {
	uint64_t n_elements;
	float *param, *moments;
	uint64_t moments_size;
};

/* --- The model -------------------------------------------------------------------------------------- */

static struct weightd_plan *plan_make(const struct setup *setup)
{
	struct weightd_group groups[N_GROUPS];
	struct weightd_mesh_dim dim = {"dp", setup->n_ranks};
	struct weightd_plan_options options = {
		.size = sizeof(options),
		.strategy = setup->strategy,
		.optimizer = setup->optimizer ? setup->optimizer : WEIGHTD_ADAMW,
		.groups = groups,
		.n_groups = N_GROUPS,
		.form = setup->form,
		.bucket_bytes = 4096,
		.overlap = setup->overlap,
		.staleness = setup->staleness,
		.n_copies = strcmp(setup->strategy, "shared") ? 0 : 1,
		.state_size = 64,
		.without_journal = setup->without_journal,
	};
	struct weightd_mesh *mesh;
	struct weightd_plan *plan;

	for (uint32_t i = 0; i < N_GROUPS; i++)
		groups[i] = (struct weightd_group){.size = sizeof(groups[i]),
						   .weight_decay = 0.1 * i,
						   .beta1 = 0.9,
						   .beta2 = 0.99,
						   .eps = 1e-8,
						   .momentum = 0.9};
	assert(weightd_mesh_new(&dim, 1, &mesh) == 0);
	options.mesh = mesh;
	if (weightd_plan_new(tensors, N_TENSORS, &options, &plan) < 0) {
		fprintf(stderr, "%s\n", weightd_train_error());
		abort();
	}
	weightd_mesh_free(mesh);
	return plan;
}

static float value_first(uint64_t i)
{
	return (float)(i * 2654435761u % 1000) / 1000 - 0.50001f; /* never 0 */
}

static float value_grad(float param, uint32_t rank, uint64_t step, uint64_t i)
{
	float noise = (float)((i + step * 31 + rank * 17) * 40503u % 512) / 512 - 0.5f;

	return param * (0.2f + 0.3f * (float)rank) + noise;
}

static double rate(uint64_t step, uint32_t group)
{
	return (group ? 0.02 : 0.01) / (1 + 0.1 * (double)step);
}

static double weight_of(const struct setup *setup, uint32_t rank)
{
	return setup->is_weighted ? 1 + 2 * rank : 0;
}

/* --- A rank ------------------------------------------------------------------------------------------ */

struct weightd_train *rank_open(const struct setup *setup, uint32_t rank);
int rank_step(const struct setup *setup, struct weightd_train *t);

static int rank_fail(const char *what, int r)
{
	fprintf(stderr, "%s: %s (%s)\n", what, weightd_train_error(), strerror(-r));
	return 1;
}

static void rank_stop(const struct setup *setup, uint32_t rank, enum stop stop)
{
	if (setup->stop != stop || setup->stop_rank != rank)
		return;
	assert(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	(void)raise(SIGSTOP);
}

static void rank_fill(struct weightd_train *t)
{
	const struct weightd_plan *p = weightd_train_plan(t);

	for (uint32_t i = 0; i < N_TENSORS; i++) {
		uint64_t n = p->tensors[i].n_bytes / sizeof(float);
		float *values = malloc(p->tensors[i].n_bytes);

		for (uint64_t k = 0; k < n; k++)
			values[k] = value_first(p->tensors[i].offset / 4 + k);
		if (p->tensors[i].role == WEIGHTD_PARAM)
			assert(weightd_train_fill(t, i, values) == 0);
		free(values);
	}
}

struct weightd_train *rank_open(const struct setup *setup, uint32_t rank)
{
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.rank = rank,
						.deadline_ms = setup->deadline_ms ? setup->deadline_ms
										  : 60000,
						.on_death = setup->on_death};
	struct weightd_plan *plan = plan_make(setup);
	struct weightd_train *t;
	int r;

	rank_stop(setup, rank, STOP_BEFORE_OPEN);
	r = weightd_train_open(NULL, plan, &options, &t);
	weightd_plan_free(plan);
	if (r == 0 && weightd_train_is_empty(t) && rank == 0)
		rank_fill(t);
	if (r == 0)
		r = weightd_train_begin(t);
	if (r == 0)
		return t;
	(void)rank_fail("open", r);
	exit(1);
}

/* Backward: the last tensors first. */
static void rank_compute(const struct setup *setup, struct weightd_train *t)
{
	uint32_t rank = weightd_train_rank(t);
	uint64_t step = weightd_train_step(t) + 1;

	for (uint32_t i = N_TENSORS; i-- > 0;) {
		const struct weightd_train_tensor *tensor = &weightd_train_plan(t)->tensors[i];
		const float *param = weightd_train_param(t, i);
		float *grad = weightd_train_grad(t, i);

		if (tensor->role != WEIGHTD_PARAM)
			continue;
		for (uint64_t k = 0; weightd_train_wants(t, i) && k < tensor->n_bytes / 4; k++)
			grad[k] = value_grad(setup->is_blind ? 0 : param[k], rank, step,
					     tensor->offset / 4 + k);
		if (setup->says_ready)
			assert(weightd_train_ready(t, i) == 0);
	}
	((int64_t *)weightd_train_buffer(t, COUNT))[rank % 3] += (int64_t)step;
}

static struct weightd_update rank_arguments(const struct setup *setup, struct weightd_train *t,
					    double lr[N_GROUPS], uint64_t *cursor)
{
	uint64_t step = weightd_train_step(t) + 1;
	uint32_t rank = weightd_train_rank(t);

	for (uint32_t i = 0; i < N_GROUPS; i++)
		lr[i] = rate(step, i);
	*cursor = step * 1000 + rank;
	return (struct weightd_update){.size = sizeof(struct weightd_update),
				       .lr = lr,
				       .weight = weight_of(setup, rank),
				       .has_loss = true,
				       .loss = rank == 1 && step == setup->nan_step ? NAN : 1,
				       .max_norm = setup->max_norm,
				       .state = cursor,
				       .state_size = sizeof(*cursor)};
}

int rank_step(const struct setup *setup, struct weightd_train *t)
{
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u = rank_arguments(setup, t, lr, &cursor);

	rank_compute(setup, t);
	rank_stop(setup, weightd_train_rank(t), STOP_BEFORE_UPDATE);
	return weightd_train_update(t, &u);
}

/* The caller's state and buffers are those of the step that the job is at. */
static bool rank_state_fits(struct weightd_train *t)
{
	uint64_t size, step = weightd_train_step(t);
	uint32_t rank = weightd_train_rank(t);
	const uint64_t *cursor = weightd_train_state(t, &size);
	const int64_t *count = weightd_train_buffer(t, COUNT);

	if (step && (size != sizeof(*cursor) || *cursor != step * 1000 + rank))
		return false;
	return count[rank % 3] == (int64_t)(step * (step + 1) / 2);
}

static int rank_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	if (!rank_state_fits(t))
		return rank_fail("state of another step", 0);
	while (weightd_train_step(t) < N_STEPS) {
		int r = rank_step(setup, t);

		if (r < 0 && r != -EDOM)
			return rank_fail("update", r);
	}
	if (!rank_state_fits(t) || weightd_train_close(t) < 0)
		return rank_fail("end", 0);
	weightd_train_free(t);
	return 0;
}

/* --- Results ------------------------------------------------------------------------------------------ */

static void *part_read(const struct weightd_plan *p, enum weightd_kind kind, uint64_t size)
{
	const struct plan_part *part = plan_part(p, kind);
	void *bytes = calloc(1, size + 1);

	if (part)
		assert_int_equal(pread(train_job->fds[part - p->parts], bytes, size, 0), size);
	return bytes;
}

static struct result result_read(const struct setup *setup)
{
	struct weightd_plan *p = plan_make(setup);
	const struct plan_part *moments = plan_part(p, WEIGHTD_KIND_MOMENTS);
	struct result result = {.n_elements = p->n_elements};

	result.param = part_read(p, WEIGHTD_KIND_PARAM, p->n_elements * sizeof(float));
	result.moments_size = moments ? moments->used : 0;
	result.moments = part_read(p, WEIGHTD_KIND_MOMENTS, result.moments_size);
	weightd_plan_free(p);
	return result;
}

static void result_free(struct result *r)
{
	free(r->param);
	free(r->moments);
}

static void result_compare(const struct result *a, const struct result *b)
{
	assert_int_equal(a->n_elements, b->n_elements);
	for (uint64_t i = 0; i < a->n_elements; i++)
		if (memcmp(&a->param[i], &b->param[i], sizeof(float)))
			fail_msg("parameter %llu is %.9g and %.9g", (unsigned long long)i,
				 (double)a->param[i], (double)b->param[i]);
	if (a->moments_size == b->moments_size)
		assert_memory_equal(a->moments, b->moments, a->moments_size);
}

/* The plain loop, in one process: sums in the order of ranks, and the kernel. `ret->moments` are left out. */
static struct result oracle_run(const struct setup *setup)
{
	struct weightd_plan *p = plan_make(setup);
	uint64_t n = p->n_elements, n_updates = 0;
	float *m = aligned_alloc(64, n * 4), *v = aligned_alloc(64, n * 4);
	float *grads[RANKS_MAX];
	struct result result = {.n_elements = n, .param = aligned_alloc(64, n * 4)};
	float *param = result.param;

	memset(m, 0, n * 4);
	memset(v, 0, n * 4);
	memset(param, 0, n * 4);
	for (uint32_t r = 0; r < setup->n_ranks; r++) {
		grads[r] = aligned_alloc(64, n * 4);
		memset(grads[r], 0, n * 4);
	}
	for (uint32_t i = 0; i < N_TENSORS; i++)
		for (uint64_t k = 0, at = p->tensors[i].offset / 4;
		     p->tensors[i].role == WEIGHTD_PARAM && k < p->tensors[i].n_bytes / 4; k++)
			param[at + k] = value_first(at + k);
	for (uint64_t step = 1; step <= N_STEPS; step++) {
		float weights[RANKS_MAX];
		struct kernel_grads g = {.grads = (const float *const *)grads,
					 .weights = setup->is_weighted ? weights : NULL,
					 .n = setup->n_ranks,
					 .scale = setup->is_weighted ? 1
								     : 1 / (float)setup->n_ranks};
		double sum = 0;

		if (step == setup->nan_step)
			continue;
		n_updates++;
		for (uint32_t r = 0; r < setup->n_ranks; r++)
			sum += weight_of(setup, r);
		for (uint32_t r = 0; r < setup->n_ranks; r++)
			weights[r] = (float)(weight_of(setup, r) / sum);
		for (uint32_t i = 0; i < N_TENSORS; i++)
			for (uint64_t k = 0, at = p->tensors[i].offset / 4;
			     p->tensors[i].role == WEIGHTD_PARAM && k < p->tensors[i].n_bytes / 4;
			     k++)
				for (uint32_t r = 0; r < setup->n_ranks; r++)
					grads[r][at + k] =
						value_grad(setup->is_blind ? 0 : param[at + k], r,
							   step, at + k);
		for (uint32_t i = 0; i < p->n_runs; i++) {
			struct plan_interval run = p->runs[i].interval;
			uint32_t group = p->runs[i].group;
			const float *here[RANKS_MAX];
			double lr = rate(step, group);
			double bias1 = 1 - pow(0.9, (double)n_updates);
			struct kernel_adam k = {
				.decay = (float)(1 - lr * (0.1 * group)),
				.beta1_rest = (float)(1 - 0.9),
				.beta2 = (float)0.99,
				.beta2_rest = (float)(1 - 0.99),
				.bias2_sqrt = (float)sqrt(1 - pow(0.99, (double)n_updates)),
				.eps = (float)1e-8,
				.minus_step_size = (float)(-lr / bias1),
				.decoupled = true,
			};
			struct kernel_state s = {param + run.begin, m + run.begin, v + run.begin,
						 param + run.begin, m + run.begin, v + run.begin};

			for (uint32_t r = 0; r < setup->n_ranks; r++)
				here[r] = grads[r] + run.begin;
			g.grads = here;
			kernels_get()->adam(&k, &g, &s, run.end - run.begin);
		}
	}
	for (uint32_t r = 0; r < setup->n_ranks; r++)
		free(grads[r]);
	free(m);
	free(v);
	weightd_plan_free(p);
	return result;
}

/* --- Runs --------------------------------------------------------------------------------------------- */

static struct result run_whole(const struct setup *setup)
{
	pid_t pids[RANKS_MAX];
	struct result result;

	train_job_start(setup->n_ranks);
	for (uint32_t rank = 0; rank < setup->n_ranks; rank++)
		pids[rank] = train_job_fork(rank_main, rank, (void *)setup);
	for (uint32_t rank = 0; rank < setup->n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	result = result_read(setup);
	train_job_stop();
	return result;
}

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

/* Follows a rank for `n` instructions from where it stops. False: it ended before. */
static bool rank_follow(pid_t pid, uint64_t n)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	for (uint64_t i = 0; WIFSTOPPED(status) && i < n; i++) {
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
	}
	if (WIFSTOPPED(status))
		return true;
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return false;
}

#define N_INSTRUCTIONS 16000 /* about as many as an update has */

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

/* --- Bits ---------------------------------------------------------------------------------------------- */

static void expect_oracle(const struct setup *setup)
{
	struct result ours = run_whole(setup), plain = oracle_run(setup);

	result_compare(&ours, &plain);
	result_free(&ours);
	result_free(&plain);
}

static void expect_unharmed(const struct setup *setup, unsigned n_kills)
{
	struct result whole = run_whole(setup), killed = run_killed(setup, n_kills, 7);

	result_compare(&whole, &killed);
	result_free(&killed);
	killed = run_followed(setup, n_kills, 7, N_INSTRUCTIONS);
	result_compare(&whole, &killed);
	result_free(&whole);
	result_free(&killed);
}

/* Rows of the table of strategies: all leave the same bits. */
static const struct setup rows[] = {
	{.strategy = "shared", .form = WEIGHTD_STEP_FUSED},
	{.strategy = "shared", .form = WEIGHTD_STEP_TWO_PHASE},
	{.strategy = "shared", .form = WEIGHTD_STEP_TWO_PHASE, .says_ready = true},
	{.strategy = "shared", .form = WEIGHTD_STEP_TWO_PHASE, .says_ready = true, .overlap = true},
	{.strategy = "zero1", .form = WEIGHTD_STEP_FUSED},
	{.strategy = "zero1", .form = WEIGHTD_STEP_TWO_PHASE, .says_ready = true, .overlap = true},
	{.strategy = "replicated", .form = WEIGHTD_STEP_TWO_PHASE, .says_ready = true},
	{.strategy = "replicated", .form = WEIGHTD_STEP_TWO_PHASE, .says_ready = true, .overlap = true},
};

static void test_every_strategy_is_the_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (uint32_t n = 1; n <= RANKS_MAX; n++) {
			struct setup setup = rows[i];

			setup.n_ranks = n;
			expect_oracle(&setup);
		}
}

static void test_unequal_weights_are_the_weighted_mean(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 3;
		setup.is_weighted = true;
		expect_oracle(&setup);
	}
}

static void test_nan_of_one_rank_skips_the_step_on_all(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 2;
		setup.nan_step = 5;
		expect_oracle(&setup);
	}
}

/* --- Kills --------------------------------------------------------------------------------------------- */

static void test_every_strategy_survives_kills(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 2 + i % 2;
		setup.max_norm = setup.form == WEIGHTD_STEP_TWO_PHASE ? 1 : 0;
		setup.is_weighted = i % 3 == 0;
		setup.nan_step = 3;
		expect_unharmed(&setup, 10);
	}
}

static void test_survivors_finish_and_the_bits_are_the_same(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 3;
		setup.on_death = WEIGHTD_DEATH_FINISH;
		expect_unharmed(&setup, 10);
	}
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
		stale = run_killed(&setup, 12, k);
		result_compare(&stale, &plain);
		result_free(&stale);
	}
	result_free(&plain);
}

/* --- Controls and arguments ------------------------------------------------------------------------------ */

static bool results_differ(const struct result *a, const struct result *b)
{
	return memcmp(a->param, b->param, a->n_elements * sizeof(float)) != 0;
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

/* Runs `fn` as rank 0 beside a rank 1 that does as rank_main(). */
static void run_beside(const struct setup *setup, int (*fn)(uint32_t rank, void *data))
{
	pid_t pids[2];

	train_job_start(2);
	pids[0] = train_job_fork(fn, 0, (void *)setup);
	pids[1] = train_job_fork(rank_main, 1, (void *)setup);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[1]), 0);
	train_job_stop();
}

static int count_traffic_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	struct weightd_traffic plan = {.size = sizeof(plan)}, counted = {.size = sizeof(counted)};
	uint64_t n_filled; /* first values, for copies of other ranks */

	assert(weightd_plan_traffic(weightd_train_plan(t), rank, &plan) == 0);
	assert(weightd_train_traffic(t, &counted) == 0);
	n_filled = counted.written;
	while (weightd_train_step(t) < N_STEPS)
		assert(rank_step(setup, t) == 0);
	assert(weightd_train_traffic(t, &counted) == 0);
	if (counted.read != plan.read * N_STEPS ||
	    counted.written - n_filled != plan.written * N_STEPS || counted.sent != 0)
		return rank_fail("traffic", 0);
	return weightd_train_close(t) == 0 ? 0 : 1;
}

static void test_traffic_is_what_the_plan_predicts(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 2;
		run_beside(&setup, count_traffic_main);
	}
}

static bool update_fails(struct weightd_train *t, const struct weightd_update *u, const char *word)
{
	if (weightd_train_update(t, u) == -EINVAL && strstr(weightd_train_error(), word))
		return true;
	(void)rank_fail(word, 0);
	return false;
}

static int bad_arguments_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update good = rank_arguments(setup, t, lr, &cursor), u;
	char large[65] = {0};

	u = good, u.lr = NULL;
	assert(update_fails(t, &u, "lr is missing"));
	u = good, u.lr = (double[]){1, NAN};
	assert(update_fails(t, &u, "group 1"));
	u = good, u.weight = -1;
	assert(update_fails(t, &u, "weight is -1"));
	u = good, u.max_norm = 1;
	assert(update_fails(t, &u, "WEIGHTD_STEP_TWO_PHASE"));
	u = good, u.state = large, u.state_size = sizeof(large);
	assert(update_fails(t, &u, "raise state_size"));
	u = good, u.size = 0;
	assert(update_fails(t, &u, "size"));
	assert(weightd_train_ready(t, N_TENSORS) == -ENOENT);
	assert(weightd_train_ready(t, COUNT) == -EINVAL);
	assert(!weightd_train_param(t, COUNT) && !weightd_train_grad(t, N_TENSORS) &&
	       !weightd_train_buffer(t, 0));
	assert(weightd_train_fill(t, 0, large) == -EALREADY);
	assert(trainer_word(&trainer_words(t)->grad) == 0);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_bad_arguments_change_nothing(void **state)
{
	(void)state;
	run_beside(&(struct setup){.strategy = "shared", .n_ranks = 2}, bad_arguments_main);
}

static int forked_main(uint32_t rank, void *data)
{
	struct weightd_train *t = rank_open(data, rank);
	pid_t pid = fork();

	if (pid == 0)
		_exit(weightd_train_update(t, NULL) == -ECHILD &&
				      weightd_train_ready(t, 0) == -ECHILD &&
				      weightd_train_close(t) == -ECHILD
			      ? 0
			      : 1);
	assert(train_job_join(pid) == 0);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_forked_child_is_no_rank(void **state)
{
	(void)state;
	run_beside(&(struct setup){.strategy = "shared", .n_ranks = 2}, forked_main);
}

/* --- Ranks that are late or dead -------------------------------------------------------------------------- */

/* Words for one rank to tell another, beside the job. */
static struct control_word *signal_word;

static void signal_wait(uint64_t value)
{
	struct wait_place p;

	wait_place_init(&p, NULL, 0, 1, NULL);
	assert(wait_for(&p, signal_word, value, &(struct wait_reason){.what = "signal"}) == 0);
}

static int late_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;

	signal_wait(1);
	return rank_main(rank, (void *)setup);
}

static int impatient_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct setup short_deadline = *setup;
	struct weightd_train *t;
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;

	short_deadline.deadline_ms = 100;
	t = rank_open(&short_deadline, rank);
	u = rank_arguments(setup, t, lr, &cursor);
	rank_compute(setup, t);
	for (int i = 0; i < 3; i++) {
		assert(weightd_train_update(t, &u) == -ETIMEDOUT);
		assert(strstr(weightd_train_error(), "rank 1") &&
		       strstr(weightd_train_error(), "step 1"));
		assert(weightd_train_step(t) == 0);
	}
	wait_publish(signal_word, 1);
	t->place.deadline_ms = 60000;
	t->overlap.place.deadline_ms = 60000;
	assert(weightd_train_update(t, &u) == 0);
	assert(weightd_train_step(t) == 1 && rank_state_fits(t));
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_failed_update_is_repeated(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];
		struct result ours, plain;
		pid_t pids[2];

		setup.n_ranks = 2;
		signal_word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				   -1, 0);
		train_job_start(2);
		pids[0] = train_job_fork(impatient_main, 0, &setup);
		pids[1] = train_job_fork(late_main, 1, &setup);
		assert_int_equal(train_job_join(pids[0]), 0);
		assert_int_equal(train_job_join(pids[1]), 0);
		ours = result_read(&setup);
		plain = oracle_run(&setup);
		result_compare(&ours, &plain);
		result_free(&ours);
		result_free(&plain);
		train_job_stop();
		(void)munmap(signal_word, 4096);
	}
}

/* Dies with its gradients of a step handed over, and nothing of the update done. */
static int dying_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;

	while (weightd_train_step(t) < N_STEPS - 1)
		assert(rank_step(setup, t) == 0);
	u = rank_arguments(setup, t, lr, &cursor);
	rank_compute(setup, t);
	saved_write(t, &u, N_STEPS);
	handover_complete(t, N_STEPS);
	wait_publish(&trainer_words(t)->grad, N_STEPS);
	raise(SIGKILL);
	return 1;
}

static void test_survivors_need_no_successor_for_the_last_step(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];
		struct result ours, plain;
		pid_t pids[3];

		setup.n_ranks = 3;
		setup.on_death = WEIGHTD_DEATH_FINISH;
		train_job_start(3);
		for (uint32_t rank = 0; rank < 3; rank++)
			pids[rank] = train_job_fork(rank == 1 ? dying_main : rank_main, rank,
						    &setup);
		assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
		assert_int_equal(train_job_join(pids[0]), 0);
		assert_int_equal(train_job_join(pids[2]), 0);
		ours = result_read(&setup);
		plain = oracle_run(&setup);
		result_compare(&ours, &plain);
		/* Its successor finds the step done. */
		assert_int_equal(train_job_join(train_job_fork(rank_main, 1, &setup)), 0);
		result_free(&ours);
		result_free(&plain);
		train_job_stop();
	}
}

static int sees_death_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	int r = 0;

	while (r == 0 && weightd_train_step(t) < N_STEPS)
		r = rank_step(setup, t);
	return r == -EOWNERDEAD && weightd_train_step(t) == N_STEPS - 1 &&
			       strstr(weightd_train_error(), "rank 1")
		       ? 0
		       : rank_fail("no death was seen", r);
}

static void test_death_is_an_error_where_the_options_ask_for_one(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];
		pid_t pids[2];

		setup.n_ranks = 2;
		setup.on_death = WEIGHTD_DEATH_FAIL;
		train_job_start(2);
		pids[0] = train_job_fork(sees_death_main, 0, &setup);
		pids[1] = train_job_fork(dying_main, 1, &setup);
		assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
		assert_int_equal(train_job_join(pids[0]), 0);
		train_job_stop();
	}
}

/* --- Buckets ------------------------------------------------------------------------------------------------ */

static int half_ready_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	float *grad = weightd_train_grad(t, N_TENSORS - 1);

	assert(weightd_train_wants(t, N_TENSORS - 1) && weightd_train_wants(t, 0));
	for (uint64_t k = 0; k < shape_deep[0] * shape_deep[1]; k++)
		grad[k] = value_grad(((const float *)weightd_train_param(t, N_TENSORS - 1))[k],
				     rank, 1,
				     weightd_train_plan(t)->tensors[N_TENSORS - 1].offset / 4 + k);
	assert(weightd_train_ready(t, N_TENSORS - 1) == 0);
	raise(SIGKILL);
	return 1;
}

static int half_wanted_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	assert(!weightd_train_wants(t, N_TENSORS - 1) && weightd_train_wants(t, 0));
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_bucket_is_handed_over_once(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_ranks = 2,
			      .form = WEIGHTD_STEP_TWO_PHASE,
			      .says_ready = true,
			      .overlap = true};
	struct result ours, plain = oracle_run(&setup);
	pid_t pids[2];

	(void)state;
	train_job_start(2);
	pids[0] = train_job_fork(rank_main, 0, &setup);
	assert_int_equal(train_job_join(train_job_fork(half_ready_main, 1, &setup)), 128 + SIGKILL);
	pids[1] = train_job_fork(half_wanted_main, 1, &setup);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[1]), 0);
	ours = result_read(&setup);
	result_compare(&ours, &plain);
	result_free(&ours);
	result_free(&plain);
	train_job_stop();
}

/* --- Norms --------------------------------------------------------------------------------------------------- */

/* The step that clips is the step with gradients of that norm: SGD shows it. */
static int norm_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	uint64_t n = t->plan->n_elements;
	double squares = 0, moved = 0;
	float *before = malloc(n * sizeof(float));

	memcpy(before, t->arena.param, n * sizeof(float));
	assert(rank_step(setup, t) == 0);
	for (uint64_t i = 0; i < n; i++) {
		/* Padding is 0, and has no gradient. */
		float mean = before[i] == 0 ? 0
					    : (value_grad(before[i], 0, 1, i) +
					       value_grad(before[i], 1, 1, i)) *
						      0.5f;
		bool is_bias = i >= 912 && i < 960; /* of group 1, whose weight decays */
		double move = ((double)before[i] - t->arena.param[i]) / rate(1, is_bias) -
			      0.1 * is_bias * (double)before[i];

		squares += (double)mean * mean;
		moved += move * move;
	}
	free(before);
	assert(fabs(weightd_train_norm(t) / sqrt(squares) - 1) < 1e-9);
	assert(weightd_train_norm(t) > 1);
	assert(fabs(sqrt(moved) - setup->max_norm) < 1e-3 * setup->max_norm);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_max_norm_clips_the_norm_of_all_shards(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (setup.form == WEIGHTD_STEP_FUSED)
			continue;
		setup.n_ranks = 2;
		setup.optimizer = WEIGHTD_SGD;
		setup.max_norm = 0.5;
		run_beside(&setup, norm_main);
	}
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_every_strategy_is_the_plain_loop),
		cmocka_unit_test(test_unequal_weights_are_the_weighted_mean),
		cmocka_unit_test(test_nan_of_one_rank_skips_the_step_on_all),
		cmocka_unit_test(test_every_strategy_survives_kills),
		cmocka_unit_test(test_survivors_finish_and_the_bits_are_the_same),
		cmocka_unit_test(test_stale_updates_are_all_made_in_the_end),
		cmocka_unit_test(test_without_journal_kills_leave_other_bits),
		cmocka_unit_test(test_traffic_is_what_the_plan_predicts),
		cmocka_unit_test(test_bad_arguments_change_nothing),
		cmocka_unit_test(test_forked_child_is_no_rank),
		cmocka_unit_test(test_failed_update_is_repeated),
		cmocka_unit_test(test_survivors_need_no_successor_for_the_last_step),
		cmocka_unit_test(test_death_is_an_error_where_the_options_ask_for_one),
		cmocka_unit_test(test_bucket_is_handed_over_once),
		cmocka_unit_test(test_max_norm_clips_the_norm_of_all_shards),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
