/*
 * Tests that the memory of several nodes, with exchanges that are copies, has the bits of a plain loop
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "libclient/train/scale.h"
#include "tests/unit/train_state.h"

const char *__asan_default_options(void);

/* AddressSanitizer would keep memory that was freed, whose pages each fork copies: most of its time. */
const char *__asan_default_options(void)
{
	return "quarantine_size_mb=1";
}

/* --- Kernels that may be the last ------------------------------------------------------------------ */

const struct kernels *__real_kernels_get(void);
void __real_wait_publish(struct control_word *word, uint64_t value);
const struct kernels *__wrap_kernels_get(void);
void __wrap_wait_publish(struct control_word *word, uint64_t value);

/* A kernel whose first half is an event calls itself for the rest. */
static size_t half_of(size_t n)
{
	return n / 2 / 32 * 32;
}

static struct kernel_grads grads_behind(const struct kernel_grads *g, size_t n,
					const void *ret_grads[KERNEL_RANKS_MAX])
{
	struct kernel_grads behind = *g;

	for (uint32_t i = 0; i < g->n; i++)
		ret_grads[i] = kernel_element(g->grads[i], g->type, n);
	behind.grads = ret_grads;
	return behind;
}

static struct kernel_state state_behind(struct kernel_state s, size_t n)
{
	s.param += n;
	s.new_param += n;
	s.m = s.m ? s.m + n : NULL;
	s.v = s.v ? s.v + n : NULL;
	s.new_m = s.new_m ? s.new_m + n : NULL;
	s.new_v = s.new_v ? s.new_v + n : NULL;
	s.rounded = s.rounded ? s.rounded + n : NULL;
	s.new_rounded = s.new_rounded ? s.new_rounded + n : NULL;
	return s;
}

static void mortal_adam(const struct kernel_adam *k, const struct kernel_grads *g,
			const struct kernel_state *s, size_t n)
{
	const void *grads[KERNEL_RANKS_MAX];
	size_t half = half_of(n);
	struct kernel_grads rest = grads_behind(g, half, grads);
	struct kernel_state state = state_behind(*s, half);

	__real_kernels_get()->adam(k, g, s, half);
	event();
	__real_kernels_get()->adam(k, &rest, &state, n - half);
	event();
}

static void mortal_sgd(const struct kernel_sgd *k, const struct kernel_grads *g,
		       const struct kernel_state *s, size_t n)
{
	const void *grads[KERNEL_RANKS_MAX];
	size_t half = half_of(n);
	struct kernel_grads rest = grads_behind(g, half, grads);
	struct kernel_state state = state_behind(*s, half);

	__real_kernels_get()->sgd(k, g, s, half);
	event();
	__real_kernels_get()->sgd(k, &rest, &state, n - half);
	event();
}

static void mortal_sum(float *const *to, uint32_t n_to, const struct kernel_grads *g, size_t n,
		       bool stream)
{
	const void *grads[KERNEL_RANKS_MAX];
	size_t half = half_of(n);
	struct kernel_grads rest = grads_behind(g, half, grads);

	assert(n_to == 1);
	__real_kernels_get()->sum(to, 1, g, half, stream);
	event();
	__real_kernels_get()->sum(&(float *){to[0] + half}, 1, &rest, n - half, stream);
	event();
}

static void mortal_round(void *to, enum kernel_type type, const float *from, size_t n)
{
	size_t half = half_of(n);

	__real_kernels_get()->round(to, type, from, half);
	event();
	__real_kernels_get()->round((uint8_t *)to + half * kernel_type_size(type), type,
				    from + half, n - half);
	event();
}

static void mortal_copy(void *to, const void *from, size_t n_bytes, bool stream)
{
	size_t half = n_bytes / 2 / 64 * 64;

	__real_kernels_get()->copy(to, from, half, stream);
	event();
	__real_kernels_get()->copy((uint8_t *)to + half, (const uint8_t *)from + half,
				   n_bytes - half, stream);
	event();
}

const struct kernels *__wrap_kernels_get(void)
{
	static struct kernels mortal;

	mortal = *__real_kernels_get();
	mortal.adam = mortal_adam;
	mortal.sgd = mortal_sgd;
	mortal.sum = mortal_sum;
	mortal.round = mortal_round;
	mortal.copy = mortal_copy;
	return &mortal;
}

void __wrap_wait_publish(struct control_word *word, uint64_t value)
{
	event();
	__real_wait_publish(word, value);
}

