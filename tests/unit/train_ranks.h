/*
 * Ranks of tests
 *
 * Ranks that are children of the test train a made-up model, whose gradients depend on its parameters, and must leave the
 * bits of a plain loop.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
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
	bool interruptible;
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

static inline struct weightd_plan *plan_make(const struct setup *setup)
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

static inline float value_first(uint64_t i)
{
	return (float)(i * 2654435761u % 1000) / 1000 - 0.50001f; /* never 0 */
}

static inline float value_grad(float param, uint32_t rank, uint64_t step, uint64_t i)
{
	float noise = (float)((i + step * 31 + rank * 17) * 40503u % 512) / 512 - 0.5f;

	return param * (0.2f + 0.3f * (float)rank) + noise;
}

static inline double rate(uint64_t step, uint32_t group)
{
	return (group ? 0.02 : 0.01) / (1 + 0.1 * (double)step);
}

static inline double weight_of(const struct setup *setup, uint32_t rank)
{
	return setup->is_weighted ? 1 + 2 * rank : 0;
}

/* --- A rank ------------------------------------------------------------------------------------------ */

static inline int rank_fail(const char *what, int r)
{
	fprintf(stderr, "%s: %s (%s)\n", what, weightd_train_error(), strerror(-r));
	return 1;
}

static inline void rank_stop(const struct setup *setup, uint32_t rank, enum stop stop)
{
	if (setup->stop != stop || setup->stop_rank != rank)
		return;
	assert(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	(void)raise(SIGSTOP);
}

static inline void rank_fill(struct weightd_train *t)
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

static inline struct weightd_train *rank_open(const struct setup *setup, uint32_t rank)
{
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.rank = rank,
						.deadline_ms = setup->deadline_ms ? setup->deadline_ms
										  : 60000,
						.on_death = setup->on_death,
						.interruptible = setup->interruptible};
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
static inline void rank_compute(const struct setup *setup, struct weightd_train *t)
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

static inline struct weightd_update rank_arguments(const struct setup *setup,
						   struct weightd_train *t, double lr[N_GROUPS],
						   uint64_t *cursor)
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

static inline int rank_step(const struct setup *setup, struct weightd_train *t)
{
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u = rank_arguments(setup, t, lr, &cursor);

	rank_compute(setup, t);
	rank_stop(setup, weightd_train_rank(t), STOP_BEFORE_UPDATE);
	return weightd_train_update(t, &u);
}

/* The caller's state and buffers are those of the step that the job is at. */
static inline bool rank_state_fits(struct weightd_train *t)
{
	uint64_t size, step = weightd_train_step(t);
	uint32_t rank = weightd_train_rank(t);
	const uint64_t *cursor = weightd_train_state(t, &size);
	const int64_t *count = weightd_train_buffer(t, COUNT);

	if (step && (size != sizeof(*cursor) || *cursor != step * 1000 + rank))
		return false;
	return count[rank % 3] == (int64_t)(step * (step + 1) / 2);
}

static inline int rank_main(uint32_t rank, void *data)
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

static inline void *part_read(const struct weightd_plan *p, enum weightd_kind kind, uint64_t size)
{
	const struct plan_part *part = plan_part(p, kind);
	void *bytes = calloc(1, size + 1);

	if (part)
		assert_int_equal(pread(train_job->fds[part - p->parts], bytes, size, 0), size);
	return bytes;
}

static inline struct result result_read(const struct setup *setup)
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

static inline void result_free(struct result *r)
{
	free(r->param);
	free(r->moments);
}

static inline void result_compare(const struct result *a, const struct result *b)
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
static inline struct result oracle_run(const struct setup *setup)
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
		struct kernel_grads g = {.grads = (const void *const *)grads,
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
			const void *here[RANKS_MAX];
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
			struct kernel_state s = {.param = param + run.begin,
						 .m = m + run.begin,
						 .v = v + run.begin,
						 .new_param = param + run.begin,
						 .new_m = m + run.begin,
						 .new_v = v + run.begin};

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

static inline struct result run_whole(const struct setup *setup)
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

static inline void expect_oracle(const struct setup *setup)
{
	struct result ours = run_whole(setup), plain = oracle_run(setup);

	result_compare(&ours, &plain);
	result_free(&ours);
	result_free(&plain);
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
