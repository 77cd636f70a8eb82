/*
 * Plans of random models: what each must keep to, beside computations of a few lines that share nothing with it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/control.h"
#include "libclient/train/plan/nodes.h"

#define ROUNDS 400
#define TENSORS 40
#define DIMS 3
#define GOLDEN "tests/unit/train_plan.json"

static unsigned draw(unsigned n)
{
	return (unsigned)(random() % n);
}

/* --- Models ------------------------------------------------------------------------------------- */

/* Options and tensors, which the caller may change before a plan is made. */
struct model {
	struct weightd_mesh *mesh;
	struct weightd_group groups[4];
	struct weightd_train_tensor tensors[TENSORS];
	uint64_t shapes[TENSORS][DIMS];
	char names[TENSORS][24];
	uint32_t n_tensors;
	struct weightd_scaling scaling;
	struct weightd_plan_options options;
};

static struct weightd_mesh *mesh_of(uint32_t n_ranks)
{
	const struct weightd_mesh_dim dim = {"dp", n_ranks};
	struct weightd_mesh *m = NULL;

	assert_int_equal(weightd_mesh_new(&dim, 1, &m), 0);
	return m;
}

static void model_init(struct model *m, uint32_t n_ranks, const char *strategy,
		       enum weightd_optimizer optimizer)
{
	*m = (struct model){.mesh = mesh_of(n_ranks)};
	for (size_t i = 0; i < ARRAY_LEN(m->groups); i++)
		m->groups[i] = (struct weightd_group){.size = sizeof(*m->groups),
						      .weight_decay = 0.01 * (double)i,
						      .beta1 = 0.9,
						      .beta2 = 0.999,
						      .eps = 1e-8,
						      .momentum = 0.9};
	m->scaling = (struct weightd_scaling){.size = sizeof(m->scaling),
					      .init = 65536,
					      .growth = 2,
					      .backoff = 0.5,
					      .interval = 2000};
	m->options = (struct weightd_plan_options){.size = sizeof(m->options),
						   .mesh = m->mesh,
						   .strategy = strategy,
						   .optimizer = optimizer,
						   .groups = m->groups,
						   .n_groups = ARRAY_LEN(m->groups),
						   .n_copies = !strcmp(strategy, "shared")};
}

static void model_deinit(struct model *m)
{
	weightd_mesh_free(m->mesh);
}

static struct weightd_train_tensor *add(struct model *m, const char *name, enum weightd_role role,
					enum weightd_dtype dtype, uint64_t rows, uint64_t columns)
{
	uint32_t i = m->n_tensors++;

	assert_true(i < TENSORS);
	(void)snprintf(m->names[i], sizeof(m->names[i]), "%s", name);
	m->shapes[i][0] = rows;
	m->shapes[i][1] = columns;
	m->tensors[i] = (struct weightd_train_tensor){.size = sizeof(*m->tensors),
						      .name = m->names[i],
						      .shape = m->shapes[i],
						      .n_dims = 2,
						      .dtype = dtype,
						      .role = role};
	return &m->tensors[i];
}

static void add_param(struct model *m, const char *name, uint64_t rows, uint64_t columns)
{
	(void)add(m, name, WEIGHTD_PARAM, WEIGHTD_F32, rows, columns);
}

/* A model of every kind of tensor that there is, empty ones and scalars among them. */
static void draw_tensors(struct model *m)
{
	static const enum weightd_dtype dtypes[] = {WEIGHTD_BOOL, WEIGHTD_U8, WEIGHTD_BF16,
						    WEIGHTD_F32, WEIGHTD_I64};
	static const enum weightd_dtype trained[] = {WEIGHTD_F32, WEIGHTD_F32, WEIGHTD_BF16,
						     WEIGHTD_F16};
	enum weightd_dtype dtype = trained[draw(ARRAY_LEN(trained))];
	uint32_t n = 1 + draw(TENSORS - 1);

	(void)add(m, "first", WEIGHTD_PARAM, dtype, 1 + draw(50), 1 + draw(50));
	for (uint32_t i = 1; i < n; i++) {
		bool is_param = draw(4) != 0, is_frozen = is_param && draw(4) == 0;
		char name[24];
		struct weightd_train_tensor *t;

		(void)snprintf(name, sizeof(name), "h.%u.%u", draw(10), i);
		t = add(m, name, is_param ? WEIGHTD_PARAM : WEIGHTD_BUFFER,
			is_param && !is_frozen ? dtype : dtypes[draw(ARRAY_LEN(dtypes))], draw(80),
			draw(80));
		t->n_dims = draw(DIMS);
		t->frozen = is_frozen;
		t->group = is_param ? draw(ARRAY_LEN(m->groups)) : 0;
	}
}

static void draw_model(struct model *m)
{
	static const char *const strategies[] = {"shared", "zero1", "replicated"};

	model_init(m, 1 + draw(6), strategies[draw(3)], WEIGHTD_ADAMW + draw(3));
	draw_tensors(m);
	m->options.form = draw(3);
	m->options.bucket_bytes = draw(2) ? 0 : 1 + draw(20000);
	m->options.overlap = draw(4) == 0;
	m->options.staleness = draw(4) == 0 ? 1 + draw(3) : 0;
	m->options.state_size = draw(2) ? 0 : 1 + draw(10000);
	m->options.without_journal = draw(8) == 0;
	m->options.grad_dtype = draw(3) == 0 ? WEIGHTD_F32 : 0;
	m->options.scaling = draw(4) == 0 ? &m->scaling : NULL;
	if (!strcmp(m->options.strategy, "shared"))
		m->options.n_copies = draw(2) ? 0 : 1 + draw(weightd_mesh_n_ranks(m->mesh));
}

static struct weightd_plan *plan_of(const struct model *m)
{
	struct weightd_plan *p = NULL;
	int r = weightd_plan_new(m->tensors, m->n_tensors, &m->options, &p);

	if (r < 0)
		fail_msg("no plan: %d: %s", r, weightd_train_error());
	return p;
}

/* Some options exclude each other. */
static bool is_possible(const struct weightd_plan_options *o)
{
	bool replicated = !strcmp(o->strategy, "replicated"),
	     shared = !strcmp(o->strategy, "shared");

	if (o->form == WEIGHTD_STEP_FUSED && (replicated || o->overlap || o->scaling))
		return false;
	if (o->staleness &&
	    (!shared || o->overlap || o->scaling || o->form == WEIGHTD_STEP_TWO_PHASE))
		return false;
	return true;
}

/* --- Properties --------------------------------------------------------------------------------- */

static uint64_t product(const struct weightd_train_tensor *t)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->n_dims; i++)
		n *= t->shape[i];
	return n;
}

/* Bytes of an element of the flat range; all trained parameters are as the first one. */
static uint64_t size_of_param(const struct weightd_plan *p)
{
	return p->tensors[0].dtype == WEIGHTD_F32 ? 4 : 2;
}

static uint64_t size_of_grad(const struct weightd_plan *p)
{
	return p->grad_dtype == WEIGHTD_F32 ? 4 : 2;
}

static bool is_trained(const struct weightd_train_tensor *t)
{
	return t->role == WEIGHTD_PARAM && !t->frozen;
}

static uint64_t length(struct plan_interval i)
{
	assert_true(i.begin <= i.end);
	return i.end - i.begin;
}