/* --- The plain loop -------------------------------------------------------------------------------- */

/* Values of a node; nodes that sum gradients all have the same. */
struct plain_node {
	uint64_t n_updates;
	void *param;
	float *value, *m, *v;
	float *sum; /* of its ranks; then of all nodes */
};

struct plain {
	const struct setup *setup;
	const struct weightd_plan *p;
	uint32_t n_nodes; /* that differ */
	struct plain_node nodes[NODES_MAX];
	void *grads[LOCAL_MAX];
	float scale;
	uint32_t n_finite;
};

static void *zeros(uint64_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	assert_non_null(memory);
	return memset(memory, 0, size);
}

static void plain_round(const struct plain *o, struct plain_node *node)
{
	kernels_at(0)->round(node->param, optimizer_type(o->p->param_dtype), node->value,
			     o->p->n_elements);
}

static void plain_init(struct plain *o, const struct state_world *w)
{
	uint64_t size = w->plan->n_elements * sizeof(float);

	*o = (struct plain){.setup = w->setup,
			    .p = w->plan,
			    .n_nodes = w->setup->sync_every ? w->setup->n_nodes : 1,
			    .scale = w->plan->has_scaling ? (float)w->setup->init_scale : 1};
	for (uint32_t i = 0; i < o->n_nodes; i++) {
		o->nodes[i] = (struct plain_node){.param = zeros(size),
						  .value = zeros(size),
						  .m = zeros(size),
						  .v = zeros(size),
						  .sum = zeros(size)};
		values_make(o->p, o->nodes[i].value);
		plain_round(o, &o->nodes[i]);
	}
	for (uint32_t i = 0; i < o->setup->n_ranks; i++)
		o->grads[i] = zeros(size);
}

static void plain_deinit(struct plain *o)
{
	for (uint32_t i = 0; i < o->n_nodes; i++) {
		free(o->nodes[i].param);
		free(o->nodes[i].value);
		free(o->nodes[i].m);
		free(o->nodes[i].v);
		free(o->nodes[i].sum);
	}
	for (uint32_t i = 0; i < o->setup->n_ranks; i++)
		free(o->grads[i]);
}

/* The sum of the gradients of a node's ranks, as their part of the mean of `n_all` ranks from `first` on. */
static void plain_sum(struct plain *o, const struct plain_node *of, uint32_t node, uint64_t step,
		      uint32_t first, uint32_t n_all, float *ret)
{
	uint32_t n = o->setup->n_ranks;
	float weights[LOCAL_MAX];
	struct kernel_grads g = {.grads = (const void *const *)o->grads,
				 .weights = o->setup->is_weighted ? weights : NULL,
				 .n = n,
				 .scale = o->setup->is_weighted ? 1 : 1 / (float)n_all,
				 .type = optimizer_type(o->p->grad_dtype)};
	double sum = 0;

	for (uint32_t i = 0; i < n_all; i++)
		sum += weight_of(o->setup, first + i);
	for (uint32_t i = 0; i < n; i++) {
		weights[i] = (float)(weight_of(o->setup, node * n + i) / sum);
		grads_make(o->setup, o->p, of->param, node * n + i, step, o->scale, o->grads[i]);
	}
	g.scale *= 1 / o->scale;
	kernels_at(0)->sum(&ret, 1, &g, o->p->n_elements, false);
}

static void plain_sum_all(struct plain *o, uint64_t step)
{
	struct plain_node *all = &o->nodes[0];
	float *part = zeros(o->p->n_elements * sizeof(float));

	for (uint32_t node = 0; node < o->setup->n_nodes; node++) {
		plain_sum(o, all, node, step, 0, mesh_size(o->setup), part);
		for (uint64_t e = 0; e < o->p->n_elements; e++)
			all->sum[e] = node ? all->sum[e] + part[e] : part[e];
	}
	free(part);
}

static bool plain_is_touched(const struct plain *o, uint64_t step, uint32_t tensor, uint32_t first,
			     uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!is_unused(o->setup, step, tensor, first + i))
			return true;
	return false;
}

static double plain_norm(const struct plain *o, const struct plain_node *node, uint64_t step)
{
	double sum = 0;

	for (uint32_t i = 0; i < o->p->n_tensors; i++) {
		struct plan_interval elements = plan_elements(o->p, &o->p->tensors[i]);

		if (plain_is_touched(o, step, i, 0, mesh_size(o->setup)))
			for (uint64_t e = elements.begin; e < elements.end; e++)
				sum += (double)node->sum[e] * node->sum[e];
	}
	return sqrt(sum);
}

