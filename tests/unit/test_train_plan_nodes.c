/*
 * Plans of several nodes: what each owns, what they exchange, and how much, beside computations that share nothing with them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/plan/control.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/spread.h"
#include "tests/unit/train_model.h"

#define ROUNDS 400

static uint64_t length(struct plan_interval i)
{
	assert_true(i.begin <= i.end);
	return i.end - i.begin;
}

static struct plan_interval overlap(struct plan_interval a, struct plan_interval b)
{
	uint64_t begin = a.begin > b.begin ? a.begin : b.begin;
	uint64_t end = a.end < b.end ? a.end : b.end;

	return (struct plan_interval){begin, end > begin ? end : begin};
}

static struct plan_interval shard_of(const struct weightd_plan *p, uint32_t rank)
{
	return (struct plan_interval){p->cuts[rank], p->cuts[rank + 1]};
}

static void set_mesh(struct model *m, uint32_t n_nodes, uint32_t n_ranks)
{
	weightd_mesh_free(m->mesh);
	m->options.mesh = m->mesh = mesh_of(n_nodes * n_ranks);
	m->options.n_nodes = n_nodes;
}

/* Nodes of a replica: all, where there is one. */
static uint32_t sharing(const struct weightd_plan *p)
{
	return p->n_nodes / mesh_replicas(p);
}

/* By the names of the strategies. */
static bool shards_params(const struct weightd_plan *p)
{
	return !strcmp(p->strategy, "zero3") && sharing(p) > 1;
}

/* RECEIVED has room for one bucket. */
static bool pools(const struct weightd_plan *p)
{
	return !strcmp(p->strategy, "zero2") || !strcmp(p->strategy, "zero3");
}

/* --- Pieces ------------------------------------------------------------------------------------- */

/* Blocks of 32 elements are dealt out, the first nodes have the longer parts, and the last one has the rest. */
static uint64_t share_of(uint64_t n, uint32_t node, uint32_t n_nodes)
{
	uint64_t n_blocks = 0;

	for (uint64_t block = 0; block < n / 32; block++)
		n_blocks += block % n_nodes == node;
	return n_blocks * 32 + (node == n_nodes - 1 ? n % 32 : 0);
}

/*
 * One bucket of one shard: in each replica, its pieces follow each other in the order of nodes, at one place. Returns the
 * longest.
 */
static uint64_t check_bucket(const struct weightd_plan *p, uint32_t rank, struct plan_interval cut,
			     uint32_t index, uint64_t at, uint64_t received)
{
	uint64_t end = 0, most = 0, least = UINT64_MAX;

	for (uint32_t node = 0; node < p->n_nodes; node++) {
		const struct plan_piece *piece = &plan_pieces(p, node, rank)->pieces[index];
		uint64_t n = length(piece->interval);
		uint32_t i = node % sharing(p);

		assert_int_equal(piece->interval.begin, i ? end : cut.begin);
		assert_int_equal(n, share_of(length(cut), i, sharing(p)));
		/* Cache lines of all kinds of memory. */
		assert_int_equal(
			piece->interval.begin * plan_element_size(p, WEIGHTD_KIND_PARAM) % 64, 0);
		assert_int_equal(piece->at, at);
		assert_int_equal(piece->received, received);
		assert_int_equal(at * plan_element_size(p, WEIGHTD_KIND_PARAM) % 64, 0);
		end = piece->interval.end;
		assert_true(i < sharing(p) - 1 || end == cut.end);
		most = n > most ? n : most;
		least = n < least ? n : least;
	}
	assert_true(most - least <= PLAN_CUT);
	return most;
}

/*
 * Of one rank of all nodes; in_bucket: elements that the ranks before it have in each bucket, and it. A piece of each bucket
 * that its shard has elements of, and of no other.
 */