static void check_places(const struct model *m, const struct weightd_plan *p)
{
	uint64_t ends[3] = {0}, elements = 0; /* of parameters, frozen ones, buffers */

	assert_int_equal(weightd_plan_n_tensors(p), m->n_tensors);
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		struct weightd_train_tensor t = {.size = sizeof(t)};
		uint64_t *end = &ends[m->tensors[i].role == WEIGHTD_BUFFER ? 2
				      : m->tensors[i].frozen               ? 1
									   : 0];
		uint32_t found;

		assert_int_equal(weightd_plan_tensor(p, i, &t), 0);
		assert_string_equal(t.name, m->names[i]);
		assert_int_equal(weightd_plan_find(p, t.name, &found), 0);
		assert_int_equal(found, i);
		assert_int_equal(t.n_bytes, product(&t) * dtype_bits(t.dtype) / 8);
		assert_int_equal(t.offset % 64, 0);
		/* In order, disjoint, without gaps. */
		assert_true(t.offset >= *end && t.offset - *end < 64);
		*end = t.offset + t.n_bytes;
		assert_int_equal(t.frozen, m->tensors[i].frozen);
		assert_int_equal(t.group, is_trained(&t) ? m->tensors[i].group : 0);
		elements += is_trained(&t) ? product(&t) : 0;
	}
	assert_true(ends[0] <= p->n_elements * size_of_param(p));
	assert_true(ends[1] <= p->frozen_size && p->frozen_size - ends[1] < 64);
	assert_true(ends[2] <= p->buffer_size);
	assert_int_equal(p->n_elements % PLAN_CUT, 0);
	assert_int_equal(p->n_padding, p->n_elements - elements);
}

static void check_shards(const struct weightd_plan *p)
{
	uint64_t least = UINT64_MAX, most = 0;

	assert_int_equal(p->cuts[0], 0);
	assert_int_equal(p->cuts[p->n_ranks], p->n_elements);
	for (uint32_t r = 0; r < p->n_ranks; r++) {
		uint64_t begin, end, size = p->cuts[r + 1] - p->cuts[r];

		assert_int_equal(p->cuts[r] % PLAN_CUT, 0);
		least = size < least ? size : least;
		most = size > most ? size : most;
		assert_int_equal(weightd_plan_shard(p, r, &begin, &end), 0);
		if (plan_is_replicated(p))
			assert_int_equal(end - begin, p->n_elements);
		else
			assert_int_equal(begin, p->cuts[r]);
	}
	assert_true(most - least <= PLAN_CUT);
}

static void check_runs(const struct model *m, const struct weightd_plan *p)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < p->n_runs; i++) {
		assert_int_equal(p->runs[i].interval.begin, end);
		assert_true(i == 0 || p->runs[i].group != p->runs[i - 1].group);
		end = p->runs[i].interval.end;
	}
	assert_int_equal(end, p->n_elements);
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];
		uint32_t run = 0;

		if (!is_trained(t) || t->n_bytes == 0)
			continue;
		while (p->runs[run].interval.end <= t->offset / size_of_param(p))
			run++;
		assert_true((t->offset + t->n_bytes) / size_of_param(p) <= p->runs[run].interval.end);
		assert_int_equal(p->runs[run].group, m->tensors[i].group);
	}
}

/* DDP-3: walks the tensors from the last one, and begins a bucket where the next tensor would be too much for the last. */
static uint32_t count_buckets(const struct weightd_plan *p)
{
	uint64_t first = p->bucket_bytes < MIB ? p->bucket_bytes : MIB;
	uint64_t end = p->n_elements, begin = end;
	uint32_t n = 0;

	for (uint32_t i = p->n_tensors; i-- > 0;) {
		const struct weightd_train_tensor *t = &p->tensors[i];

		uint64_t at = t->offset / size_of_param(p);

		if (!is_trained(t) || t->n_bytes == 0)
			continue;
		if (begin == end ||
		    (end - at) * size_of_grad(p) > (n == 1 ? first : p->bucket_bytes)) {
			end = begin;
			n++;
		}
		begin = at;
		assert_int_equal(p->buckets[n - 1].end, end);
		assert_true(p->buckets[n - 1].begin <= begin);
	}
	return n;
}

static void check_buckets(const struct weightd_plan *p)
{
	uint64_t begin = p->n_elements;

	if (p->form == WEIGHTD_STEP_FUSED) {
		assert_int_equal(p->n_buckets, 0);
		return;
	}
	assert_int_equal(p->n_buckets, count_buckets(p));
	for (uint32_t i = 0; i < p->n_buckets; i++) {
		uint64_t owned = 0;

		assert_int_equal(p->buckets[i].end, begin);
		begin = p->buckets[i].begin;
		assert_int_equal(plan_bucket_of(p, begin), i);
		assert_int_equal(plan_bucket_of(p, p->buckets[i].end - 1), i);
		for (uint32_t r = 0; r < p->n_ranks; r++)
			owned += length(plan_owned(p, r, p->buckets[i]));
		assert_int_equal(owned, length(p->buckets[i]));
	}
	assert_int_equal(begin, 0);
}

static uint64_t stride_of(uint64_t used)
{
	uint64_t page = (used + 4095) / 4096 * 4096, huge = (used + 2097151) / 2097152 * 2097152;

	return (huge - used) * 1024 <= used ? huge : page;
}

static void check_parts(const struct weightd_plan *p)
{
	const struct plan_part *param = plan_part(p, WEIGHTD_KIND_PARAM);
	uint64_t param_size = size_of_param(p);
	uint64_t range = (p->n_elements - p->n_padding) * param_size + weightd_plan_padding(p);
	/* The strides of all kinds are those of their own sizes: rounded up to pages, or to huge pages. */
	uint64_t grad = stride_of(p->n_elements * size_of_grad(p));
	uint64_t flat = stride_of(p->n_elements * 4);
	uint64_t n = p->n_ranks, n_updates = plan_is_replicated(p) ? n : 1;
	bool two_phase = p->form == WEIGHTD_STEP_TWO_PHASE;

	assert_int_equal(p->parts[0].kind, WEIGHTD_KIND_JOURNAL);
	for (uint32_t i = 0; i < p->n_parts; i++) {
		assert_true(i == 0 || p->parts[i].kind > p->parts[i - 1].kind);
		assert_true(p->parts[i].used > 0 && p->parts[i].used <= p->parts[i].stride);
		assert_int_equal(p->parts[i].stride % PLAN_PAGE, 0);
	}
	assert_int_equal(param->used, p->n_elements * param_size);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_PARAM), p->n_copies * range);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GRAD), n * (p->staleness + 1) * grad);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_REDUCED), two_phase ? flat : 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_MOMENTS),
			 n_updates * p->n_moments * flat);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_MASTER),
			 param_size == 2 ? n_updates * flat : 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_FROZEN),
			 p->frozen_size ? stride_of(p->frozen_size) : 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_BUFFER) == 0, p->buffer_size == 0);
	assert_true(weightd_plan_bytes(p, WEIGHTD_KIND_BUFFER) >= 2 * n * p->buffer_size);
}

static void check_copies(const struct weightd_plan *p)
{
	uint32_t last = 0;

	for (uint32_t r = 0; r < p->n_ranks; r++) {
		uint32_t copy = plan_copy(p, r);

		assert_true(copy == last || copy == last + 1);
		last = copy;
	}
	assert_int_equal(last, p->n_copies - 1);
}

/* Words of one rank share no line with those of another, and nothing overlaps. */
static void check_control(const struct weightd_plan *p)
{
	struct control_layout l = control_layout(p);
	uint64_t n = p->n_ranks;

	assert_true(sizeof(struct control_head) <= l.ranks);
	assert_int_equal(l.ranks % 64, 0);
	assert_true(l.ranks + n * sizeof(struct control_rank) <= l.buckets);
	assert_int_equal(l.buckets % 64, 0);
	assert_true(l.buckets + n * p->n_buckets * sizeof(struct control_bucket) <= l.saved);
	assert_int_equal(l.saved % 64, 0);
	assert_int_equal(l.saved_stride % 64, 0);
	assert_true(l.saved_stride >= sizeof(struct control_saved) + p->state_size);
	assert_true(l.saved + n * CONTROL_SAVED(p) * l.saved_stride <= l.logs);
	assert_int_equal(l.logs % 4096, 0);
	assert_int_equal(l.log_stride % 4096, 0);
	assert_true(l.log_stride >= (1ull + p->n_moments) * PLAN_BLOCK * 4 +
					    (size_of_param(p) == 2 ? PLAN_BLOCK * 2 : 0));
	assert_int_equal(l.logs + n * l.log_stride, l.size);
	assert_int_equal(l.size, plan_part(p, WEIGHTD_KIND_JOURNAL)->used);
}

