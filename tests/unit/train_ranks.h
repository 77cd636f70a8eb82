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
#include "tests/unit/long_form.h"
#include "tests/unit/train_job.h"

#define N_STEPS 20
#define N_GROUPS 2
#define RANKS_MAX 4

static const uint64_t shape_small[] = {3}, shape_wide[] = {29, 31}, shape_bias[] = {37},
		      shape_deep[] = {67, 19}, shape_count[] = {3}, shape_base[] = {5, 7};

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
	 .name = "base",
	 .shape = shape_base,
	 .n_dims = 2,
	 .dtype = WEIGHTD_F8_E4M3,
	 .role = WEIGHTD_PARAM,
	 .frozen = true},
	{.size = sizeof(*tensors),
	 .name = "deep",
	 .shape = shape_deep,
	 .n_dims = 2,
	 .dtype = WEIGHTD_F32,
	 .role = WEIGHTD_PARAM},
};
#define N_TENSORS ARRAY_LEN(tensors)
#define BIAS 1
#define COUNT 2 /* the buffer */
#define BASE 3 /* the frozen parameter */

enum stop {
	STOP_NEVER,
	STOP_BEFORE_OPEN,
	STOP_BEFORE_BEGIN,
	STOP_BEFORE_UPDATE
};

struct setup {
	const char *strategy;
	uint32_t n_ranks; /* of all nodes */
	uint32_t n_nodes; /* 0: 1 */
	uint32_t sync_every;
	bool has_unused; /* parameters without gradients */
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
	enum weightd_dtype dtype, grad_dtype; /* 0: F32; 0: that of the parameters */
	double init_scale; /* 0: no scaling */
	uint32_t interval; /* of scaling; 0: 3 */
	uint64_t overflow_step; /* a gradient of the last rank is infinite */
	enum weightd_on_death on_death;
	int deadline_ms;
	bool interruptible;
	bool keeps_units, without_prefetch;
	uint32_t n_replicas; /* 0: 1 */
	bool is_small; /* three elements in each parameter */
	bool is_one_unit; /* "zero3": of all parameters; else each is one */
	uint32_t n_passes; /* forward only, between steps: "zero3" */
	void (*before_step)(struct weightd_train *t); /* NULL: nothing */
	enum stop stop; /* of stop_rank, for the test to follow it instruction by instruction */
	uint32_t stop_rank;
};

/* Loss scales after each step; shared by all processes of a test. */
struct scales {
	double scales[N_STEPS + 1]; /* 0: no rank_main() was at that step */
	bool overflowed[N_STEPS + 1];
};

static const struct weightd_nodes *rank_nodes; /* of this process; NULL: there is one */

static struct control_word **rank_line; /* of stop_rank: its address there, shared; NULL: not asked for */

static struct scales *all_scales; /* of the run, each rank writes all that it sees; NULL: no result is read */

/* The parts of a job that a test compares, read after the last rank ended. */
struct result {
	uint64_t n_elements;
	uint8_t *param; /* of the first copy */
	uint64_t param_size;
	float *values; /* MASTER, or PARAM in fp32 */
	float *moments;
	uint64_t moments_size;
	float *m, *v; /* of the plain loop: its moments */
	struct scales scales;
};

/* --- The model -------------------------------------------------------------------------------------- */