static uint64_t check_rank(const struct weightd_plan *p, uint32_t rank, uint64_t at,
			   uint64_t *in_bucket)
{
	const struct plan_pieces *first = plan_pieces(p, 0, rank);
	uint32_t n_found = 0;
	uint64_t most;

	for (uint32_t node = 0; node < p->n_nodes; node++) {
		const struct plan_pieces *pieces = plan_pieces(p, node, rank);

		assert_int_equal(pieces->n, first->n);
		assert_int_equal(pieces->first, first->first);
	}
	if (!plan_sums_nodes(p)) {
		assert_int_equal(first->n, 1);
		return at + check_bucket(p, rank, shard_of(p, rank), 0, at, at);
	}
	for (uint32_t b = 0; b < p->n_buckets; b++) {
		struct plan_interval cut = overlap(shard_of(p, rank), p->buckets[b]);
		const struct plan_piece *piece = plan_piece_of(first, b);

		if (!length(cut)) {
			assert_true(!piece || !length(piece->interval));
			continue;
		}
		assert_ptr_equal(piece, &first->pieces[n_found]);
		most = check_bucket(p, rank, cut, n_found++, at, pools(p) ? in_bucket[b] : at);
		in_bucket[b] += most;
		at += most;
	}
	assert_int_equal(first->n, n_found ? n_found : 1);
	return at;
}

static void check_pieces(const struct weightd_plan *p)
{
	uint64_t *in_bucket = calloc(p->n_buckets + 1ull, sizeof(*in_bucket));
	uint64_t n_places = 0, most = 0;

	assert_non_null(in_bucket);
	for (uint32_t rank = 0; rank < p->n_ranks; rank++)
		n_places = check_rank(p, rank, n_places, in_bucket);
	for (uint32_t b = 0; b < p->n_buckets; b++)
		most = in_bucket[b] > most ? in_bucket[b] : most;
	free(in_bucket);
	assert_int_equal(p->n_received, p->n_nodes == 1 ? 0 : pools(p) ? most : n_places);
	assert_int_equal(p->n_state, plan_shards_state(p) ? n_places : p->n_elements);
	/* A block for each piece at most: that is what makes places the same on all nodes. */
	assert_true(n_places * sharing(p) <= p->n_elements + (uint64_t)p->n_pieces * sharing(p) * 32);
}

/* By the names of the strategies. */
static bool updates_pieces(const struct weightd_plan *p)
{
	return p->n_nodes > 1 && !p->sync_every && strcmp(p->strategy, "replicated") != 0;
}

/* The public functions say the same, of each rank of the mesh. */
static void check_updates(const struct weightd_plan *p)
{
	uint32_t n = weightd_mesh_n_ranks(p->mesh);
	uint64_t begin, end, total = 0;

	assert_int_equal(weightd_plan_n_nodes(p), p->n_nodes);
	for (uint32_t rank = 0; rank < n; rank++) {
		const struct plan_pieces *updates = plan_updates(p, rank / p->n_ranks,
								 rank % p->n_ranks);
		uint64_t shard_begin, shard_end, n_elements = 0;
		uint32_t i = 0;

		assert_int_equal(weightd_plan_shard(p, rank, &shard_begin, &shard_end), 0);
		for (; weightd_plan_piece(p, rank, i, &begin, &end) == 0; i++) {
			assert_true(shard_begin <= begin && begin <= end && end <= shard_end);
			assert_int_equal(updates->pieces[i].interval.begin, begin);
			n_elements += end - begin;
		}
		assert_int_equal(i, updates->n);
		assert_int_equal(n_elements, updates->n_elements);
		if (!updates_pieces(p))
			assert_int_equal(n_elements, shard_end - shard_begin);
		total += n_elements;
	}
	if (updates_pieces(p))
		assert_int_equal(total, p->n_elements * mesh_replicas(p));
	assert_int_equal(weightd_plan_piece(p, n, 0, &begin, &end), -ENOENT);
	assert_int_equal(weightd_plan_piece(p, 0, UINT32_MAX, &begin, &end), -ENOENT);
}

/* A part of a tensor is inside of a piece, and its place is there. */
static bool has_place(const struct plan_pieces *pieces, const struct plan_piece *part)
{
	for (uint32_t i = 0; i < pieces->n; i++) {
		const struct plan_piece *piece = &pieces->pieces[i];

		if (piece->interval.begin <= part->interval.begin &&
		    part->interval.end <= piece->interval.end)
			return part->at - piece->at == part->interval.begin - piece->interval.begin;
	}
	return false;
}