/* Z-3, DDP-2: by the names of the strategies; S is the flat range, in GRAD, in REDUCED and in PARAM. */
static void check_traffic(const struct weightd_plan *p)
{
	uint64_t s = p->n_elements, n = p->n_ranks, read = 0, written = 0;

	for (uint32_t r = 0; r < p->n_ranks; r++) {
		struct weightd_traffic t = {.size = sizeof(t)};
		uint64_t own = p->cuts[r + 1] - p->cuts[r];

		assert_int_equal(weightd_plan_traffic(p, r, &t), 0);
		assert_int_equal(t.sent, 0);
		if (!strcmp(p->strategy, "replicated")) {
			assert_int_equal(t.read, own * (n - 1) * size_of_grad(p) + (s - own) * 4);
			assert_int_equal(t.written, 0);
		} else {
			assert_int_equal(t.read, own * (n - 1) * size_of_grad(p));
			assert_int_equal(t.written, own * (p->n_copies - 1) * size_of_param(p));
		}
		read += t.read;
		written += t.written;
	}
	/* 2 S (N - 1) / N for each rank of DDP and ZeRO-1, S (N - 1) / N for those of a shared replica, on average. */
	if (!strcmp(p->strategy, "zero1"))
		assert_int_equal(read + written, s * (n - 1) * (size_of_grad(p) + size_of_param(p)));
	else if (!strcmp(p->strategy, "replicated"))
		assert_int_equal(read + written, s * (n - 1) * (size_of_grad(p) + 4));
	else
		assert_int_equal(read, s * (n - 1) * size_of_grad(p));
}

/* An operation waits for what an earlier one, or the step before, produced. */
static void check_ops(const struct weightd_plan *p)
{
	bool has[WEIGHTD_KINDS] = {[WEIGHTD_KIND_PARAM] = true};
	uint64_t reduced = 0;

	assert_int_equal(p->ops[0].type, PLAN_COMPUTE);
	assert_int_equal(p->ops[p->n_ops - 2].type, PLAN_UPDATE);
	assert_int_equal(p->ops[p->n_ops - 1].type, PLAN_COMMIT);
	for (uint32_t i = 0; i < p->n_ops; i++) {
		const struct plan_op *op = &p->ops[i];

		assert_true(op->waits == WEIGHTD_KIND_JOURNAL || has[op->waits]);
		assert_true(op->from == WEIGHTD_KIND_PARAM || has[op->from]);
		assert_true(op->produces == WEIGHTD_KIND_JOURNAL || op->produces == op->to);
		has[op->produces] = true;
		assert_int_equal(op->lag, op->waits == WEIGHTD_KIND_PARAM ? p->staleness : 0);
		if (op->type == PLAN_REDUCE)
			reduced += length(op->interval);
		else
			assert_int_equal(length(op->interval), p->n_elements);
		if (op->placement_from != op->placement_to && op->type != PLAN_COMPUTE) {
			struct weightd_redistribution d = {.size = sizeof(d)};

			assert_int_equal(weightd_redistribution(op->placement_from,
								op->placement_to, 0, &d),
					 0);
		}
	}
	assert_int_equal(reduced, p->form == WEIGHTD_STEP_TWO_PHASE ? p->n_elements : 0);
}

static void plans_of_random_models_keep_their_rules(void **state)
{
	unsigned n_made = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct weightd_plan *p = NULL;
		struct model m;

		draw_model(&m);
		if (is_possible(&m.options)) {
			p = plan_of(&m);
			check_places(&m, p);
			check_shards(p);
			check_runs(&m, p);
			check_buckets(p);
			check_parts(p);
			check_copies(p);
			check_control(p);
			check_traffic(p);
			check_ops(p);
			weightd_plan_free(p);
			n_made++;
		} else {
			assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &m.options, &p),
					 -EINVAL);
			assert_null(p);
		}
		model_deinit(&m);
	}
	assert_true(n_made > ROUNDS / 3);
}

/* --- Sizes -------------------------------------------------------------------------------------- */

/* GPT-2 of `n_layers` layers, its tensors stacked: what counts is their sizes. */
static void add_gpt2(struct model *m, uint64_t width, uint64_t n_layers)
{
	add_param(m, "wte", 50257, width);
	add_param(m, "wpe", 1024, width);
	add_param(m, "attn", n_layers * 4 * width, width);
	add_param(m, "mlp", n_layers * 8 * width, width);
	add_param(m, "bias", n_layers * 9, width);
	add_param(m, "ln", 4 * n_layers + 2, width);
}

static void check_big(struct model *m, bool is_huge)
{
	struct weightd_plan *p = plan_of(m);
	uint64_t padding = weightd_plan_padding(p), sum = 0;
	uint64_t s = plan_part(p, WEIGHTD_KIND_PARAM)->stride - padding;

	for (unsigned kind = WEIGHTD_KIND_PARAM; kind < WEIGHTD_KINDS; kind++)
		sum += weightd_plan_bytes(p, kind);
	/* Z-2: (3 + n) S for Adam on one replica, exactly, and padding apart. */
	assert_int_equal(sum, (3 + p->n_ranks) * (s + padding));
	assert_true(padding * 1000 < s);
	if (is_huge)
		assert_int_equal(plan_part(p, WEIGHTD_KIND_GRAD)->stride % PLAN_HUGE, 0);
	weightd_plan_free(p);
}

static void padding_of_big_models_is_below_a_thousandth(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 8; n++) {
		struct model small, large, ragged;

		model_init(&small, n, "shared", WEIGHTD_ADAMW);
		add_gpt2(&small, 768, 12);
		check_big(&small, false);
		model_deinit(&small);

		model_init(&large, n, "shared", WEIGHTD_ADAM);
		add_gpt2(&large, 1600, 48);
		check_big(&large, true);
		model_deinit(&large);

		/* No size is a multiple of anything. */
		model_init(&ragged, n, "shared", WEIGHTD_ADAMW);
		for (uint32_t i = 0; i < TENSORS; i++) {
			char name[24];

			(void)snprintf(name, sizeof(name), "odd.%u", i);
			add_param(&ragged, name, 1009 + 2 * i, 1013);
		}
		check_big(&ragged, false);
		model_deinit(&ragged);
	}
}

