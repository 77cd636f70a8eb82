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
#include "libclient/train/plan/control.h"
#include "libclient/train/plan/nodes.h"
#include "tests/unit/train_model.h"

#define ROUNDS 400

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

static bool is_zero3(const struct weightd_plan *p)
{
	return !strcmp(p->strategy, "zero3");
}

/* By the names of the strategies. */
static bool pools(const struct weightd_plan *p)
{
	return is_zero3(p) || !strcmp(p->strategy, "zero2");
}

static bool is_trained(const struct weightd_train_tensor *t)
{
	return t->role == WEIGHTD_PARAM && !t->frozen;
}

static bool has_elements(const struct weightd_train_tensor *t)
{
	return is_trained(t) && product(t);
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
		assert_int_equal(t.unit, is_zero3(p) && has_elements(&t) ? m->tensors[i].unit : 0);
		assert_int_equal(t.level, is_zero3(p) && has_elements(&t) ? m->tensors[i].level : 0);
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

/*
 * DDP-3: walks the tensors from the last one, and begins a bucket where the next tensor would be too much for the last; or
 * where another unit begins.
 */
static uint32_t count_buckets(const struct weightd_plan *p)
{
	uint64_t first = p->bucket_bytes < MIB ? p->bucket_bytes : MIB;
	uint64_t end = p->n_elements, begin = end;
	uint32_t n = 0, unit = 0;

	for (uint32_t i = p->n_tensors; i-- > 0;) {
		const struct weightd_train_tensor *t = &p->tensors[i];

		uint64_t at = t->offset / size_of_param(p);

		if (!is_trained(t) || t->n_bytes == 0)
			continue;
		if (begin == end || (is_zero3(p) ? t->unit != unit
						 : (end - at) * size_of_grad(p) >
							   (n == 1 ? first : p->bucket_bytes))) {
			end = begin;
			n++;
		}
		begin = at;
		unit = t->unit;
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

static uint64_t find_largest(const struct weightd_plan *p)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < p->n_buckets; i++)
		most = length(p->buckets[i]) > most ? length(p->buckets[i]) : most;
	return most;
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
	uint64_t flat_size = p->n_elements * param_size;
	uint64_t used = is_zero3(p) && p->n_nodes > mesh_replicas(p) ? p->n_state * param_size
								     : flat_size;
	uint64_t range = used - p->n_padding * param_size + weightd_plan_padding(p);
	/* The strides of all kinds are those of their own sizes: rounded up to pages, or to huge pages. */
	uint64_t bucket = find_largest(p);
	uint64_t grad = stride_of((pools(p) ? bucket : p->n_elements) * size_of_grad(p));
	uint64_t flat = stride_of(p->n_elements * 4), state = stride_of(p->n_state * 4);
	uint64_t staged = pools(p) && p->n_nodes > 1 ? 2 * stride_of(bucket * 4) : 0;
	uint64_t n = p->n_ranks, n_updates = plan_is_replicated(p) ? n : 1;
	bool two_phase = p->form == WEIGHTD_STEP_TWO_PHASE;

	assert_int_equal(p->parts[0].kind, WEIGHTD_KIND_JOURNAL);
	for (uint32_t i = 0; i < p->n_parts; i++) {
		assert_true(i == 0 || p->parts[i].kind > p->parts[i - 1].kind);
		assert_true(p->parts[i].used > 0 && p->parts[i].used <= p->parts[i].stride);
		assert_int_equal(p->parts[i].stride % PLAN_PAGE, 0);
	}
	assert_int_equal(param->used, used);
	assert_int_equal(param->stride, stride_of(used));
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_PARAM), p->n_copies * range);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GRAD), n * (p->staleness + 1) * grad);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_REDUCED), pools(p)    ? state
								      : two_phase ? flat
										  : 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_STAGED), staged);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_MOMENTS),
			 n_updates * p->n_moments * state);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_MASTER),
			 param_size == 2 ? n_updates * state : 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_RECEIVED),
			 p->n_nodes > 1 ? p->n_nodes * stride_of(p->n_received * 4) : 0);
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
	assert_true(l.buckets + n * p->n_buckets * sizeof(struct control_bucket) <= l.rooms);
	assert_int_equal(l.rooms % 64, 0);
	assert_true(l.rooms + n * p->n_rooms * sizeof(struct control_word) <= l.summaries);
	assert_int_equal(l.summaries % 64, 0);
	assert_int_equal(l.summary_stride % 64, 0);
	assert_true(l.summaries + (p->n_nodes > 1 ? n * 2 * p->n_nodes * l.summary_stride : 0) <=
		    l.saved);
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

/*
 * Inside a node. Z-3, DDP-2: by the names of the strategies; S is the flat range, in GRAD, in REDUCED and in PARAM. Nodes that
 * average parameters write them once more.
 */