static inline struct weightd_plan *plan_make(const struct setup *setup)
{
	struct weightd_train_tensor model[N_TENSORS];
	struct weightd_group groups[N_GROUPS];
	struct weightd_scaling scaling = {.size = sizeof(scaling),
					  .init = setup->init_scale,
					  .growth = 2,
					  .backoff = 0.5,
					  .interval = setup->interval ? setup->interval : 3};
	uint32_t n_replicas = setup->n_replicas ? setup->n_replicas : 1;
	struct weightd_mesh_dim dims[] = {{"replicate", n_replicas},
					  {"dp", setup->n_ranks / n_replicas}};
	uint32_t n_dims = n_replicas > 1 ? 2 : 1;
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
		.grad_dtype = setup->grad_dtype,
		.scaling = setup->init_scale > 0 ? &scaling : NULL,
		.n_nodes = setup->n_nodes,
		.sync_every = setup->sync_every,
		.keeps_units = setup->keeps_units,
		.without_prefetch = setup->without_prefetch,
	};
	uint32_t n_units = 0;
	struct weightd_mesh *mesh;
	struct weightd_plan *plan;

	memcpy(model, tensors, sizeof(model));
	for (uint32_t i = 0; i < N_TENSORS; i++)
		if (setup->is_small && plan_is_trained(&model[i])) {
			model[i].shape = shape_small;
			model[i].n_dims = 1;
		}
	for (uint32_t i = 0; i < N_TENSORS; i++)
		if (setup->dtype && plan_is_trained(&model[i]))
			model[i].dtype = setup->dtype;
	for (uint32_t i = 0; i < N_TENSORS; i++)
		if (plan_is_trained(&model[i]) && !setup->is_one_unit)
			model[i].unit = n_units++;
	for (uint32_t i = 0; i < N_GROUPS; i++)
		groups[i] = (struct weightd_group){.size = sizeof(groups[i]),
						   .weight_decay = 0.1 * i,
						   .beta1 = 0.9,
						   .beta2 = 0.99,
						   .eps = 1e-8,
						   .momentum = 0.9};
	assert(weightd_mesh_new(dims + 2 - n_dims, n_dims, &mesh) == 0);
	options.mesh = mesh;
	if (weightd_plan_new(model, N_TENSORS, &options, &plan) < 0) {
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

/* GRAD is one bucket: weights come too late. */
static inline bool pools_grads(const struct setup *setup)
{
	return !strcmp(setup->strategy, "zero2") || !strcmp(setup->strategy, "zero3");
}

/* Ranks of a node. */
static inline uint32_t ranks_of(const struct setup *setup)
{
	return setup->n_nodes ? setup->n_ranks / setup->n_nodes : setup->n_ranks;
}

/* A parameter without a gradient of a rank in a step; in each third step no rank has one of "bias". */
static inline bool is_unused(const struct setup *setup, uint32_t tensor, uint32_t rank,
			     uint64_t step)
{
	return setup->has_unused && tensor == BIAS && (step % 3 == 0 || (step + rank) % 3 == 0);
}

static inline double weight_of(const struct setup *setup, uint32_t rank)
{
	return setup->is_weighted && !pools_grads(setup) ? 1 + 2 * rank : 0;
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
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);
		uint64_t n = elements.end - elements.begin;
		float *values = malloc(n * sizeof(float));

		for (uint64_t k = 0; k < n; k++)
			values[k] = value_first(elements.begin + k);
		if (plan_is_trained(&p->tensors[i]))
			assert(weightd_train_fill(t, i, values) == 0);
		free(values);
	}
	assert(weightd_train_fill(t, BASE, "Frozen parameters: 35 bytes of F8.") == 0);
}

static inline struct weightd_train *rank_open(const struct setup *setup, uint32_t rank)
{
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.rank = rank % ranks_of(setup),
						.nodes = rank_nodes,
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
	if (r == 0 && rank_line && rank == setup->stop_rank) {
		*rank_line = &trainer_words(t)->line;
		rank_stop(setup, rank, STOP_BEFORE_BEGIN);
	}
	if (r == 0 && weightd_train_is_empty(t) && options.rank == 0)
		rank_fill(t);
	if (r == 0)
		r = weightd_train_begin(t);
	if (r == 0)
		return t;
	(void)rank_fail("open", r);
	exit(1);
}

/* Gradients of a rank in a step, in GRAD's type, from parameters in PARAM's. */
static inline void grads_make(const struct setup *setup, const struct weightd_plan *p,
			      struct plan_interval elements, const void *param, uint32_t rank,
			      uint64_t step, double scale, void *grad)
{
	uint64_t n = elements.end - elements.begin;
	float *values = malloc(n * sizeof(float));

	kernels_get()->widen(values, param, optimizer_type(p->param_dtype), n);
	for (uint64_t k = 0; k < n; k++)
		values[k] = value_grad(setup->is_blind ? 0 : values[k], rank, step,
				       elements.begin + k) *
			    (float)scale;
	if (n && step == setup->overflow_step && rank == setup->n_ranks - 1)
		values[n / 2] = INFINITY;
	kernels_get()->round(grad, optimizer_type(p->grad_dtype), values, n);
	free(values);
}

/* Of the mesh. */
static inline uint32_t rank_of(const struct weightd_train *t)
{
	return t->arena.node * t->plan->n_ranks + t->arena.rank;
}