/* The parts of a tensor in pieces of all ranks are all of it, once in each replica. */
static void check_parts(const struct weightd_plan *p, const struct weightd_train_tensor *t,
			uint64_t *counts)
{
	struct plan_interval tensor = plan_elements(p, t);

	memset(counts, 0, p->n_elements * sizeof(*counts));
	for (uint32_t i = 0; i < p->n_nodes * p->n_ranks; i++) {
		uint32_t node = i / p->n_ranks, rank = i % p->n_ranks;
		struct spread parts = spread_of_rank(p, node, rank, tensor);
		struct plan_piece part;

		while (spread_next(&parts, &part)) {
			assert_true(has_place(plan_pieces(p, node, rank), &part));
			for (uint64_t e = part.interval.begin; e < part.interval.end; e++)
				counts[e]++;
		}
	}
	for (uint64_t e = 0; e < p->n_elements; e++)
		assert_int_equal(counts[e],
				 e >= tensor.begin && e < tensor.end ? mesh_replicas(p) : 0);
}

static void check_tensors(const struct weightd_plan *p)
{
	uint64_t *counts;

	if (!plan_shards_state(p))
		return;
	counts = malloc(p->n_elements * sizeof(*counts));
	assert_non_null(counts);
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (plan_is_trained(&p->tensors[i]))
			check_parts(p, &p->tensors[i], counts);
	free(counts);
}

/* --- Traffic ------------------------------------------------------------------------------------ */

/* step, max_norm, lr, nan_rank, n_unused, norm; a weight for each rank; a bit for each tensor. */
static uint64_t summary_size(const struct weightd_plan *p)
{
	uint64_t size = 8 + 8 + 64 * 8 + 4 + 4 + 8 + 8ull * p->n_ranks + (p->n_tensors + 7) / 8;

	return (size + 63) / 64 * 64;
}

/* Backward finds the last units of a level in their rooms, and lacks those before them. */
static bool is_replaced(const struct weightd_plan *p, uint32_t unit)
{
	uint32_t n_behind = 0;

	for (uint32_t i = unit + 1; i < p->n_units; i++)
		n_behind += p->units[i].level == p->units[unit].level;
	return !p->keeps_units && n_behind >= (p->without_prefetch ? 1 : 2);
}

/* Elements of a rank that it sends to each other node for forward and backward: its pieces of each unit that is fetched. */
static uint64_t fetched_from(const struct weightd_plan *p, const struct plan_pieces *pieces)
{
	uint64_t n = 0;

	for (uint32_t u = 0; u < p->n_units; u++)
		for (uint32_t i = 0; i < pieces->n; i++)
			n += length(overlap(pieces->pieces[i].interval, p->units[u].interval)) *
			     (is_replaced(p, u) ? 2 : 1);
	return n;
}

/* Elements of a rank's pieces that a replica adds up. */
static uint64_t added_by(const struct weightd_plan *p, const struct plan_pieces *pieces,
			 uint32_t replica)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < pieces->n; i++)
		n += share_of(length(pieces->pieces[i].interval), replica, mesh_replicas(p));
	return n;
}

/* Bytes that a rank sends, by the pieces that each other node has to have in the end. */
static uint64_t sent_by(const struct weightd_plan *p, uint32_t node, uint32_t rank)
{
	const struct plan_pieces *pieces = plan_pieces(p, node, rank);
	uint64_t own = shards_params(p) ? fetched_from(p, pieces) : pieces->n_elements;
	uint64_t sent = 0;
	uint32_t gathered = updates_pieces(p) && p->tensors[0].dtype != WEIGHTD_F32 ? 2 : 4;

	for (uint32_t other = 0; other < p->n_nodes; other++) {
		if (other == node)
			continue;
		/* Its sums, or parameters, for the other's pieces; and its own results, or parameters of units. */
		if (other / sharing(p) == node / sharing(p))
			sent += plan_pieces(p, other, rank)->n_elements * 4 + own * gathered;
		/* Its sums of the part that the other's replica adds up, and the result of its own. */
		else if (other % sharing(p) == node % sharing(p))
			sent += 4 * (added_by(p, pieces, other / sharing(p)) +
				     added_by(p, pieces, node / sharing(p)));
		if (!p->sync_every)
			sent += summary_size(p) + 8;
	}
	return sent;
}