static void check_traffic(const struct weightd_plan *p)
{
	uint64_t s = p->n_elements, n = p->n_ranks, read = 0, written = 0;

	for (uint32_t r = 0; r < p->n_ranks; r++) {
		struct weightd_traffic t = {.size = sizeof(t)};
		uint64_t own = p->cuts[r + 1] - p->cuts[r];

		assert_int_equal(weightd_plan_traffic(p, r, &t), 0);
		assert_int_equal(t.sent == 0, p->n_nodes == 1);
		if (!strcmp(p->strategy, "replicated")) {
			assert_int_equal(t.read, own * (n - 1) * size_of_grad(p) + (s - own) * 4);
			assert_int_equal(t.written, 0);
		} else {
			assert_int_equal(t.read, own * (n - 1) * size_of_grad(p));
			assert_int_equal(t.written, (p->sync_every ? 2 : 1) * own *
							    (p->n_copies - 1) * size_of_param(p));
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
	bool has[WEIGHTD_KINDS] = {
		[WEIGHTD_KIND_PARAM] = true,
		[WEIGHTD_KIND_MASTER] = plan_has_master(p),
		[WEIGHTD_KIND_GATHERED] = p->n_rooms >
					  0, /* the passes ask for units when they need them */
	};
	uint64_t of_type[PLAN_GATHER_REPLICAS + 1] = {0};
	bool two_phase = p->form == WEIGHTD_STEP_TWO_PHASE;

	assert_int_equal(p->ops[0].type, PLAN_COMPUTE);
	assert_int_equal(p->ops[p->n_ops - 1].type, PLAN_COMMIT);
	for (uint32_t i = 0; i < p->n_ops; i++) {
		const struct plan_op *op = &p->ops[i];

		/* During backward buckets are summed before their turn; where there is no room to wait, then is their turn. */
		if (op->type == PLAN_SCATTER && op->bucket != UINT32_MAX && !pools(p))
			continue;
		assert_true(op->waits == WEIGHTD_KIND_JOURNAL || has[op->waits]);
		assert_true(op->from == WEIGHTD_KIND_JOURNAL || has[op->from]);
		assert_true(op->produces == WEIGHTD_KIND_JOURNAL || op->produces == op->to);
		has[op->produces] = true;
		assert_int_equal(op->lag, op->waits == WEIGHTD_KIND_PARAM ? p->staleness : 0);
		of_type[op->type] += length(op->interval);
		if (op->type == PLAN_COMPUTE || op->type == PLAN_DECIDE ||
		    op->type == PLAN_UPDATE || op->type == PLAN_GATHER || op->type == PLAN_COMMIT)
			assert_int_equal(length(op->interval), p->n_elements);
		if (op->placement_from != op->placement_to && op->type != PLAN_COMPUTE) {
			struct weightd_redistribution d = {.size = sizeof(d)};

			assert_int_equal(weightd_redistribution(op->placement_from,
								op->placement_to, 0, &d),
					 0);
		}
	}
	assert_int_equal(of_type[PLAN_REDUCE], two_phase ? p->n_elements : 0);
	assert_int_equal(of_type[PLAN_SUM], p->n_nodes > 1 ? p->n_elements : 0);
	if (pools(p))
		assert_int_equal(of_type[PLAN_SCATTER], of_type[PLAN_SUM]);
	assert_int_equal(of_type[PLAN_SCATTER_REPLICAS], mesh_replicas(p) > 1 ? p->n_elements : 0);
	assert_int_equal(of_type[PLAN_GATHER_REPLICAS], of_type[PLAN_SCATTER_REPLICAS]);
	assert_true(p->n_rooms ? of_type[PLAN_FETCH] >= p->n_elements : !of_type[PLAN_FETCH]);
}

static void plans_of_random_models_keep_their_rules(void **state)
{
	unsigned n_made = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct weightd_plan *p = NULL;
		struct model m;

		model_draw(&m);
		if (model_is_possible(&m)) {
			p = model_plan(&m);
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
	model_add_param(m, "wte", 50257, width);
	model_add_param(m, "wpe", 1024, width);
	model_add_param(m, "attn", n_layers * 4 * width, width);
	model_add_param(m, "mlp", n_layers * 8 * width, width);
	model_add_param(m, "bias", n_layers * 9, width);
	model_add_param(m, "ln", 4 * n_layers + 2, width);
}

static void check_big(struct model *m, bool is_huge)
{
	struct weightd_plan *p = model_plan(m);
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
			model_add_param(&ragged, name, 1009 + 2 * i, 1013);
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
		model_add_param(&m, "w", 33, 7);
		for (size_t g = 0; g < ARRAY_LEN(m.groups); g++)
			m.groups[g].momentum = cases[i].momentum;
		p = model_plan(&m);
		assert_int_equal(p->n_moments, cases[i].n_moments);
		assert_int_equal(plan_part(p, WEIGHTD_KIND_MOMENTS) != NULL, cases[i].n_moments > 0);
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

static uint32_t count_of(const char *with_memory, const char *with_cpus)
{
	struct numa_nodes memory, cpus;

	assert_true(numa_nodes_parse(with_memory, &memory));
	assert_true(numa_nodes_parse(with_cpus, &cpus));
	return nodes_count(&memory, &cpus);
}

static void copies_are_one_for_each_node_that_has_ranks(void **state)
{
	struct weightd_plan *p;
	struct model m;

	(void)state;
	assert_int_equal(count_of("0", "0"), 1);
	assert_int_equal(count_of("0-1", "0-1"), 2);
	assert_int_equal(count_of("0-3,8,10-11", "0,2,8-10"), 4);
	assert_int_equal(count_of("0-1", "1"), 1);
	assert_int_equal(count_of("", ""), 1);
	assert_int_equal(count_of("0-1023", "0-1023"), 1024);
	model_init(&m, 4, "shared", WEIGHTD_ADAMW);
	model_add_param(&m, "w", 33, 7);
	m.options.n_copies = 2;
	p = model_plan(&m);
	assert_int_equal(plan_part(p, WEIGHTD_KIND_PARAM)->n, 2);
	assert_int_equal(plan_copy(p, 1), 0);
	assert_int_equal(plan_copy(p, 2), 1);
	weightd_plan_free(p);
	m.options.n_copies = 0;
	p = model_plan(&m);
	assert_true(p->n_copies >= 1 && p->n_copies <= 4);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Limits -------------------------------------------------------------------------------------- */

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
		cmocka_unit_test(buckets_have_a_limit),
		cmocka_unit_test(plans_of_many_tensors_take_no_time),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