/* Each unit once, in the order of forward. */
static inline int rank_forward(struct weightd_train *t)
{
	uint32_t n = weightd_plan_n_units(weightd_train_plan(t));
	int r = 0;

	for (uint32_t unit = 0; r == 0 && unit < n; unit++) {
		r = weightd_train_unit_open(t, unit, WEIGHTD_PASS_FORWARD);
		if (r == 0)
			r = weightd_train_unit_close(t, unit);
	}
	return r;
}

/* The gradient of a tensor, unless this rank was killed after it had handed it over. */
static inline void tensor_compute(const struct setup *setup, struct weightd_train *t, uint32_t i)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	uint32_t rank = rank_of(t);
	uint64_t step = weightd_train_step(t) + 1;

	if (weightd_train_wants(t, i) && is_unused(setup, i, rank, step))
		memset(weightd_train_grad(t, i), 0,
		       p->tensors[i].n_bytes * plan_element_size(p, WEIGHTD_KIND_GRAD) /
			       plan_element_size(p, WEIGHTD_KIND_PARAM));
	else if (weightd_train_wants(t, i))
		grads_make(setup, p, plan_elements(p, &p->tensors[i]), weightd_train_param(t, i),
			   rank, step, weightd_train_scale(t), weightd_train_grad(t, i));
}

/* A bucket of a pool, and its unit. */
static inline int bucket_compute(const struct setup *setup, struct weightd_train *t, uint32_t bucket)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	uint32_t unit = p->n_units ? plan_unit_of_bucket(p, bucket) : 0, its;
	int r = weightd_train_unit_open(t, unit, WEIGHTD_PASS_BACKWARD);

	if (r == 0)
		r = weightd_train_bucket_open(t, bucket);
	for (uint32_t i = N_TENSORS; r == 0 && i-- > 0;) {
		if (!plan_is_trained(&p->tensors[i]))
			continue;
		r = weightd_plan_bucket(p, i, &its);
		if (r < 0 || its != bucket)
			continue;
		tensor_compute(setup, t, i);
		r = weightd_train_ready(t, i);
	}
	return r < 0 ? r : weightd_train_unit_close(t, unit);
}

/* Backward: the last tensors first. */
static inline int rank_compute(const struct setup *setup, struct weightd_train *t)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	uint64_t step = weightd_train_step(t) + 1;
	uint32_t rank = rank_of(t);
	int r = 0;

	for (uint32_t i = 0; r == 0 && i <= setup->n_passes; i++)
		r = rank_forward(t);
	for (uint32_t i = 0; r == 0 && plan_pools_grads(p) && i < p->n_buckets; i++)
		r = bucket_compute(setup, t, i);
	for (uint32_t i = N_TENSORS; !plan_pools_grads(p) && i-- > 0;) {
		if (!plan_is_trained(&p->tensors[i]))
			continue;
		tensor_compute(setup, t, i);
		if (setup->says_ready && !is_unused(setup, i, rank, step))
			assert(weightd_train_ready(t, i) == 0);
	}
	((int64_t *)weightd_train_buffer(t, COUNT))[rank % 3] += (int64_t)step;
	return r;
}

static inline struct weightd_update rank_arguments(const struct setup *setup,
						   struct weightd_train *t, double lr[N_GROUPS],
						   uint64_t *cursor)
{
	static bool unused[N_TENSORS];
	uint64_t step = weightd_train_step(t) + 1;
	uint32_t rank = rank_of(t);

	for (uint32_t i = 0; i < N_GROUPS; i++)
		lr[i] = rate(step, i);
	for (uint32_t i = 0; i < N_TENSORS; i++)
		unused[i] = is_unused(setup, i, rank, step);
	*cursor = step * 1000 + rank;
	return (struct weightd_update){.size = sizeof(struct weightd_update),
				       .lr = lr,
				       .weight = weight_of(setup, rank),
				       .has_loss = true,
				       .loss = rank == 1 && step == setup->nan_step ? NAN : 1,
				       .max_norm = setup->max_norm,
				       .unused = setup->has_unused ? unused : NULL,
				       .state = cursor,
				       .state_size = sizeof(*cursor)};
}

static inline int rank_step(const struct setup *setup, struct weightd_train *t)
{
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u = rank_arguments(setup, t, lr, &cursor);

	int r;

	if (setup->before_step)
		setup->before_step(t);
	r = rank_compute(setup, t);
	rank_stop(setup, rank_of(t), STOP_BEFORE_UPDATE);
	return r < 0 ? r : weightd_train_update(t, &u);
}