static void check_traffic(const struct weightd_plan *p)
{
	for (uint32_t rank = 0; rank < p->n_nodes * p->n_ranks; rank++) {
		struct weightd_traffic t = {.size = sizeof(t)};

		assert_int_equal(weightd_plan_traffic(p, rank, &t), 0);
		assert_int_equal(t.sent, sent_by(p, rank / p->n_ranks, rank % p->n_ranks));
	}
}

static void plans_of_random_models_keep_their_rules(void **state)
{
	unsigned n_several = 0, n_replicated = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct model m;

		model_draw(&m);
		if (model_is_possible(&m)) {
			struct weightd_plan *p = model_plan(&m);

			check_pieces(p);
			check_updates(p);
			if (round % 8 == 0)
				check_tensors(p);
			check_traffic(p);
			n_several += p->n_nodes > 1;
			n_replicated += mesh_replicas(p) > 1;
			weightd_plan_free(p);
		}
		model_deinit(&m);
	}
	assert_true(n_several > ROUNDS / 10 && n_replicated > ROUNDS / 100);
}

/* DDP-2, Z-3: 2 S (N - 1) / N bytes for each rank, and what the nodes agree on. */
static void ranks_that_are_nodes_send_what_a_ring_sends(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= 4; n++)
		for (unsigned odd = 0; odd < 2; odd++) {
			uint64_t agreed, sum = 0, most = 0, s;
			struct weightd_plan *p;
			struct model m;

			model_init(&m, n, "shared", WEIGHTD_ADAMW);
			m.options.form = WEIGHTD_STEP_TWO_PHASE;
			m.options.n_nodes = n;
			model_add_param(&m, "w", 1024 + 3 * odd, 96 + odd);
			p = model_plan(&m);
			s = p->n_elements * 4;
			agreed = (n - 1) * (summary_size(p) + 8);
			for (uint32_t rank = 0; rank < n; rank++) {
				struct weightd_traffic t = {.size = sizeof(t)};

				assert_int_equal(weightd_plan_traffic(p, rank, &t), 0);
				assert_int_equal(t.read, 0);
				assert_int_equal(t.written, 0);
				sum += t.sent - agreed;
				most = t.sent - agreed > most ? t.sent - agreed : most;
			}
			assert_int_equal(sum, 2 * s * (n - 1));
			/* A block of the range is the most that a rank has beyond its part. */
			assert_true(most * n <= 2 * s * (n - 1) + n * n * 32 * 4);
			weightd_plan_free(p);
			model_deinit(&m);
		}
}

/* --- Memory ------------------------------------------------------------------------------------- */

/* weightd-train.h, weightd_plan_bytes(): u is 1 / nodes; within a thousandth. */
static void check_bytes(const struct weightd_plan *p, enum weightd_kind kind, double formula)
{
	double bytes = (double)weightd_plan_bytes(p, kind);

	if (bytes < formula || bytes > formula * 1.001)
		fail_msg("%s of %u nodes has %.0f bytes, not %.0f", weightd_kind_name(kind),
			 p->n_nodes, bytes, formula);
}

/* Layers that are units of zero3; no size is a multiple of anything. */
static void add_layers(struct model *m, enum weightd_dtype dtype)
{
	for (uint32_t layer = 0; layer < 12; layer++) {
		char name[24];

		(void)snprintf(name, sizeof(name), "h.%u.weight", layer);
		model_add(m, name, WEIGHTD_PARAM, dtype, 4099, 1013)->unit = layer;
		(void)snprintf(name, sizeof(name), "h.%u.bias", layer);
		model_add(m, name, WEIGHTD_PARAM, dtype, 1, 1013)->unit = layer;
	}
}