/* `first` and `n`: the ranks whose gradients count. */
static void plain_update(const struct plain *o, struct plain_node *node, uint64_t step,
			 uint32_t first, uint32_t n, float clip)
{
	const double lr[] = {rate(step, 0), rate(step, 1)};
	struct journal_step u = {.grads = {node->sum}, .n_grads = 1, .scale = clip};

	optimizer_begin(&u, o->p, lr, ++node->n_updates);
	u.kernels = kernels_at(0);
	for (uint32_t i = 0; i < o->p->n_tensors; i++) {
		uint64_t begin = plan_elements(o->p, &o->p->tensors[i]).begin;
		uint64_t end = i + 1 < o->p->n_tensors
				       ? plan_elements(o->p, &o->p->tensors[i + 1]).begin
				       : o->p->n_elements;
		struct kernel_state s = {.param = node->value + begin,
					 .new_param = node->value + begin,
					 .m = node->m + begin,
					 .new_m = node->m + begin,
					 .v = node->v + begin,
					 .new_v = node->v + begin};

		if (plain_is_touched(o, step, i, first, n))
			optimizer_run(&u, o->p->tensors[i].group, begin, &s, end - begin);
	}
}

/* torch's, in fp32. The norm is that of the ranks, whose sum has another order than ours. */
static float plain_clip(const struct plain *o, const struct state_world *w, uint64_t step)
{
	double norm = w->record->norms[step], expected = plain_norm(o, &o->nodes[0], step);
	float clip;

	if (o->p->form == WEIGHTD_STEP_FUSED)
		return 1;
	if (fabs(norm - expected) > 1e-9 * expected)
		fail_msg("the norm of step %llu is %.12g, not %.12g", (unsigned long long)step,
			 norm, expected);
	clip = (float)o->setup->max_norm / ((float)norm + 1e-6f);
	return o->setup->max_norm > 0 && clip < 1 ? clip : 1;
}

static void plain_step_together(struct plain *o, const struct state_world *w, uint64_t step)
{
	bool is_finite = step != o->setup->overflow_step;

	if (step == o->setup->nan_step)
		return;
	plain_sum_all(o, step);
	if (!is_finite) {
		o->scale /= 2;
		o->n_finite = 0;
		return;
	}
	if (o->p->has_scaling && ++o->n_finite == o->p->scaling.interval) {
		o->scale *= 2;
		o->n_finite = 0;
	}
	/* Gradients had the scale before. */
	plain_update(o, &o->nodes[0], step, 0, mesh_size(o->setup), plain_clip(o, w, step));
}

static void plain_average(struct plain *o)
{
	for (uint64_t e = 0; e < o->p->n_elements; e++) {
		float sum = o->nodes[0].value[e];

		for (uint32_t i = 1; i < o->n_nodes; i++)
			sum += o->nodes[i].value[e];
		for (uint32_t i = 0; i < o->n_nodes; i++)
			o->nodes[i].value[e] = sum * (1 / (float)o->n_nodes);
	}
}

static void plain_step_alone(struct plain *o, uint64_t step)
{
	uint32_t n = o->setup->n_ranks;

	for (uint32_t i = 0; i < o->n_nodes; i++) {
		struct plain_node *node = &o->nodes[i];

		if (step == o->setup->nan_step && i + 1 == o->n_nodes)
			continue;
		plain_sum(o, node, i, step, i * n, n, node->sum);
		plain_update(o, node, step, i * n, n, 1);
	}
	if (step % o->setup->sync_every == 0)
		plain_average(o);
}

static void plain_run(struct plain *o, const struct state_world *w)
{
	for (uint64_t step = 1; step <= STEPS; step++) {
		if (o->setup->sync_every)
			plain_step_alone(o, step);
		else
			plain_step_together(o, w, step);
		for (uint32_t i = 0; i < o->n_nodes; i++)
			plain_round(o, &o->nodes[i]);
	}
}

/* --- Comparison ------------------------------------------------------------------------------------ */

static void expect_floats(const float *ours, const float *plain, uint64_t n, const char *what,
			  uint32_t node, uint64_t first)
{
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(&ours[i], &plain[i], sizeof(float)))
			fail_msg("%s %llu of node %u is %.9g, not %.9g", what,
				 (unsigned long long)(first + i), node, (double)ours[i],
				 (double)plain[i]);
}