static void moments_follow_the_optimizer(void **state)
{
	static const struct {
		enum weightd_optimizer optimizer;
		double momentum;
		uint32_t n_moments;
	} cases[] = {{WEIGHTD_ADAMW, 0.9, 2},
		     {WEIGHTD_ADAM, 0.9, 2},
		     {WEIGHTD_SGD, 0.9, 1},
		     {WEIGHTD_SGD, 0, 0}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *p;
		struct model m;

		model_init(&m, 2, "shared", cases[i].optimizer);
		add_param(&m, "w", 33, 7);
		for (size_t g = 0; g < ARRAY_LEN(m.groups); g++)
			m.groups[g].momentum = cases[i].momentum;
		p = plan_of(&m);
		assert_int_equal(p->n_moments, cases[i].n_moments);
		assert_int_equal(plan_part(p, WEIGHTD_KIND_MOMENTS) != NULL, cases[i].n_moments > 0);
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

static void copies_are_one_for_each_node_that_has_ranks(void **state)
{
	struct weightd_plan *p;
	struct model m;

	(void)state;
	assert_int_equal(nodes_count("0\n", "0\n"), 1);
	assert_int_equal(nodes_count("0-1\n", "0-1\n"), 2);
	assert_int_equal(nodes_count("0-3,8,10-11\n", "0,2,8-10\n"), 4);
	assert_int_equal(nodes_count("0-1\n", "1\n"), 1);
	assert_int_equal(nodes_count("", ""), 1);
	assert_int_equal(nodes_count("0-99999999999999999999\n", "0-1023\n"), 1024);
	model_init(&m, 4, "shared", WEIGHTD_ADAMW);
	add_param(&m, "w", 33, 7);
	m.options.n_copies = 2;
	p = plan_of(&m);
	assert_int_equal(plan_part(p, WEIGHTD_KIND_PARAM)->n, 2);
	assert_int_equal(plan_copy(p, 1), 0);
	assert_int_equal(plan_copy(p, 2), 1);
	weightd_plan_free(p);
	m.options.n_copies = 0;
	p = plan_of(&m);
	assert_true(p->n_copies >= 1 && p->n_copies <= 4);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Round trips -------------------------------------------------------------------------------- */

static void assert_equal_plans(const struct weightd_plan *a, const struct weightd_plan *b)
{
	uint8_t hash_a[16], hash_b[16];
	char *json_a, *json_b, difference[256];

	assert_int_equal(a->image_size, b->image_size);
	assert_memory_equal(a->image, b->image, a->image_size);
	weightd_plan_hash(a, hash_a);
	weightd_plan_hash(b, hash_b);
	assert_memory_equal(hash_a, hash_b, sizeof(hash_a));
	assert_int_equal(weightd_plan_compare(a, b, difference, sizeof(difference)), 0);
	assert_string_equal(difference, "");
	/* The JSON has what is derived, too. */
	assert_int_equal(weightd_plan_json(a, &json_a), 0);
	assert_int_equal(weightd_plan_json(b, &json_b), 0);
	assert_string_equal(json_a, json_b);
	free(json_a);
	free(json_b);
}

static void plans_survive_both_of_their_forms_bit_for_bit(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS / 4; round++) {
		struct weightd_plan *p, *again = NULL;
		struct model m;
		uint64_t size;
		const void *image;
		char *json;

		draw_model(&m);
		for (size_t i = 0; i < ARRAY_LEN(m.groups); i++)
			m.groups[i].weight_decay = (double)random() / 3e12;
		if (is_possible(&m.options)) {
			p = plan_of(&m);
			image = weightd_plan_image(p, &size);
			assert_int_equal(weightd_plan_parse(image, size, &again), 0);
			assert_equal_plans(p, again);
			weightd_plan_free(again);
			assert_int_equal(weightd_plan_json(p, &json), 0);
			if (weightd_plan_parse_json(json, strlen(json), &again) < 0)
				fail_msg("%s", weightd_train_error());
			assert_equal_plans(p, again);
			free(json);
			weightd_plan_free(again);
			weightd_plan_free(p);
		}
		model_deinit(&m);
	}
}

static void small_model(struct model *m, const char *strategy)
{
	model_init(m, 3, strategy, WEIGHTD_ADAMW);
	m->options.n_groups = 2;
	add_param(m, "h.0.weight", 24, 16);
	m->tensors[m->n_tensors - 1].group = 1;
	add_param(m, "h.0.bias", 1, 24);
	add_param(m, "h.1.weight", 4, 8);
	m->tensors[m->n_tensors - 1].group = 1;
	(void)add(m, "steps", WEIGHTD_BUFFER, WEIGHTD_I64, 1, 1);
}

/* The plan as another release would have made it, by the place of the release in its binary form. */
static struct weightd_plan *plan_of_release(const struct model *m, const char *release)
{
	struct weightd_plan *p = plan_of(m), *ret = NULL;
	char *image = malloc(p->image_size);

	memcpy(image, p->image, p->image_size);
	assert_string_equal(image + 12, p->release);
	memset(image + 12, 0, 16);
	(void)strcpy(image + 12, release);
	assert_int_equal(weightd_plan_parse(image, p->image_size, &ret), 0);
	free(image);
	weightd_plan_free(p);
	return ret;
}

/* People keep plans as files: a change of these bytes, or of the hash in them, is a change of the format. */
static void json_of_a_small_model_is_as_it_was(void **state)
{
	char golden[32768] = "";
	struct weightd_plan *p;
	struct model m;
	FILE *f = fopen(GOLDEN, "re");
	char *json;

	(void)state;
	assert_non_null(f);
	golden[fread(golden, 1, sizeof(golden) - 1, f)] = 0;
	(void)fclose(f);
	small_model(&m, "zero1");
	m.options.form = WEIGHTD_STEP_TWO_PHASE;
	m.options.bucket_bytes = 256;
	p = plan_of_release(&m, "0.1.0");
	assert_int_equal(weightd_plan_json(p, &json), 0);
	if (strcmp(golden, json)) {
		(void)puts(json);
		fail_msg("this is not " GOLDEN);
	}
	free(json);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Differences -------------------------------------------------------------------------------- */

static void set_ranks(struct model *m)
{
	weightd_mesh_free(m->mesh);
	m->options.mesh = m->mesh = mesh_of(2);
}

static void set_mesh_name(struct model *m)
{
	const struct weightd_mesh_dim dim = {"data", 3};

	weightd_mesh_free(m->mesh);
	assert_int_equal(weightd_mesh_new(&dim, 1, &m->mesh), 0);
	m->options.mesh = m->mesh;
}

static void set_strategy(struct model *m)
{
	m->options.strategy = "zero1";
	m->options.n_copies = 0;
}

static void set_optimizer(struct model *m)
{
	m->options.optimizer = WEIGHTD_ADAM;
}

static void set_form(struct model *m)
{
	m->options.form = WEIGHTD_STEP_TWO_PHASE;
}

static void set_bucket(struct model *m)
{
	m->options.bucket_bytes = 1000;
}

static void set_staleness(struct model *m)
{
	m->options.staleness = 2;
}

static void set_copies(struct model *m)
{
	m->options.n_copies = 3;
}

static void set_state(struct model *m)
{
	m->options.state_size = 100;
}

static void set_journal(struct model *m)
{
	m->options.without_journal = true;
}

static void set_n_groups(struct model *m)
{
	m->options.n_groups = 3;
}

static void set_decay(struct model *m)
{
	m->groups[1].weight_decay = 0.02;
}

static void set_beta1(struct model *m)
{
	m->groups[0].beta1 = 0.8;
}

static void set_beta2(struct model *m)
{
	m->groups[0].beta2 = 0.99;
}

static void set_eps(struct model *m)
{
	m->groups[0].eps = 1e-6;
}

static void set_shape(struct model *m)
{
	m->shapes[2][1] = 9;
}

static void set_rank_of_shape(struct model *m)
{
	m->tensors[2].n_dims = 1;
}

static void set_name(struct model *m)
{
	(void)strcpy(m->names[1], "h.0.offset");
}

static void set_order(struct model *m)
{
	struct weightd_train_tensor first = m->tensors[0];

	m->tensors[0] = m->tensors[1];
	m->tensors[1] = first;
}

static void set_fewer(struct model *m)
{
	m->n_tensors--;
}

static void set_more(struct model *m)
{
	add_param(m, "head", 2, 2);
}

static void set_group(struct model *m)
{
	m->tensors[0].group = 0;
}

static void set_role(struct model *m)
{
	m->tensors[1].role = WEIGHTD_BUFFER;
}

static void set_dtype(struct model *m)
{
	m->tensors[3].dtype = WEIGHTD_I32;
}

static void set_grads(struct model *m)
{
	m->tensors[0].dtype = m->tensors[1].dtype = m->tensors[2].dtype = WEIGHTD_BF16;
}

static void set_grad_dtype(struct model *m)
{
	set_grads(m);
	m->options.grad_dtype = WEIGHTD_F32;
}

static void set_frozen(struct model *m)
{
	m->tensors[1].frozen = true;
}

static void set_scaling(struct model *m)
{
	set_form(m);
	m->options.scaling = &m->scaling;
}

static const struct change {
	void (*change)(struct model *m);
	const char *sentence; /* of the changed one */
} changes[] = {
	{set_ranks, "this rank's mesh is (dp=2), the job's is (dp=3)"},
	{set_mesh_name, "this rank's mesh is (data=3), the job's is (dp=3)"},
	{set_strategy, "this rank's strategy is 'zero1', the job's is 'shared'"},
	{set_optimizer, "this rank's optimizer is 'adam', the job's is 'adamw'"},
	{set_form, "this rank's step form is 'two-phase', the job's is 'fused'"},
	{set_bucket, "this rank's plan has bucket_bytes 1000, the job's has 26214400"},
	{set_staleness, "this rank's plan has staleness 2, the job's has 0"},
	{set_copies, "this rank's plan has n_copies 3, the job's has 1"},
	{set_state, "this rank's plan has state_size 100, the job's has 4096"},
	{set_journal, "this rank's plan is without a journal, the job's is with"},
	{set_n_groups, "this rank's plan has parameter groups: 3, the job's has 2"},
	{set_decay, "this rank's parameter group 1 has weight_decay 0.02, the job's has 0.01"},
	{set_beta1, "this rank's parameter group 0 has beta1 0.8"},
	{set_beta2, "this rank's parameter group 0 has beta2 0.99"},
	{set_eps, "this rank's parameter group 0 has eps 1e-06, the job's has 1e-08"},
	{set_shape, "this rank's model has 'h.1.weight' F32 [4, 9], the job's has [4, 8]"},
	{set_rank_of_shape, "this rank's model has 'h.1.weight' F32 [4], the job's has [4, 8]"},
	{set_name, "this rank's model has 'h.0.offset', which the job's lacks"},
	{set_order,
	 "tensor 0 of this rank's model is 'h.0.bias', of the job's 'h.0.weight': their order differs"},
	{set_fewer, "the job's model has 'steps', which this rank's lacks"},
	{set_more, "this rank's model has 'head', which the job's lacks"},
	{set_group, "this rank's model has 'h.0.weight' in parameter group 0, the job's in 1"},
	{set_role, "this rank's model has 'h.0.bias' as a buffer, the job's as a param"},
	{set_dtype, "this rank's model has 'steps' I32 [1, 1], the job's has it I64 [1, 1]"},
	{set_grads,
	 "this rank's model has 'h.0.weight' BF16 [24, 16], the job's has it F32 [24, 16]"},
	{set_grad_dtype,
	 "this rank's model has 'h.0.weight' BF16 [24, 16], the job's has it F32 [24, 16]"},
	{set_frozen, "this rank's model has 'h.0.bias' frozen, the job's has it trained"},
	{set_scaling, "this rank's step form is 'two-phase', the job's is 'fused'"},
};

static void each_option_changes_the_hash_and_is_named(void **state)
{
	uint8_t hashes[ARRAY_LEN(changes) + 1][16];
	struct weightd_plan *p;
	struct model m;

	(void)state;
	small_model(&m, "shared");
	p = plan_of(&m);
	weightd_plan_hash(p, hashes[ARRAY_LEN(changes)]);
	for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
		char difference[512], reverse[512];
		struct weightd_plan *other;
		struct model changed;

		small_model(&changed, "shared");
		changes[i].change(&changed);
		other = plan_of(&changed);
		weightd_plan_hash(other, hashes[i]);
		for (size_t k = 0; k < ARRAY_LEN(changes) + 1; k++)
			assert_true(k == i || (k > i && k < ARRAY_LEN(changes)) ||
				    memcmp(hashes[k], hashes[i], 16));
		assert_int_equal(weightd_plan_compare(other, p, difference, sizeof(difference)), 1);
		if (strncmp(difference, changes[i].sentence, strlen(changes[i].sentence)))
			fail_msg("'%s' is not '%s'", difference, changes[i].sentence);
		assert_int_equal(weightd_plan_compare(p, other, reverse, sizeof(reverse)), 1);
		assert_string_not_equal(reverse, difference);
		/* A small buffer ends the sentence, and nothing else. */
		assert_int_equal(weightd_plan_compare(other, p, reverse, 10), 1);
		assert_int_equal(strlen(reverse), 9);
		weightd_plan_free(other);
		model_deinit(&changed);
	}
	weightd_plan_free(p);
	model_deinit(&m);
}

static void set_init(struct model *m)
{
	m->scaling.init = 1024;
}

static void set_growth(struct model *m)
{
	m->scaling.growth = 1.5;
}

static void set_backoff(struct model *m)
{
	m->scaling.backoff = 0.25;
}

static void set_interval(struct model *m)
{
	m->scaling.interval = 100;
}

static void set_no_scaling(struct model *m)
{
	m->options.scaling = NULL;
}

static void set_wide_grads(struct model *m)
{
	m->options.grad_dtype = WEIGHTD_F32;
}

/* Differences that only plans of 16 bits, or of two phases, can have. */
static void precision_is_named(void **state)
{
	static const struct change precisions[] = {
		{set_init, "this rank's plan has scaling with init 1024, the job's with 65536"},
		{set_growth, "this rank's plan has scaling with growth 1.5, the job's with 2"},
		{set_backoff, "this rank's plan has scaling with backoff 0.25, the job's with 0.5"},
		{set_interval, "this rank's plan has scaling interval 100, the job's has 2000"},
		{set_no_scaling, "this rank's plan is without scaling, the job's is with"},
		{set_wide_grads, "this rank's type of gradients is 'F32', the job's is 'BF16'"},
	};
	struct weightd_plan *p, *other;
	char difference[512];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(precisions); i++) {
		struct model m, changed;

		small_model(&m, "shared");
		set_scaling(&m);
		set_grads(&m);
		p = plan_of(&m);
		small_model(&changed, "shared");
		set_scaling(&changed);
		set_grads(&changed);
		precisions[i].change(&changed);
		other = plan_of(&changed);
		assert_int_equal(weightd_plan_compare(other, p, difference, sizeof(difference)), 1);
		assert_string_equal(difference, precisions[i].sentence);
		weightd_plan_free(other);
		weightd_plan_free(p);
		model_deinit(&m);
		model_deinit(&changed);
	}
}

/* A plan of another release parses, so that the difference has a name. */
static void another_release_is_the_first_difference(void **state)
{
	struct weightd_plan *p, *other;
	char difference[256];
	struct model m;

	(void)state;
	small_model(&m, "shared");
	p = plan_of(&m);
	other = plan_of_release(&m, "9.8.7");
	assert_int_equal(weightd_plan_compare(p, other, difference, sizeof(difference)), 1);
	assert_non_null(strstr(difference, "this rank's release of weightd is '"));
	assert_non_null(strstr(difference, "the job's is '9.8.7'"));
	weightd_plan_free(other);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* Values that another optimizer would use do not make two plans differ. */
static void fields_that_the_optimizer_lacks_are_left_out(void **state)
{
	struct weightd_plan *a, *b;
	char difference[256];
	struct model m;

	(void)state;
	small_model(&m, "shared");
	a = plan_of(&m);
	m.groups[0].momentum = 0.5;
	m.groups[1].nesterov = true;
	b = plan_of(&m);
	assert_int_equal(weightd_plan_compare(a, b, difference, sizeof(difference)), 0);
	weightd_plan_free(a);
	weightd_plan_free(b);
	model_deinit(&m);
}

/* --- Bad input ---------------------------------------------------------------------------------- */

static void bad_no_tensors(struct model *m)
{
	m->n_tensors = 0;
}

static void bad_no_params(struct model *m)
{
	for (uint32_t i = 0; i < m->n_tensors; i++)
		m->tensors[i].role = WEIGHTD_BUFFER;
}

static void bad_empty_params(struct model *m)
{
	for (uint32_t i = 0; i < m->n_tensors; i++)
		m->shapes[i][0] = 0;
}

static void bad_strategy(struct model *m)
{
	m->options.strategy = "zero4";
}

static void bad_no_strategy(struct model *m)
{
	m->options.strategy = NULL;
}

static void bad_mesh(struct model *m)
{
	const struct weightd_mesh_dim dims[] = {{"dp", 3}, {"tp", 1}};

	weightd_mesh_free(m->mesh);
	assert_int_equal(weightd_mesh_new(dims, 2, &m->mesh), 0);
	m->options.mesh = m->mesh;
}

static void bad_no_mesh(struct model *m)
{
	m->options.mesh = NULL;
}

static void bad_optimizer(struct model *m)
{
	m->options.optimizer = 4;
}

static void bad_no_groups(struct model *m)
{
	m->options.n_groups = 0;
}

static void bad_many_groups(struct model *m)
{
	m->options.n_groups = UINT32_MAX;
}

static void bad_beta(struct model *m)
{
	m->groups[1].beta2 = 1;
}

static void bad_eps(struct model *m)
{
	m->groups[1].eps = -1e-8;
}

static void bad_decay(struct model *m)
{
	m->groups[0].weight_decay = __builtin_nan("");
}

static void bad_momentum(struct model *m)
{
	m->options.optimizer = WEIGHTD_SGD;
	m->groups[1].momentum = __builtin_inf();
}

static void bad_nesterov(struct model *m)
{
	m->options.optimizer = WEIGHTD_SGD;
	m->groups[1].momentum = 0;
	m->groups[1].nesterov = true;
}

static void bad_fused(struct model *m)
{
	m->options.strategy = "replicated";
	m->options.n_copies = 0;
	m->options.form = WEIGHTD_STEP_FUSED;
}

static void bad_form(struct model *m)
{
	m->options.form = 3;
}

static void bad_overlap(struct model *m)
{
	m->options.form = WEIGHTD_STEP_FUSED;
	m->options.overlap = true;
}

static void bad_stale_zero1(struct model *m)
{
	set_strategy(m);
	m->options.staleness = 1;
}

static void bad_stale_two_phase(struct model *m)
{
	m->options.form = WEIGHTD_STEP_TWO_PHASE;
	m->options.staleness = 1;
}

static void bad_staleness(struct model *m)
{
	m->options.staleness = UINT32_MAX;
}

static void bad_copies(struct model *m)
{
	m->options.n_copies = 4;
}

static void bad_copies_of_zero1(struct model *m)
{
	m->options.strategy = "zero1";
	m->options.n_copies = 1;
}

static void bad_bucket(struct model *m)
{
	m->options.bucket_bytes = UINT64_MAX;
}

static void bad_state(struct model *m)
{
	m->options.state_size = PLAN_STATE_MAX + 1;
}

static void bad_repeated(struct model *m)
{
	(void)strcpy(m->names[2], m->names[0]);
}

static void bad_no_name(struct model *m)
{
	m->tensors[1].name = NULL;
}

static void bad_name(struct model *m)
{
	(void)strcpy(m->names[1], "\xff\033");
}

static void bad_dtype(struct model *m)
{
	m->tensors[0].dtype = WEIGHTD_F64;
}

static void bad_mixture(struct model *m)
{
	m->tensors[2].dtype = WEIGHTD_BF16;
}

static void bad_grad_dtype(struct model *m)
{
	m->options.grad_dtype = WEIGHTD_BF16;
}

static void bad_other_grad_dtype(struct model *m)
{
	set_grads(m);
	m->options.grad_dtype = WEIGHTD_F16;
}

static void bad_unknown_grad_dtype(struct model *m)
{
	m->options.grad_dtype = 200;
}

static void bad_frozen_buffer(struct model *m)
{
	m->tensors[3].frozen = true;
}

static void bad_frozen_dtype(struct model *m)
{
	m->tensors[0].frozen = true;
	m->tensors[0].dtype = WEIGHTD_F4;
}

static void bad_all_frozen(struct model *m)
{
	for (uint32_t i = 0; i < 3; i++)
		m->tensors[i].frozen = true;
}

static void bad_fused_scaling(struct model *m)
{
	m->options.form = WEIGHTD_STEP_FUSED;
	m->options.scaling = &m->scaling;
}

static void bad_scale(struct model *m)
{
	set_scaling(m);
	m->scaling.init = 1e39;
}

static void bad_growth(struct model *m)
{
	set_scaling(m);
	m->scaling.growth = 0.5;
}

static void bad_backoff(struct model *m)
{
	set_scaling(m);
	m->scaling.backoff = __builtin_nan("");
}

static void bad_interval(struct model *m)
{
	set_scaling(m);
	m->scaling.interval = 0;
}

static void bad_size_of_scaling(struct model *m)
{
	set_scaling(m);
	m->scaling.size = 0;
}

static void bad_code(struct model *m)
{
	m->tensors[0].dtype = 200;
}

static void bad_buffer(struct model *m)
{
	m->tensors[3].dtype = WEIGHTD_F4;
}

static void bad_role(struct model *m)
{
	m->tensors[3].role = 0;
}

static void bad_group(struct model *m)
{
	m->tensors[0].group = 2;
}

static void bad_size(struct model *m)
{
	m->shapes[2][0] = 1ull << 60;
}

static void bad_product(struct model *m)
{
	m->shapes[2][0] = m->shapes[2][1] = 1ull << 40;
}

static void bad_sum(struct model *m)
{
	m->shapes[0][0] = m->shapes[2][0] = 1ull << 20;
	m->shapes[0][1] = m->shapes[2][1] = 1ull << 20;
}

static void bad_dims(struct model *m)
{
	m->tensors[0].n_dims = 33;
}

static void bad_no_shape(struct model *m)
{
	m->tensors[0].shape = NULL;
}

static void bad_many_tensors(struct model *m)
{
	m->n_tensors = UINT32_MAX;
}

static void bad_wild_size(struct model *m)
{
	m->options.size = SIZE_MAX;
}

static void bad_size_of_options(struct model *m)
{
	m->options.size = 0;
}

static void bad_size_of_group(struct model *m)
{
	m->groups[0].size = 8;
}

static void bad_size_of_tensor(struct model *m)
{
	m->tensors[1].size = 0;
}

static void bad_plans_are_refused_with_a_reason(void **state)
{
	static const struct {
		void (*change)(struct model *m);
		int r;
		const char *sentence;
	} cases[] = {
		{bad_no_tensors, -EINVAL, "there are no parameters to train"},
		{bad_no_params, -EINVAL, "there are no parameters to train"},
		{bad_empty_params, -EINVAL, "there are no parameters to train"},
		{bad_strategy, -EINVAL,
		 "the strategy 'zero4' is unknown; there are 'shared', 'zero1' or 'replicated'"},
		{bad_no_strategy, -EINVAL, "the strategy NULL is unknown"},
		{bad_mesh, -EINVAL, "a plan has one mesh dimension"},
		{bad_no_mesh, -EINVAL, "the plan has no mesh"},
		{bad_optimizer, -EINVAL, "the optimizer 4 is unknown"},
		{bad_no_groups, -EINVAL, "1 to 64 parameter groups"},
		{bad_many_groups, -EINVAL, "1 to 64 parameter groups"},
		{bad_beta, -EINVAL, "parameter group 1 has betas 0.9 and 1"},
		{bad_eps, -EINVAL, "parameter group 1 has eps -1e-08"},
		{bad_decay, -EINVAL, "parameter group 0 has weight_decay nan"},
		{bad_momentum, -EINVAL, "parameter group 1 has momentum inf"},
		{bad_nesterov, -EINVAL, "parameter group 1 is nesterov, and has no momentum"},
		{bad_fused, -EINVAL, "the strategy 'replicated' has no fused step"},
		{bad_form, -EINVAL, "the step form 3 is unknown"},
		{bad_overlap, -EINVAL, "overlap needs buckets"},
		{bad_stale_zero1, -EINVAL, "the strategy 'zero1' has no staleness"},
		{bad_stale_two_phase, -EINVAL, "staleness needs the fused step"},
		{bad_staleness, -EINVAL, "a staleness of 4294967295 is too large; 63"},
		{bad_copies, -EINVAL, "4 copies are too many for 3 ranks"},
		{bad_copies_of_zero1, -EINVAL, "n_copies cannot be 1"},
		{bad_bucket, -EINVAL, "a bucket of 18446744073709551615 bytes is too large"},
		{bad_state, -EINVAL, "a state of 1048577 bytes is too large; 1048576"},
		{bad_repeated, -EINVAL, "two tensors are named 'h.0.weight'"},
		{bad_no_name, -EINVAL, "the name of tensor 1 has no bytes"},
		{bad_name, -EINVAL, "the name '\\xff\\x1b' of tensor 1 is not UTF-8"},
		{bad_dtype, -EOPNOTSUPP,
		 "the parameter 'h.0.weight' is F64; trained parameters are F32, BF16 or F16"},
		{bad_mixture, -EOPNOTSUPP,
		 "the parameter 'h.1.weight' is BF16, and 'h.0.weight' is F32; all trained parameters "
		 "have one element type"},
		{bad_grad_dtype, -EOPNOTSUPP,
		 "grad_dtype is BF16 and the parameters are F32; it is F32"},
		{bad_other_grad_dtype, -EOPNOTSUPP,
		 "grad_dtype is F16 and the parameters are BF16; it is BF16 or F32"},
		{bad_unknown_grad_dtype, -EINVAL, "the element type 200 of gradients is unknown"},
		{bad_frozen_buffer, -EINVAL, "the buffer 'steps' is frozen; only parameters can be"},
		{bad_frozen_dtype, -EOPNOTSUPP, "the frozen parameter 'h.0.weight' is F4"},
		{bad_all_frozen, -EINVAL, "there are no parameters to train"},
		{bad_fused_scaling, -EINVAL,
		 "scaling needs to know whether all gradients are finite"},
		{bad_scale, -EINVAL, "the first scale of the loss is 1e+39"},
		{bad_growth, -EINVAL, "the scale grows by 0.5; give a factor of 1 or more"},
		{bad_backoff, -EINVAL, "the scale backs off by nan"},
		{bad_interval, -EINVAL, "the scale grows every 0 steps"},
		{bad_size_of_scaling, -EINVAL, "the size of struct weightd_scaling was not set"},
		{bad_code, -EINVAL, "the element type 200 of 'h.0.weight' is unknown"},
		{bad_buffer, -EOPNOTSUPP, "the buffer 'steps' is F4"},
		{bad_role, -EINVAL, "'steps' is neither WEIGHTD_PARAM nor WEIGHTD_BUFFER"},
		{bad_group, -EINVAL, "'h.0.weight' is in parameter group 2, and there are 2"},
		{bad_size, -EINVAL, "'h.1.weight' has 1152921504606846976 elements in dimension 0"},
		{bad_product, -EINVAL, "'h.1.weight' has too many elements"},
		{bad_sum, -EINVAL, "'h.1.weight' has 4398046511104 bytes at offset"},
		{bad_dims, -EINVAL, "'h.0.weight' has 33 dimensions"},
		{bad_no_shape, -EINVAL, "'h.0.weight' has 2 dimensions and no shape"},
		{bad_many_tensors, -EINVAL, "4294967295 tensors are too many; 4194304"},
		{bad_wild_size, -EINVAL, "the size of struct weightd_plan_options was not set"},
		{bad_size_of_options, -EINVAL, "the size of struct weightd_plan_options was not set"},
		{bad_size_of_group, -EINVAL, "the size of struct weightd_group was not set"},
		{bad_size_of_tensor, -EINVAL, "the size of struct weightd_train_tensor was not set"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *p = NULL;
		struct model m;
		int r;

		small_model(&m, "shared");
		cases[i].change(&m);
		r = weightd_plan_new(m.tensors, m.n_tensors, &m.options, &p);
		if (r != cases[i].r || !strstr(weightd_train_error(), cases[i].sentence))
			fail_msg("%d '%s', expected %d '%s'", r, weightd_train_error(), cases[i].r,
				 cases[i].sentence);
		assert_null(p);
		model_deinit(&m);
	}
}

static void buckets_have_a_limit(void **state)
{
	uint64_t one = 1;
	struct weightd_train_tensor *tensors = calloc(PLAN_BUCKETS_MAX + 1, sizeof(*tensors));
	char(*names)[16] = calloc(PLAN_BUCKETS_MAX + 1, sizeof(*names));
	struct weightd_plan *p = NULL;
	struct model m;

	(void)state;
	model_init(&m, 2, "shared", WEIGHTD_ADAMW);
	m.options.form = WEIGHTD_STEP_TWO_PHASE;
	m.options.bucket_bytes = 1;
	for (uint32_t i = 0; i <= PLAN_BUCKETS_MAX; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%u", i);
		tensors[i] = (struct weightd_train_tensor){.size = sizeof(*tensors),
							   .name = names[i],
							   .shape = &one,
							   .n_dims = 1,
							   .dtype = WEIGHTD_F32,
							   .role = WEIGHTD_PARAM};
	}
	assert_int_equal(weightd_plan_new(tensors, PLAN_BUCKETS_MAX + 1, &m.options, &p), -EINVAL);
	assert_string_equal(weightd_train_error(),
			    "bucket_bytes of 1 make 16385 buckets; 16384 are the most: raise it");
	assert_int_equal(weightd_plan_new(tensors, PLAN_BUCKETS_MAX, &m.options, &p), 0);
	assert_int_equal(p->n_buckets, PLAN_BUCKETS_MAX);
	weightd_plan_free(p);
	model_deinit(&m);
	free(tensors);
	free(names);
}

/* An option of a newer release is refused where it is used, and ignored where it is zero. */
static void options_of_newer_releases_are_refused(void **state)
{
	struct {
		struct weightd_plan_options o;
		uint64_t next;
	} newer = {.next = 0};
	struct weightd_plan *p = NULL;
	struct model m;

	(void)state;
	small_model(&m, "shared");
	newer.o = m.options;
	newer.o.size = sizeof(newer);
	assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &newer.o, &p), 0);
	weightd_plan_free(p);
	p = NULL;
	newer.next = 1;
	assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &newer.o, &p), -E2BIG);
	assert_null(p);
	model_deinit(&m);
}