static void memory_follows_the_formula(void **state)
{
	static const struct {
		const char *strategy;
		uint32_t sync_every;
		double updates; /* u, for n nodes of 2 ranks */
	} cases[] = {{"shared", 0, 0}, {"zero1", 0, 0}, {"replicated", 0, 2}, {"shared", 8, 1}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		for (uint32_t n_nodes = 2; n_nodes <= 8; n_nodes++) {
			double u = cases[i].updates ? cases[i].updates : 1.0 / n_nodes, e;
			struct weightd_plan *p;
			struct model m;

			model_init(&m, 2 * n_nodes, cases[i].strategy, WEIGHTD_ADAMW);
			m.options.n_nodes = n_nodes;
			m.options.sync_every = cases[i].sync_every;
			add_layers(&m, WEIGHTD_BF16);
			p = model_plan(&m);
			e = (double)p->n_elements;
			check_bytes(p, WEIGHTD_KIND_PARAM, 2 * e * p->n_copies);
			check_bytes(p, WEIGHTD_KIND_GRAD, 2 * e * 2);
			check_bytes(p, WEIGHTD_KIND_RECEIVED, 4 * e);
			check_bytes(p, WEIGHTD_KIND_MASTER, 4 * e * u);
			check_bytes(p, WEIGHTD_KIND_MOMENTS, 8 * e * u);
			check_bytes(p, WEIGHTD_KIND_REDUCED, cases[i].sync_every ? 0 : 4 * e);
			weightd_plan_free(p);
			model_deinit(&m);
		}
}

/* Likewise, where gradients are pooled. Z-5: a rank has its part of the sums, and one bucket of gradients. */
static void pools_follow_the_formula(void **state)
{
	static const char *const strategies[] = {"zero2", "zero3"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++)
		for (uint32_t n_nodes = 1; n_nodes <= 8; n_nodes++) {
			double u = 1.0 / n_nodes, layer = 1013 * 4100 + 2 * 32, e, b;
			struct weightd_plan *p;
			struct model m;

			model_init(&m, 2 * n_nodes, strategies[i], WEIGHTD_ADAMW);
			m.options.n_nodes = n_nodes;
			m.options.n_copies = 1;
			m.options.bucket_bytes = 64 * MIB;
			add_layers(&m, WEIGHTD_BF16);
			p = model_plan(&m);
			e = (double)p->n_elements;
			b = (double)p->n_bucket;
			/* zero2: as many layers as 64 MiB have room for, in the second bucket; zero3: one. */
			assert_true(b <= layer * (i ? 1 : 8) && b > layer * (i ? 1 : 8) - 9 * 64);
			check_bytes(p, WEIGHTD_KIND_PARAM, 2 * e * (i ? u : 1));
			check_bytes(p, WEIGHTD_KIND_GRAD, 2 * b * 2);
			check_bytes(p, WEIGHTD_KIND_REDUCED, 4 * e * u);
			check_bytes(p, WEIGHTD_KIND_MASTER, 4 * e * u);
			check_bytes(p, WEIGHTD_KIND_MOMENTS, 8 * e * u);
			check_bytes(p, WEIGHTD_KIND_RECEIVED, n_nodes > 1 ? 4 * b : 0);
			check_bytes(p, WEIGHTD_KIND_STAGED, n_nodes > 1 ? 8 * b : 0);
			check_bytes(p, WEIGHTD_KIND_GATHERED, i && n_nodes > 1 ? 2 * 2 * b : 0);
			weightd_plan_free(p);
			model_deinit(&m);
		}
}

/* --- Operations --------------------------------------------------------------------------------- */

/* "agree/2" is the second exchange of a step; "+k": in every k-th step; a bucket or none; the kind it moves. */
static void describe_ops(const struct weightd_plan *p, char *ret, size_t size)
{
	size_t at = 0;

	ret[0] = 0;
	for (uint32_t i = 0; i < p->n_ops; i++) {
		const struct plan_op *op = &p->ops[i];
		bool has_bucket = op->type == PLAN_REDUCE || op->type == PLAN_FETCH ||
				  ((op->type == PLAN_SCATTER || op->type == PLAN_SUM) &&
				   op->bucket != UINT32_MAX);

		at += (size_t)snprintf(ret + at, size - at, "%s%s", i ? " " : "", op_name(op->type));
		if (has_bucket)
			at += (size_t)snprintf(ret + at, size - at, ".%u", op->bucket);
		if (op->type == PLAN_GATHER || (op->type == PLAN_SCATTER && !has_bucket))
			at += (size_t)snprintf(ret + at, size - at, "(%s)",
					       weightd_kind_name(op->from));
		if (op->exchange)
			at += (size_t)snprintf(ret + at, size - at, "/%u", op->exchange);
		if (op->every != 1)
			at += (size_t)snprintf(ret + at, size - at, "+%u", op->every);
		assert_true(at < size);
	}
}

static void operations_follow_the_strategy(void **state)
{
	static const struct {
		const char *strategy;
		enum weightd_dtype dtype;
		uint32_t sync_every;
		bool overlap;
		const char *ops;
	} cases[] = {
		{"shared", WEIGHTD_F32, 0, false,
		 "compute agree/1 reduce.0 reduce.1 scatter(REDUCED)/2 sum decide/3 update "
		 "gather(PARAM)/4 commit"},
		{"zero1", WEIGHTD_BF16, 0, true,
		 "compute scatter.0/1 scatter.1/2 agree/3 reduce.0 reduce.1 scatter(REDUCED)/4 sum "
		 "decide/5 update gather(PARAM)/6 commit"},
		{"replicated", WEIGHTD_F32, 0, false,
		 "compute agree/1 reduce.0 reduce.1 scatter(REDUCED)/2 sum decide/3 "
		 "gather(REDUCED)/4 update commit"},
		{"zero2", WEIGHTD_F32, 0, false,
		 "compute reduce.0 scatter.0/1 sum.0 reduce.1 scatter.1/2 sum.1 agree/3 decide/4 "
		 "update gather(PARAM)/5 commit"},
		{"zero3", WEIGHTD_BF16, 0, false,
		 "compute fetch.1/1 fetch.0/2 reduce.0 scatter.0/3 sum.0 reduce.1 scatter.1/4 sum.1 "
		 "agree/5 decide/6 update commit"},
		{"shared", WEIGHTD_F32, 5, false,
		 "compute update scatter(PARAM)/1+5 sum+5 gather(PARAM)/2+5 commit"},
		{"shared", WEIGHTD_BF16, 1, true,
		 "compute reduce.0 reduce.1 decide update scatter(MASTER)/1 sum gather(MASTER)/2 "
		 "commit"},
	};
	char ops[512];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *p;
		struct model m;

		model_init(&m, 4, cases[i].strategy, WEIGHTD_ADAMW);
		(void)model_add(&m, "a", WEIGHTD_PARAM, cases[i].dtype, 64, 3);
		model_add(&m, "b", WEIGHTD_PARAM, cases[i].dtype, 64, 3)->unit = 1;
		m.options.n_nodes = 2;
		m.options.sync_every = cases[i].sync_every;
		m.options.overlap = cases[i].overlap;
		m.options.bucket_bytes = 256;
		p = model_plan(&m);
		describe_ops(p, ops, sizeof(ops));
		assert_string_equal(ops, cases[i].ops);
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

/* --- Buckets ------------------------------------------------------------------------------------ */

/* DDP-3: from the last tensor to the first, a bucket ends before the tensor that makes it larger than its cap. */
static void buckets_have_the_caps_of_ddp(void **state)
{
	static const uint64_t sizes[] = {40000, 300000,  700,  262144, 6291456,
					 1,     6553600, 8192, 90000};
	struct weightd_plan *p;
	uint32_t n = 0, i = ARRAY_LEN(sizes);
	uint64_t cap = MIB;
	struct model m;

	(void)state;
	model_init(&m, 4, "shared", WEIGHTD_ADAMW);
	m.options.n_nodes = 2;
	for (size_t t = 0; t < ARRAY_LEN(sizes); t++) {
		char name[24];

		(void)snprintf(name, sizeof(name), "%zu", t);
		model_add_param(&m, name, 1, sizes[t]);
	}
	p = model_plan(&m);
	for (; i > 0; n++, cap = 25 * MIB) {
		uint64_t bytes = 0, end = p->buckets[n].end * 4;

		do
			bytes += (sizes[--i] + 15) / 16 * 64;
		while (i > 0 && bytes + (sizes[i - 1] + 15) / 16 * 64 <= cap);
		assert_int_equal(p->buckets[n].begin * 4, p->tensors[i].offset);
		/* Padding at the end of the range. */
		assert_in_range(end - p->tensors[i].offset - bytes, 0, n ? 0 : 127);
	}
	assert_int_equal(p->n_buckets, n);
	assert_true(n >= 4);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Limits ------------------------------------------------------------------------------------- */

static void bad_many_nodes(struct model *m)
{
	set_mesh(m, WEIGHTD_NODES_MAX + 1, 1);
}

static void bad_more_nodes_than_ranks(struct model *m)
{
	m->options.n_nodes = 6;
}

static void bad_ragged_nodes(struct model *m)
{
	m->options.n_nodes = 2;
}

static void bad_fused(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.form = WEIGHTD_STEP_FUSED;
}

static void bad_average_alone(struct model *m)
{
	m->options.sync_every = 3;
}

static void bad_average_of_copies(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.sync_every = 3;
	m->options.strategy = "zero1";
	m->options.n_copies = 0;
}

static void bad_average_of_pools(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.sync_every = 3;
	m->options.strategy = "zero2";
}

static void bad_average_with_staleness(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.sync_every = 3;
	m->options.staleness = 1;
}

static void bad_average_with_scaling(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.sync_every = 3;
	m->options.scaling = &m->scaling;
}

static void bad_staleness(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.staleness = 1;
}

static void bad_copies(struct model *m)
{
	m->options.n_nodes = 3;
	m->options.n_copies = 3;
}

static void bad_plans_are_refused_with_a_reason(void **state)
{
	static const struct {
		void (*change)(struct model *m);
		const char *sentence;
	} cases[] = {
		{bad_many_nodes, "65 nodes are too many; 64 are the most"},
		{bad_more_nodes_than_ranks,
		 "3 ranks cannot be on 6 nodes; each node has as many as the others"},
		{bad_ragged_nodes, "3 ranks cannot be on 2 nodes"},
		{bad_fused, "several nodes exchange sums of gradients, which a fused step does not "
			    "have; use the form 'two-phase'"},
		{bad_average_alone, "sync_every is 3, and there is one node"},
		{bad_average_of_copies, "sync_every needs the strategy 'shared'"},
		{bad_average_of_pools, "sync_every needs the strategy 'shared'"},
		{bad_average_with_staleness,
		 "sync_every needs the strategy 'shared', without staleness"},
		{bad_average_with_scaling,
		 "sync_every needs the strategy 'shared', without staleness and "
		 "without scaling"},
		{bad_staleness,
		 "staleness is for one node: several exchange sums of gradients, "
		 "which the fused step that it needs does not have; use a staleness of 0"},
		{bad_copies, "3 copies are too many for 1 ranks"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *p = NULL;
		struct model m;

		model_init_small(&m, "shared");
		cases[i].change(&m);
		assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &m.options, &p), -EINVAL);
		if (!strstr(weightd_train_error(), cases[i].sentence))
			fail_msg("'%s' lacks '%s'", weightd_train_error(), cases[i].sentence);
		assert_null(p);
		model_deinit(&m);
	}
}

static void differences_are_named(void **state)
{
	struct weightd_plan *plans[2];
	char difference[256];
	struct model m;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		model_init_small(&m, "shared");
		m.options.n_nodes = 3;
		m.options.sync_every = 4 * i;
		plans[i] = model_plan(&m);
		model_deinit(&m);
	}
	assert_int_equal(weightd_plan_compare(plans[1], plans[0], difference, sizeof(difference)),
			 1);
	assert_string_equal(difference, "this rank's plan has sync_every 4, the job's has 0");
	weightd_plan_free(plans[0]);
	weightd_plan_free(plans[1]);
}

/* Most ranks of most nodes have nothing to do. */
static void nodes_may_have_no_elements(void **state)
{
	static const char *const strategies[] = {"shared", "zero1", "zero2", "zero3", "replicated"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++) {
		struct weightd_plan *p;
		struct model m;

		model_init(&m, WEIGHTD_RANKS_MAX, strategies[i], WEIGHTD_ADAMW);
		m.options.n_nodes = WEIGHTD_NODES_MAX;
		model_add_param(&m, "w", 1, 1);
		p = model_plan(&m);
		check_pieces(p);
		check_updates(p);
		check_traffic(p);
		assert_int_equal(p->n_elements, 32);
		assert_int_equal(plan_pieces(p, 0, 0)->n_elements, 32);
		assert_int_equal(plan_pieces(p, 1, 0)->n_elements, 0);
		assert_int_equal(plan_pieces(p, 63, 3)->n_elements, 0);
		assert_int_equal(plan_pieces(p, 63, 3)->n, 1);
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

/* A piece for each bucket of each rank of each node would be 100 MB of plan. */
static void tables_of_pieces_stay_small(void **state)
{
	enum {
		N = PLAN_BUCKETS_MAX
	};
	static const uint64_t shape = 128;
	static const uint32_t nodes[] = {2, WEIGHTD_NODES_MAX};
	struct weightd_train_tensor *tensors = calloc(N, sizeof(*tensors));
	char(*names)[16] = calloc(N, sizeof(*names));

	(void)state;
	assert_true(tensors && names);
	for (uint32_t i = 0; i < N; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%u", i);
		tensors[i] = (struct weightd_train_tensor){.size = sizeof(*tensors),
							   .name = names[i],
							   .shape = &shape,
							   .n_dims = 1,
							   .dtype = WEIGHTD_F32,
							   .role = WEIGHTD_PARAM};
	}
	for (size_t i = 0; i < ARRAY_LEN(nodes); i++) {
		struct weightd_plan *p = NULL;
		struct model m;

		model_init(&m, WEIGHTD_RANKS_MAX, "shared", WEIGHTD_ADAMW);
		m.options.n_nodes = nodes[i];
		m.options.bucket_bytes = 1;
		assert_int_equal(weightd_plan_new(tensors, N, &m.options, &p), 0);
		assert_int_equal(p->n_buckets, N);
		assert_true(p->n_pieces <= p->n_buckets + p->n_ranks);
		weightd_plan_free(p);
		model_deinit(&m);
	}
	free(tensors);
	free(names);
}

/* The largest flat range: no product overflows, and ranges of all nodes have room in a job. */
static void the_largest_model_has_a_plan(void **state)
{
	uint64_t n = PLAN_ELEMENTS_MAX;
	struct weightd_traffic t = {.size = sizeof(t)};
	struct weightd_plan *p;
	struct model m;

	(void)state;
	model_init(&m, WEIGHTD_RANKS_MAX, "zero1", WEIGHTD_ADAMW);
	m.options.n_nodes = WEIGHTD_NODES_MAX;
	m.options.bucket_bytes = n * 4;
	(void)model_add(&m, "w", WEIGHTD_PARAM, WEIGHTD_F32, n / PLAN_BLOCK, PLAN_BLOCK);
	p = model_plan(&m);
	assert_int_equal(p->n_elements, n);
	for (uint32_t rank = 0; rank < WEIGHTD_RANKS_MAX; rank++) {
		assert_int_equal(weightd_plan_traffic(p, rank, &t), 0);
		assert_int_equal(t.sent, sent_by(p, rank / p->n_ranks, rank % p->n_ranks));
	}
	for (uint32_t i = 0; i < p->n_parts; i++) {
		uint64_t bytes = weightd_plan_bytes(p, p->parts[i].kind);

		assert_true(bytes / p->parts[i].n == p->parts[i].stride && bytes <= INT64_MAX);
	}
	weightd_plan_free(p);
	model_deinit(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plans_of_random_models_keep_their_rules),
		cmocka_unit_test(ranks_that_are_nodes_send_what_a_ring_sends),
		cmocka_unit_test(memory_follows_the_formula),
		cmocka_unit_test(pools_follow_the_formula),
		cmocka_unit_test(operations_follow_the_strategy),
		cmocka_unit_test(buckets_have_the_caps_of_ddp),
		cmocka_unit_test(bad_plans_are_refused_with_a_reason),
		cmocka_unit_test(differences_are_named),
		cmocka_unit_test(nodes_may_have_no_elements),
		cmocka_unit_test(tables_of_pieces_stay_small),
		cmocka_unit_test(the_largest_model_has_a_plan),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