/* Marks the memory that a rank may write, from the first place of its range on. */
static void expect_state(const struct state_world *w, uint32_t node, uint32_t rank,
			 enum weightd_kind kind, uint32_t index, uint8_t *memory,
			 const float *plain, bool *is_used)
{
	const struct weightd_plan *p = w->plan;
	const struct plan_pieces *updates = plan_updates(p, node, rank);
	float *ours = state_at(p, memory, kind, rank, index);
	uint64_t first = (uint64_t)(ours - (float *)(void *)memory);

	for (uint32_t i = 0; i < updates->n; i++) {
		const struct plan_piece *piece = &updates->pieces[i];

		expect_floats(ours + piece->at, plain + piece->interval.begin,
			      length(piece->interval),
			      kind == WEIGHTD_KIND_MASTER ? "original" : "moment", node,
			      piece->interval.begin);
		memset(is_used + first + piece->at, true, length(piece->interval));
	}
}

static void expect_poison(const uint8_t *memory, uint64_t size, const bool *is_used,
			  const char *what)
{
	for (uint64_t i = 0; i < size; i++)
		if (!is_used[i / sizeof(float)] && memory[i] != POISON)
			fail_msg("byte %llu of %s is nobody's, and changed", (unsigned long long)i,
				 what);
}

static void expect_kind(const struct state_world *w, uint32_t node, enum weightd_kind kind,
			const float *const *plain, uint32_t n)
{
	uint64_t size = weightd_plan_bytes(w->plan, kind);
	uint8_t *memory = state_map(w, node, kind);
	bool *is_used = calloc(size / sizeof(float) + 1, sizeof(*is_used));

	for (uint32_t rank = 0; memory && rank < w->setup->n_ranks; rank++)
		for (uint32_t i = 0; i < n; i++)
			expect_state(w, node, rank, kind, i, memory, plain[i], is_used);
	expect_poison(memory, size, is_used, weightd_kind_name(kind));
	free(is_used);
	state_unmap(w, kind, memory);
}

/* Places of ranks that no node's piece has, as pieces differ in length. */
static void expect_received(const struct state_world *w, uint32_t node)
{
	const enum weightd_kind kind = WEIGHTD_KIND_RECEIVED;
	uint64_t size = weightd_plan_bytes(w->plan, kind);
	uint64_t stride = stride_of(w->plan, kind) / sizeof(float);
	uint8_t *memory = state_map(w, node, kind);
	bool *is_used = calloc(size / sizeof(float) + 1, sizeof(*is_used));

	for (uint32_t i = 0; i < w->setup->n_nodes * w->setup->n_ranks; i++) {
		const struct plan_pieces *own = plan_pieces(w->plan, node, i % w->setup->n_ranks);

		for (uint32_t k = 0; k < own->n; k++)
			memset(is_used + i / w->setup->n_ranks * stride + own->pieces[k].at, true,
			       length(own->pieces[k].interval));
	}
	expect_poison(memory, size, is_used, "received");
	free(is_used);
	state_unmap(w, kind, memory);
}

static void expect_params(const struct state_world *w, uint32_t node, const struct plain_node *plain)
{
	const struct weightd_plan *p = w->plan;
	const struct plan_part *part = plan_part(p, WEIGHTD_KIND_PARAM);
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM);
	uint8_t *memory = state_map(w, node, WEIGHTD_KIND_PARAM);

	for (uint32_t copy = 0; copy < p->n_copies; copy++) {
		const uint8_t *ours = memory + copy * part->stride;

		for (uint64_t i = 0; i < p->n_elements; i++)
			if (memcmp(ours + i * size, (uint8_t *)plain->param + i * size, size))
				fail_msg("element %llu of copy %u of node %u differs",
					 (unsigned long long)i, copy, node);
		for (uint64_t i = p->n_elements * size; i < part->stride; i++)
			assert_int_equal(ours[i], POISON);
	}
	state_unmap(w, WEIGHTD_KIND_PARAM, memory);
}

static void expect_plain(const struct state_world *w)
{
	struct plain o;

	plain_init(&o, w);
	plain_run(&o, w);
	for (uint32_t node = 0; node < w->setup->n_nodes; node++) {
		const struct plain_node *plain = &o.nodes[w->setup->sync_every ? node : 0];

		expect_params(w, node, plain);
		expect_kind(w, node, WEIGHTD_KIND_MASTER, (const float *[]){plain->value}, 1);
		expect_kind(w, node, WEIGHTD_KIND_MOMENTS, (const float *[]){plain->m, plain->v},
			    w->plan->n_moments);
		if (w->plan->n_received)
			expect_received(w, node);
	}
	plain_deinit(&o);
}