static void questions_about_what_a_plan_lacks_fail(void **state)
{
	struct weightd_train_tensor t = {.size = sizeof(t)}, unset = {0};
	struct weightd_traffic traffic = {.size = sizeof(traffic)};
	struct weightd_plan *p;
	struct model m;
	uint64_t begin, end;
	uint32_t i;

	(void)state;
	small_model(&m, "shared");
	p = plan_of(&m);
	assert_int_equal(weightd_plan_tensor(p, 4, &t), -ENOENT);
	assert_int_equal(weightd_plan_tensor(p, 0, &unset), -EINVAL);
	assert_int_equal(weightd_plan_find(p, "h.2.weight", &i), -ENOENT);
	assert_string_equal(weightd_train_error(), "the plan has no tensor 'h.2.weight'");
	assert_int_equal(weightd_plan_shard(p, 3, &begin, &end), -ENOENT);
	assert_int_equal(weightd_plan_traffic(p, 3, &traffic), -ENOENT);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KINDS), 0);
	assert_null(weightd_kind_name(WEIGHTD_KINDS));
	assert_string_equal(weightd_kind_name(WEIGHTD_KIND_MOMENTS), "MOMENTS");
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Hostile input ------------------------------------------------------------------------------ */

static void check_hostile_image(const void *image, uint64_t size)
{
	struct weightd_plan *p = NULL;
	int r = weightd_plan_parse(image, size, &p);

	if (r == 0) {
		assert_int_equal(p->image_size, size);
		assert_memory_equal(p->image, image, size);
		weightd_plan_free(p);
		return;
	}
	assert_int_equal(r, -EBADMSG);
	assert_true(strlen(weightd_train_error()) > 0);
	assert_null(p);
}