/* The caller's state and buffers are those of the step that the job is at. */
static inline bool rank_state_fits(struct weightd_train *t)
{
	uint64_t size, step = weightd_train_step(t);
	uint32_t rank = rank_of(t);
	const uint64_t *cursor = weightd_train_state(t, &size);
	const int64_t *count = weightd_train_buffer(t, COUNT);

	if (step && (size != sizeof(*cursor) || *cursor != step * 1000 + rank))
		return false;
	if (memcmp(weightd_train_param(t, BASE), "Frozen parameters: 35 bytes of F8.", 35))
		return false;
	return count[rank % 3] == (int64_t)(step * (step + 1) / 2);
}

static inline void rank_record(const struct weightd_train *t)
{
	uint64_t step = weightd_train_step(t);

	if (!all_scales)
		return;
	all_scales->scales[step] = weightd_train_scale(t);
	all_scales->overflowed[step] = weightd_train_overflowed(t);
}

static inline int rank_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	rank_record(t);

	if (!rank_state_fits(t))
		return rank_fail("state of another step", 0);
	while (weightd_train_step(t) < N_STEPS) {
		int r = rank_step(setup, t);

		if (r < 0 && r != -EDOM)
			return rank_fail("update", r);
		rank_record(t);
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

/* Before the ranks of a run start. */
static inline void scales_start(void)
{
	all_scales = mmap(NULL, sizeof(*all_scales), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(all_scales != MAP_FAILED);
}

static inline struct result result_read(const struct setup *setup)
{
	struct weightd_plan *p = plan_make(setup);
	const struct plan_part *moments = plan_part(p, WEIGHTD_KIND_MOMENTS);
	struct result result = {.n_elements = p->n_elements,
				.param_size = plan_part(p, WEIGHTD_KIND_PARAM)->used,
				.scales = *all_scales};

	result.param = part_read(p, WEIGHTD_KIND_PARAM, result.param_size);
	result.values = part_read(p, plan_has_master(p) ? WEIGHTD_KIND_MASTER : WEIGHTD_KIND_PARAM,
				  p->n_elements * sizeof(float));
	result.moments_size = moments ? moments->used : 0;
	result.moments = part_read(p, WEIGHTD_KIND_MOMENTS, result.moments_size);
	weightd_plan_free(p);
	(void)munmap(all_scales, sizeof(*all_scales));
	all_scales = NULL;
	return result;
}

static inline void result_free(struct result *r)
{
	free(r->param);
	free(r->values);
	free(r->moments);
	free(r->m);
	free(r->v);
}

static inline void result_compare(const struct result *a, const struct result *b)
{
	assert_int_equal(a->n_elements, b->n_elements);
	for (uint64_t i = 0; i < a->n_elements; i++)
		if (memcmp(&a->values[i], &b->values[i], sizeof(float)))
			fail_msg("parameter %llu is %.9g and %.9g", (unsigned long long)i,
				 (double)a->values[i], (double)b->values[i]);
	assert_int_equal(a->param_size, b->param_size);
	assert_memory_equal(a->param, b->param, a->param_size);
	for (uint64_t step = 0; step <= N_STEPS; step++)
		if (a->scales.scales[step] != 0 && b->scales.scales[step] != 0 &&
		    (a->scales.scales[step] != b->scales.scales[step] ||
		     a->scales.overflowed[step] != b->scales.overflowed[step]))
			fail_msg("after step %llu the scale is %g and %g, overflows %d and %d",
				 (unsigned long long)step, a->scales.scales[step],
				 b->scales.scales[step], a->scales.overflowed[step],
				 b->scales.overflowed[step]);
	if (a->moments_size == b->moments_size)
		assert_memory_equal(a->moments, b->moments, a->moments_size);
}

/* The plain loop, in one process: sums in the order of ranks, and the kernel. */
struct oracle {
	const struct setup *setup;
	uint32_t first; /* of the ranks, in the mesh */
	struct weightd_plan *p;
	uint64_t n_updates, n_finite;
	double scale;
	void *param; /* PARAM in its own type */
	float *value, *m, *v;
	void *grads[RANKS_MAX];
	float *sums[RANKS_MAX]; /* of each node */
	float *sum; /* the mean gradient */
};

static inline void *zeros(uint64_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	return memset(memory, 0, size);
}

static inline void oracle_init(struct oracle *o, const struct setup *setup)
{
	uint64_t n;

	*o = (struct oracle){.setup = setup,
			     .p = plan_make(setup),
			     .scale = setup->init_scale > 0 ? setup->init_scale : 1};
	n = o->p->n_elements * sizeof(float);
	o->param = zeros(n);
	o->value = zeros(n);
	o->m = zeros(n);
	o->v = zeros(n);
	o->sum = zeros(n);
	for (uint32_t r = 0; r < setup->n_ranks; r++) {
		o->grads[r] = zeros(n);
		o->sums[r] = zeros(n);
	}
	for (uint32_t i = 0; i < N_TENSORS; i++) {
		struct plan_interval elements = plan_elements(o->p, &o->p->tensors[i]);

		for (uint64_t k = elements.begin;
		     plan_is_trained(&o->p->tensors[i]) && k < elements.end; k++)
			o->value[k] = value_first(k);
	}
}

/* In the order of the ranks of each node, then in that of the nodes. */
static inline void oracle_sum_nodes(struct oracle *o, const struct kernel_grads *all)
{
	uint32_t n_ranks = ranks_of(o->setup), n_nodes = o->setup->n_ranks / n_ranks;

	for (uint32_t node = 0; node < n_nodes; node++) {
		struct kernel_grads g = *all;

		g.n = n_ranks;
		g.grads += node * n_ranks;
		g.weights = g.weights ? g.weights + node * n_ranks : NULL;
		kernels_get()->sum(&o->sums[node], 1, &g, o->p->n_elements, false);
	}
	for (uint64_t i = 0; i < o->p->n_elements; i++) {
		o->sum[i] = o->sums[0][i];
		for (uint32_t node = 1; node < n_nodes; node++)
			o->sum[i] += o->sums[node][i];
	}
}

/* The gradients of all ranks, and their mean. */
static inline void oracle_sum(struct oracle *o, uint64_t step)
{
	const struct setup *setup = o->setup;
	enum kernel_type type = optimizer_type(o->p->grad_dtype);
	float weights[RANKS_MAX];
	struct kernel_grads g = {.grads = (const void *const *)o->grads,
				 .weights = setup->is_weighted ? weights : NULL,
				 .n = setup->n_ranks,
				 .scale = setup->is_weighted ? 1 : 1 / (float)setup->n_ranks,
				 .type = type};
	double sum = 0;

	g.scale *= 1 / (float)o->scale;
	for (uint32_t r = 0; r < setup->n_ranks; r++)
		sum += weight_of(setup, o->first + r);
	for (uint32_t r = 0; r < setup->n_ranks; r++)
		weights[r] = (float)(weight_of(setup, o->first + r) / sum);
	for (uint32_t i = 0; i < N_TENSORS; i++) {
		struct plan_interval elements = plan_elements(o->p, &o->p->tensors[i]);
		uint64_t at = elements.begin;

		for (uint32_t r = 0; plan_is_trained(&o->p->tensors[i]) && r < setup->n_ranks; r++)
			grads_make(setup, o->p, elements,
				   (uint8_t *)o->param + o->p->tensors[i].offset, o->first + r, step,
				   o->scale, (uint8_t *)o->grads[r] + at * kernel_type_size(type));
		for (uint32_t r = 0; r < setup->n_ranks; r++)
			if (is_unused(setup, i, o->first + r, step))
				memset((uint8_t *)o->grads[r] + at * kernel_type_size(type), 0,
				       (elements.end - at) * kernel_type_size(type));
	}
	oracle_sum_nodes(o, &g);
}

/* True: the mean gradient is finite. The scale of the next step follows from it. */
static inline bool oracle_decide(struct oracle *o)
{
	bool is_finite = true;

	for (uint64_t i = 0; o->setup->init_scale > 0 && i < o->p->n_elements; i++)
		is_finite &= isfinite(o->sum[i]);
	if (!is_finite) {
		o->scale /= 2;
		o->n_finite = 0;
	} else if (o->setup->init_scale > 0 && ++o->n_finite == 3) {
		o->scale *= 2;
		o->n_finite = 0;
	}
	return is_finite;
}

static inline double oracle_squares(const struct oracle *o, struct plan_interval part)
{
	return kernels_get()->squares(o->sum + part.begin, part.end - part.begin);
}

/* The coefficient of clip_grad_norm_(); squares are summed in the order of nodes, then in that of ranks. */
static inline float oracle_clip(const struct oracle *o)
{
	const struct weightd_plan *p = o->p;
	double all = 0;
	float coefficient;

	if (o->setup->max_norm <= 0)
		return 1;
	for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
		double line = 0;

		for (uint32_t node = 0; node < p->n_sharing; node++) {
			const struct plan_pieces *own = plan_pieces(p, node, rank);
			double sum = 0;

			for (uint32_t i = 0; i < own->n; i++)
				sum += oracle_squares(o, own->pieces[i].interval);
			line += sum;
		}
		all += line;
	}
	coefficient = (float)o->setup->max_norm / ((float)sqrt(all) + 1e-6f);
	return coefficient > 1 ? 1 : coefficient;
}

static inline void oracle_update(struct oracle *o, uint64_t step)
{
	o->n_updates++;
	for (uint32_t i = 0; i < o->p->n_runs; i++) {
		struct plan_interval run = o->p->runs[i].interval;
		uint32_t group = o->p->runs[i].group;
		double lr = rate(step, group);
		double bias1 = 1 - pow(0.9, (double)o->n_updates);
		struct kernel_adam k = {
			.decay = (float)(1 - lr * (0.1 * group)),
			.beta1_rest = (float)(1 - 0.9),
			.beta2 = (float)0.99,
			.beta2_rest = (float)(1 - 0.99),
			.bias2_sqrt = (float)sqrt(1 - pow(0.99, (double)o->n_updates)),
			.eps = (float)1e-8,
			.minus_step_size = (float)(-lr / bias1),
			.decoupled = true,
		};
		struct kernel_state s = {.param = o->value + run.begin,
					 .m = o->m + run.begin,
					 .v = o->v + run.begin,
					 .new_param = o->value + run.begin,
					 .new_m = o->m + run.begin,
					 .new_v = o->v + run.begin};
		struct kernel_grads g = {.grads = (const void *[]){o->sum + run.begin},
					 .n = 1,
					 .scale = oracle_clip(o)};

		if (o->setup->has_unused && group == o->p->tensors[BIAS].group && step % 3 == 0)
			continue;

		kernels_get()->adam(&k, &g, &s, run.end - run.begin);
	}
}

static inline void oracle_round(struct oracle *o)
{
	kernels_get()->round(o->param, optimizer_type(o->p->param_dtype), o->value,
			     o->p->n_elements);
}

/* False: the step overflowed. */
static inline bool oracle_step(struct oracle *o, uint64_t step)
{
	bool is_finite;

	if (step == o->setup->nan_step && o->first <= 1 && o->first + o->setup->n_ranks > 1)
		return true;
	oracle_sum(o, step);
	is_finite = oracle_decide(o);
	if (is_finite)
		oracle_update(o, step);
	oracle_round(o);
	return is_finite;
}

/* Frees the rest of it. */
static inline void oracle_free(struct oracle *o)
{
	for (uint32_t r = 0; r < o->setup->n_ranks; r++) {
		free(o->grads[r]);
		free(o->sums[r]);
	}
	free(o->sum);
	weightd_plan_free(o->p);
}

/* Takes the values of the oracle. `ret->moments` are left out. */
static inline struct result oracle_end(struct oracle *o)
{
	struct result result = {.n_elements = o->p->n_elements,
				.param = o->param,
				.param_size = plan_part(o->p, WEIGHTD_KIND_PARAM)->used,
				.values = o->value,
				.m = o->m,
				.v = o->v};

	oracle_free(o);
	return result;
}

static inline struct result oracle_run(const struct setup *setup)
{
	struct scales scales = {0};
	struct result result;
	struct oracle o;

	oracle_init(&o, setup);
	oracle_round(&o);
	scales.scales[0] = o.scale;
	for (uint64_t step = 1; step <= N_STEPS; step++) {
		scales.overflowed[step] = !oracle_step(&o, step);
		scales.scales[step] = o.scale;
	}
	result = oracle_end(&o);
	result.scales = scales;
	return result;
}

/* --- Runs --------------------------------------------------------------------------------------------- */

static inline struct result run_whole(const struct setup *setup)
{
	pid_t pids[RANKS_MAX];
	struct result result;

	train_job_start(setup->n_ranks);
	scales_start();
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
	{.strategy = "zero2"},
	{.strategy = "zero3"},
};

/* Follows a rank for `n` instructions from where it stops. False: it ended before. */
static inline bool rank_follow(pid_t pid, uint64_t n)
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