/* --- Runs ------------------------------------------------------------------------------------------ */

static void expect_bits(const struct setup *setup, unsigned seed)
{
	struct state_world w;

	state_init(&w, setup);
	world_run(&w, seed);
	world_close(&w);
	expect_plain(&w);
	state_deinit(&w);
}

static const struct setup rows[] = {
	{.strategy = "shared"},
	{.strategy = "shared", .overlap = true, .max_norm = 1},
	{.strategy = "zero1", .max_norm = 0.5},
	{.strategy = "zero1", .optimizer = WEIGHTD_SGD, .overlap = true},
	{.strategy = "replicated", .max_norm = 1},
	{.strategy = "replicated", .overlap = true},
	{.strategy = "shared", .sync_every = 2},
	{.strategy = "shared", .sync_every = 3, .form = WEIGHTD_STEP_TWO_PHASE, .overlap = true},
};

static void test_bits_are_those_of_a_plain_loop(void **state)
{
	unsigned seed = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (uint32_t n_nodes = 1; n_nodes <= NODES_MAX; n_nodes++)
			for (uint32_t n_ranks = 1; n_ranks <= LOCAL_MAX; n_ranks++) {
				struct setup setup = rows[i];

				setup.n_nodes = n_nodes;
				setup.n_ranks = n_ranks;
				if (n_nodes == 1 && setup.sync_every)
					continue;
				if (setup.max_norm > 0)
					setup.form = WEIGHTD_STEP_TWO_PHASE;
				setup.is_weighted = (n_nodes + n_ranks) % 3 == 0;
				setup.has_unused = (n_nodes + n_ranks) % 2;
				expect_bits(&setup, seed++);
			}
}

static void test_bits_are_those_of_16_bits_and_originals(void **state)
{
	static const enum weightd_dtype dtypes[] = {WEIGHTD_BF16, WEIGHTD_F16};
	unsigned seed = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (uint32_t n_nodes = 2; n_nodes <= 3; n_nodes++) {
			struct setup setup = rows[i];

			setup.n_nodes = n_nodes;
			setup.n_ranks = 2;
			setup.dtype = dtypes[(i + n_nodes) % 2];
			setup.grad_dtype = i % 3 ? 0 : WEIGHTD_F32;
			setup.has_unused = i % 2;
			expect_bits(&setup, seed++);
		}
}

/* A loss that is no number, on the last rank; with local SGD its node alone does nothing. */
static void test_a_bad_loss_skips_the_step_on_all_nodes(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_nodes = 3;
		setup.n_ranks = 2;
		setup.nan_step = 3;
		expect_bits(&setup, (unsigned)i);
	}
}

static void test_an_overflow_of_one_node_skips_the_step_on_all(void **state)
{
	static const char *const strategies[] = {"shared", "zero1", "replicated"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++) {
		const struct setup setup = {.strategy = strategies[i],
					    .n_nodes = 3,
					    .n_ranks = 2,
					    .dtype = WEIGHTD_F16,
					    .overlap = i == 1,
					    .init_scale = 1024,
					    .overflow_step = 4};

		expect_bits(&setup, (unsigned)i);
	}
}

/* Most ranks own nothing. */
static void test_models_may_be_smaller_than_the_mesh(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_nodes = NODES_MAX;
		setup.n_ranks = LOCAL_MAX;
		setup.is_small = true;
		expect_bits(&setup, (unsigned)i);
	}
}

static void test_all_copies_of_parameters_are_the_same(void **state)
{
	static const enum weightd_dtype dtypes[] = {WEIGHTD_F32, WEIGHTD_BF16};

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		const struct setup setup = {.strategy = "shared",
					    .n_nodes = 2,
					    .n_ranks = 3,
					    .n_copies = 2,
					    .dtype = dtypes[i % 2],
					    .sync_every = i / 2 % 2 ? 2 : 0,
					    .without_journal = i / 4};

		expect_bits(&setup, i);
	}
}

static struct weightd_traffic traffic_of(const struct weightd_plan *p, uint32_t rank)
{
	struct weightd_traffic t = {.size = sizeof(t)};