static void damaged_images_are_refused_or_are_plans(void **state)
{
	struct weightd_plan *p;
	struct model m;
	uint8_t *image;

	(void)state;
	small_model(&m, "shared");
	p = plan_of(&m);
	for (uint64_t size = 0; size < p->image_size; size++) {
		struct weightd_plan *none = NULL;

		image = malloc(size + 1); /* exactly as large, for sanitizers */
		memcpy(image, p->image, size);
		assert_int_equal(weightd_plan_parse(image, size, &none), -EBADMSG);
		free(image);
	}
	image = malloc(p->image_size + 1);
	for (uint64_t i = 0; i < p->image_size * 8; i++) {
		memcpy(image, p->image, p->image_size);
		image[i / 8] ^= (uint8_t)(1 << i % 8);
		check_hostile_image(image, p->image_size);
	}
	memcpy(image, p->image, p->image_size);
	image[p->image_size] = 0;
	assert_int_equal(weightd_plan_parse(image, p->image_size + 1, &p), -EBADMSG);
	assert_string_equal(weightd_train_error(), "the plan has 1 bytes behind its last tensor");
	free(image);
	weightd_plan_free(p);
	model_deinit(&m);
}

static void replace(const char *json, const char *from, const char *to, const char *sentence)
{
	const char *at = strstr(json, from);
	struct weightd_plan *p = NULL;
	char *text = malloc(strlen(json) + strlen(to) + 1);

	if (!at)
		fail_msg("the JSON lacks %s", from);
	(void)sprintf(text, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
	assert_int_equal(weightd_plan_parse_json(text, strlen(text), &p), -EBADMSG);
	if (!strstr(weightd_train_error(), sentence))
		fail_msg("'%s' lacks '%s'", weightd_train_error(), sentence);
	assert_null(p);
	free(text);
}

static void json_that_is_no_plan_is_refused_by_the_path_of_the_member(void **state)
{
	static const struct {
		const char *from, *to, *sentence;
	} cases[] = {
		{"{", "[", "the plan is not JSON: line "},
		{"\"format\": \"weightd-plan 2\"", "\"format\": \"weightd-plan 1\"",
		 "format of the plan must be \"weightd-plan 2\""},
		{"\"grad_dtype\": \"F32\"", "\"grad_dtype\": \"F99\"",
		 "grad_dtype of the plan must be an element type"},
		{"\"scaling\": null", "\"scaling\": 1",
		 "scaling of the plan must be null or an object"},
		{"\"scaling\": null", "\"scaling\": {\"init\": 1, \"growth\": 2, \"backoff\": 1}",
		 "scaling.interval of the plan must be an integer"},
		{"\"frozen\": false", "\"frozen\": 0",
		 "tensors[0].frozen of the plan must be true or false"},
		{"\"release\": \"", "\"release\": \"!", "is no release"},
		{"\"name\": \"dp\"", "\"name\": 3", "mesh[0].name of the plan must be a string"},
		{"\"size\": 3", "\"size\": -3", "mesh[0].size of the plan must be an integer"},
		{"\"strategy\": \"zero1\"", "\"strategy\": \"zero\"",
		 "the strategy 'zero' is unknown"},
		{"\"optimizer\": \"adamw\"", "\"optimizer\": \"lion\"",
		 "optimizer of the plan must be \"adamw\", \"adam\" or \"sgd\""},
		{"\"form\": \"two-phase\"", "\"form\": \"auto\"", "form of the plan must be"},
		{"\"bucket_bytes\": 256", "\"bucket_bytes\": \"1\"",
		 "bucket_bytes of the plan must be"},
		{"\"bucket_bytes\": 256", "\"bucket_bytes\": 0",
		 "bucket_bytes of the plan does not follow from its options, which make it 26214400"},
		{"\"overlap\": false", "\"overlap\": null",
		 "overlap of the plan must be true or false"},
		{"\"journal\": true,", "", "journal of the plan must be true or false"},
		{"\"beta1\": ", "\"beta1\": 1", "parameter group 0 has betas 1"},
		{"\"eps\": ", "\"eps\": false, \"e\": ", "groups[0].eps of the plan must be a number"},
		{"\"dtype\": \"F32\"", "\"dtype\": \"F99\"", "tensors[0].dtype of the plan must be"},
		{"\"role\": \"param\"", "\"role\": \"\"", "tensors[0].role of the plan must be"},
		{"\"group\": 1", "\"group\": 4294967296", "tensors[0].group of the plan must be"},
		{"\"shape\": [", "\"shape\": [ -1,", "tensors[0].shape[0] of the plan must be"},
		{"\"offset\": 0", "\"offset\": 64",
		 "tensors[0].offset of the plan does not follow from its options, which make it 0"},
		{"\"n_elements\": 448", "\"n_elements\": 480",
		 "n_elements of the plan does not follow"},
		{"\"cuts\": [", "\"cuts\": [ 0,", "cuts of the plan has 5 values"},
		{"\"stride\": ", "\"stride\": 1", "parts[0].stride of the plan does not follow"},
		{"\"lag\": 0", "\"lag\": 1", "ops[0].lag of the plan does not follow"},
		{"\"waits\": \"PARAM\"", "\"waits\": null",
		 "ops[0].waits of the plan does not follow from its options, which make it \"PARAM\""},
		{"\"hash\": \"", "\"hash\": \"0", "hash of the plan does not follow"},
		{"\"staleness\": 0", "\"staleness\": 0, \"extra\": 1",
		 "the top of the plan has a member 'extra', which is unknown"},
		{"\"staleness\": 0", "\"staleness\": 0, \"staleness\": 0", "the plan is not JSON"},
		{"\"sent\": 0", "\"sent\": 0, \"x\": 0",
		 "traffic[0] of the plan has a member 'x', which is unknown"},
		{"\"read\": ", "\"was\": ", "traffic[0].read of the plan is missing"},
	};
	struct weightd_plan *p;
	struct model m;
	char *json;

	(void)state;
	small_model(&m, "zero1");
	m.options.form = WEIGHTD_STEP_TWO_PHASE;
	m.options.bucket_bytes = 256;
	p = plan_of(&m);
	assert_int_equal(weightd_plan_json(p, &json), 0);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		replace(json, cases[i].from, cases[i].to, cases[i].sentence);
	assert_int_equal(weightd_plan_parse_json("[]", 2, &p), -EBADMSG);
	assert_string_equal(weightd_train_error(), "the plan must be a JSON object");
	free(json);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* The description of a job is a rank's, and other processes read it: it must not keep them busy. */
static void plans_of_many_tensors_take_no_time(void **state)
{
	enum {
		N = 150000,
		SECONDS_MAX = 15
	};
	struct weightd_train_tensor *all = calloc(N, sizeof(*all));
	char(*names)[8] = calloc(N, sizeof(*names));
	struct weightd_plan *p = NULL;
	struct model m;
	clock_t began;

	(void)state;
	assert_true(all && names);
	model_init(&m, 2, "shared", WEIGHTD_ADAMW);
	for (uint32_t i = 0; i < N; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%x", i);
		all[i] = (struct weightd_train_tensor){.size = sizeof(*all),
						       .name = names[i],
						       .dtype = WEIGHTD_BF16,
						       .role = WEIGHTD_PARAM};
	}
	began = clock();
	assert_int_equal(weightd_plan_new(all, N, &m.options, &p), 0);
	assert_in_range((clock() - began) / CLOCKS_PER_SEC, 0, SECONDS_MAX);
	weightd_plan_free(p);
	weightd_mesh_free(m.mesh);
	free(names);
	free(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plans_of_random_models_keep_their_rules),
		cmocka_unit_test(padding_of_big_models_is_below_a_thousandth),
		cmocka_unit_test(moments_follow_the_optimizer),
		cmocka_unit_test(copies_are_one_for_each_node_that_has_ranks),
		cmocka_unit_test(plans_survive_both_of_their_forms_bit_for_bit),
		cmocka_unit_test(json_of_a_small_model_is_as_it_was),
		cmocka_unit_test(each_option_changes_the_hash_and_is_named),
		cmocka_unit_test(precision_is_named),
		cmocka_unit_test(another_release_is_the_first_difference),
		cmocka_unit_test(fields_that_the_optimizer_lacks_are_left_out),
		cmocka_unit_test(bad_plans_are_refused_with_a_reason),
		cmocka_unit_test(buckets_have_a_limit),
		cmocka_unit_test(options_of_newer_releases_are_refused),
		cmocka_unit_test(questions_about_what_a_plan_lacks_fail),
		cmocka_unit_test(damaged_images_are_refused_or_are_plans),
		cmocka_unit_test(json_that_is_no_plan_is_refused_by_the_path_of_the_member),
		cmocka_unit_test(plans_of_many_tensors_take_no_time),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