	assert_int_equal(weightd_plan_traffic(p, rank, &t), 0);
	return t;
}

/* Steps in which all parameters are used, with equal weights. */
static void test_bytes_are_those_of_the_plan(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];
		struct state_world w;

		setup.n_nodes = 3;
		setup.n_ranks = 2;
		setup.n_copies = strcmp(setup.strategy, "shared") ? 0 : 2;
		setup.sync_every = setup.sync_every ? 1 : 0;
		state_init(&w, &setup);
		world_run(&w, 1);
		for (uint32_t rank = 0; rank < mesh_size(&setup); rank++) {
			struct weightd_traffic plan = traffic_of(w.plan, rank);

			assert_int_equal(w.ranks[rank].t->n_read, STEPS * plan.read);
			assert_int_equal(w.ranks[rank].t->n_written, STEPS * plan.written);
			assert_int_equal(w.ranks[rank].sent, STEPS * plan.sent);
		}
		world_close(&w);
		state_deinit(&w);
	}
}

/* --- Kills ----------------------------------------------------------------------------------------- */

struct life {
	struct state_world *world;
	unsigned seed, fatal;
};

static int life_main(uint32_t rank, void *data)
{
	const struct life *life = data;

	(void)rank;
	events.n = 0;
	events.fatal = life->fatal;
	world_run(life->world, life->seed);
	return 0;
}

/* True: all ranks ended by themselves. */
static bool world_live(struct state_world *w, unsigned seed, unsigned fatal)
{
	struct life life = {w, seed, fatal};
	int status = train_job_join(train_job_fork(life_main, 0, &life));

	if (status != 128 + SIGKILL)
		assert_int_equal(status, 0);
	return status == 0;
}

/* Kills all ranks at random events, until they reach the end. Lives become longer, so that they do. */
static unsigned expect_bits_of_killed(const struct setup *setup, unsigned seed)
{
	struct state_world w;
	unsigned n_kills = 0;

	state_init(&w, setup);
	while (!world_live(&w, seed + n_kills, 1 + draw(100 + 4 * n_kills)))
		n_kills++;
	expect_plain(&w);
	state_deinit(&w);
	return n_kills;
}

static void test_killed_ranks_continue_to_the_same_bits(void **state)
{
	unsigned n_kills = 0, seed = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (uint32_t n_nodes = 2; n_nodes <= 3; n_nodes++) {
			struct setup setup = rows[i];

			setup.n_nodes = n_nodes;
			setup.n_ranks = 4 - n_nodes;
			setup.is_weighted = i % 2;
			setup.has_unused = n_nodes == 2;
			setup.dtype = i % 3 == 1 ? WEIGHTD_BF16 : 0;
			setup.nan_step = i % 4 == 2 ? 3 : 0;
			n_kills += expect_bits_of_killed(&setup, seed++);
		}
	print_message("%u kills\n", n_kills);
}

/* The first steps, killed at each event in turn. */
static void test_each_event_may_be_the_last(void **state)
{
	static const struct setup setups[] = {
		{.strategy = "shared", .n_nodes = 2, .n_ranks = 2, .n_copies = 2, .overlap = true},
		{.strategy = "replicated", .n_nodes = 2, .n_ranks = 1, .overlap = true},
		{.strategy = "shared",
		 .n_nodes = 2,
		 .n_ranks = 1,
		 .sync_every = 1,
		 .dtype = WEIGHTD_BF16},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		bool is_done = false;

		for (unsigned fatal = 1; !is_done; fatal += 17) {
			struct state_world w;

			state_init(&w, &setups[i]);
			is_done = world_live(&w, 1, fatal);
			events.fatal = 0;
			world_run(&w, fatal);
			world_close(&w);
			expect_plain(&w);
			state_deinit(&w);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bits_are_those_of_a_plain_loop),
		cmocka_unit_test(test_bits_are_those_of_16_bits_and_originals),
		cmocka_unit_test(test_a_bad_loss_skips_the_step_on_all_nodes),
		cmocka_unit_test(test_an_overflow_of_one_node_skips_the_step_on_all),
		cmocka_unit_test(test_models_may_be_smaller_than_the_mesh),
		cmocka_unit_test(test_all_copies_of_parameters_are_the_same),
		cmocka_unit_test(test_bytes_are_those_of_the_plan),
		cmocka_unit_test(test_killed_ranks_continue_to_the_same_bits),
		cmocka_unit_test(test_each_event_may_be_the_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
