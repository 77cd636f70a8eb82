/*
 * Plans of a mesh of two dimensions (HSDP): nodes that share a model, and replicas of these that sum gradients.
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
#include "tests/unit/train_model.h"

#define LAYERS 12
#define ROUNDS 100

static uint64_t length(struct plan_interval i)
{
	assert_true(i.begin <= i.end);
	return i.end - i.begin;
}

/* Layers that are units, on `n_replicas` of `n_sharing` nodes; 0: a mesh of one dimension. */
static void init_layers(struct model *m, const char *strategy, uint32_t n_replicas,
			uint32_t n_sharing, uint32_t n_ranks)
{
	uint32_t n_nodes = n_sharing * (n_replicas ? n_replicas : 1);

	model_init(m, n_nodes * n_ranks, strategy, WEIGHTD_ADAMW);
	if (n_replicas)
		model_set_replicas(m, n_replicas);
	m->options.n_nodes = n_nodes;
	m->options.bucket_bytes = 100000;
	m->options.n_copies = 1;
	for (uint32_t i = 0; i < LAYERS; i++) {
		char name[24];

		(void)snprintf(name, sizeof(name), "h.%u", i);
		model_add(m, name, WEIGHTD_PARAM, WEIGHTD_F32, 533 + i, 61)->unit = i;
	}
}

static struct weightd_plan *draw_plan(struct model *m)
{
	for (;;) {
		model_draw(m);
		if (model_is_possible(m)) {
			struct weightd_plan *p = model_plan(m);

			if (mesh_replicas(p) > 1)
				return p;
			weightd_plan_free(p);
		}
		model_deinit(m);
	}
}

/* --- Nodes -------------------------------------------------------------------------------------- */

/* A replica is nodes that follow each other: 0 1 2, 3 4 5. */
static void nodes_share_with_neighbours_and_mirror_others(void **state)
{
	static const char shares[] = "111000"
				     "111000"
				     "111000"
				     "000111"
				     "000111"
				     "000111";
	static const char mirrors[] = "000100"
				      "000010"
				      "000001"
				      "100000"
				      "010000"
				      "001000";
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_layers(&m, "zero3", 2, 3, 2);
	p = model_plan(&m);
	assert_int_equal(p->n_sharing, 3);
	assert_int_equal(plan_n_replicas(p), 2);
	for (uint32_t a = 0; a < 6; a++)
		for (uint32_t b = 0; b < 6; b++) {
			assert_int_equal(plan_share(p, a, b), shares[6 * a + b] == '1');
			assert_int_equal(plan_mirror(p, a, b), mirrors[6 * a + b] == '1');
		}
	weightd_plan_free(p);
	model_deinit(&m);
}

/* The nodes of a replica have what they would have without the others. */
static void replicas_are_plans_of_their_nodes(void **state)
{
	static const enum weightd_kind kinds[] = {WEIGHTD_KIND_PARAM,    WEIGHTD_KIND_GRAD,
						  WEIGHTD_KIND_REDUCED,  WEIGHTD_KIND_STAGED,
						  WEIGHTD_KIND_GATHERED, WEIGHTD_KIND_MOMENTS};

	(void)state;
	for (uint32_t n_sharing = 2; n_sharing <= 3; n_sharing++) {
		struct weightd_plan *p, *alone;
		struct model m, one;

		init_layers(&m, "zero3", 3, n_sharing, 2);
		init_layers(&one, "zero3", 0, n_sharing, 2);
		p = model_plan(&m);
		alone = model_plan(&one);
		for (uint32_t i = 0; i < p->n_nodes * p->n_ranks; i++) {
			uint32_t node = i / p->n_ranks, rank = i % p->n_ranks;
			const struct plan_pieces *pieces = plan_updates(p, node, rank);
			const struct plan_pieces *others = plan_updates(alone, node % n_sharing,
									rank);

			assert_int_equal(pieces->n, others->n);
			assert_int_equal(pieces->first, others->first);
			assert_memory_equal(pieces->pieces, others->pieces,
					    pieces->n * sizeof(*pieces->pieces));
		}
		for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
			assert_int_equal(weightd_plan_bytes(p, kinds[i]),
					 weightd_plan_bytes(alone, kinds[i]));
		/* The others' sums of the same pieces. */
		assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_RECEIVED),
				 3 * weightd_plan_bytes(alone, WEIGHTD_KIND_RECEIVED));
		weightd_plan_free(alone);
		weightd_plan_free(p);
		model_deinit(&one);
		model_deinit(&m);
	}
}

static void replicas_add_up_all_of_a_piece(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct model m;
		struct weightd_plan *p = draw_plan(&m);

		for (uint32_t i = 0; i < p->n_sharing * p->n_ranks; i++) {
			const struct plan_pieces *pieces = plan_pieces(p, i / p->n_ranks,
								       i % p->n_ranks);

			for (uint32_t k = 0; k < pieces->n; k++) {
				struct plan_piece next = pieces->pieces[k];
				uint64_t end = next.interval.end;

				for (uint32_t node = i / p->n_ranks; node < p->n_nodes;
				     node += p->n_sharing) {
					struct plan_piece part =
						plan_replica_part(p, &pieces->pieces[k], node);

					assert_int_equal(part.interval.begin, next.interval.begin);
					assert_int_equal(part.at, next.at);
					assert_int_equal(part.received, next.received);
					next.at += length(part.interval);
					next.received += length(part.interval);
					next.interval.begin = part.interval.end;
				}
				assert_int_equal(next.interval.begin, end);
			}
		}
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

/* One node is a replica: it has all parameters, and nothing is gathered. */
static void replicas_of_one_node_have_all_parameters(void **state)
{
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_layers(&m, "zero3", 4, 1, 2);
	p = model_plan(&m);
	assert_false(plan_shards_params(p));
	assert_int_equal(p->n_asked, 0);
	assert_int_equal(weightd_plan_bytes(p, WEIGHTD_KIND_GATHERED), 0);
	assert_int_equal(plan_part(p, WEIGHTD_KIND_PARAM)->used, p->n_elements * 4);
	assert_int_equal(plan_part(p, WEIGHTD_KIND_MOMENTS)->used, p->n_elements * 8);
	for (uint32_t node = 0; node < 4; node++)
		assert_int_equal(plan_updates(p, node, 0)->n_elements, p->cuts[1]);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Traffic ------------------------------------------------------------------------------------ */

static uint64_t sent_by(const struct weightd_plan *p, uint32_t rank)
{
	struct weightd_traffic t = {.size = sizeof(t)};

	assert_int_equal(weightd_plan_traffic(p, rank, &t), 0);
	/* 544 bytes of a summary, 8 of each rank, a bit of each tensor; a norm. */
	return t.sent - (p->n_nodes - 1) * ((544 + 8 * p->n_ranks + 2 + 63) / 64 * 64 + 8);
}

/*
 * F-8: 2 (S / F) (K - 1) / K bytes of each node between K replicas of F nodes; inside of one, what its nodes alone would send.
 */
static void nodes_send_their_part_between_replicas(void **state)
{
	static const char *const strategies[] = {"zero2", "zero3"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++)
		for (uint32_t c = 0; c < 12; c++) {
			uint32_t k = 2 + c % 3, f = 1 + c / 3 % 2, n_ranks = 1 + c / 6,
				 n = f * n_ranks;
			uint64_t sum = 0, most = 0, least = UINT64_MAX, s;
			struct weightd_plan *p, *alone;
			struct model m, one;

			init_layers(&m, strategies[i], k, f, n_ranks);
			init_layers(&one, strategies[i], 0, f, n_ranks);
			p = model_plan(&m);
			alone = model_plan(&one);
			for (uint32_t node = 0; node < p->n_nodes; node++) {
				uint64_t sent = 0;

				for (uint32_t r = 0; r < n_ranks; r++)
					sent += sent_by(p, node * n_ranks + r) -
						(f > 1 ? sent_by(alone, (node * n_ranks + r) % n)
						       : 0);
				sum += sent;
				most = sent > most ? sent : most;
				least = sent < least ? sent : least;
			}
			s = p->n_elements * 4;
			assert_int_equal(sum, 2 * s * (k - 1));
			/* Blocks of 32 elements are cut twice, in each piece. */
			assert_true(most - least <= 2ull * p->n_pieces * k * PLAN_CUT * 4);
			weightd_plan_free(alone);
			weightd_plan_free(p);
			model_deinit(&one);
			model_deinit(&m);
		}
}

/* --- Operations --------------------------------------------------------------------------------- */

static void sums_of_replicas_follow_those_of_their_nodes(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct model m;
		struct weightd_plan *p = draw_plan(&m);

		for (uint32_t b = 0; b < p->n_buckets; b++) {
			const struct plan_op *before = plan_scatter(p, b), *sum = before + 1;
			const struct plan_op *scatter = plan_replicas(p, b, PLAN_SCATTER_REPLICAS);
			const struct plan_op *gather = plan_replicas(p, b, PLAN_GATHER_REPLICAS);

			assert_ptr_equal(sum + 1, scatter);
			assert_ptr_equal(scatter + 1, gather);
			assert_int_equal(sum->type, PLAN_SUM);
			assert_int_equal(scatter->type, PLAN_SCATTER_REPLICAS);
			assert_int_equal(gather->type, PLAN_GATHER_REPLICAS);
			assert_true(scatter->bucket == b && gather->bucket == b);
			assert_memory_equal(&scatter->interval, &p->buckets[b],
					    sizeof(scatter->interval));
			assert_int_equal(gather->exchange, before->exchange + 2);
		}
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

static void one_replica_has_no_sums_of_replicas(void **state)
{
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_layers(&m, "zero2", 1, 3, 2);
	p = model_plan(&m);
	assert_int_equal(p->n_sharing, 3);
	assert_null(plan_replicas(p, 0, PLAN_SCATTER_REPLICAS));
	for (uint32_t i = 0; i < p->n_ops; i++)
		assert_true(p->ops[i].type != PLAN_SCATTER_REPLICAS &&
			    p->ops[i].type != PLAN_GATHER_REPLICAS);
	weightd_plan_free(p);
	model_deinit(&m);
}

/* --- Forms -------------------------------------------------------------------------------------- */

static void plans_come_back_from_their_forms(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct weightd_plan *again[2] = {0};
		char *json = NULL, difference[128];
		struct model m;
		struct weightd_plan *p = draw_plan(&m);

		assert_int_equal(weightd_plan_json(p, &json), 0);
		assert_int_equal(weightd_plan_parse_json(json, strlen(json), &again[0]), 0);
		assert_int_equal(weightd_plan_parse(p->image, p->image_size, &again[1]), 0);
		assert_non_null(strstr(json, "\"replicate\""));
		assert_non_null(strstr(json, "\"gather-replicas\""));
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(again[i]->n_sharing, p->n_sharing);
			assert_int_equal(weightd_plan_compare(again[i], p, difference,
							      sizeof(difference)),
					 0);
			weightd_plan_free(again[i]);
		}
		free(json);
		weightd_plan_free(p);
		model_deinit(&m);
	}
}

static void differences_are_named(void **state)
{
	static const struct {
		uint32_t n_replicas, n_sharing;
		const char *sentence;
	} cases[] = {
		{0, 6, "this rank's mesh is (dp=12), the job's is (replicate=2, shard=6)"},
		{1, 6,
		 "this rank's mesh is (replicate=1, shard=12), the job's is (replicate=2, shard=6)"},
		{3, 2,
		 "this rank's mesh is (replicate=3, shard=4), the job's is (replicate=2, shard=6)"},
	};
	struct weightd_plan *p;
	struct model m;

	(void)state;
	init_layers(&m, "zero3", 2, 3, 2);
	p = model_plan(&m);
	model_deinit(&m);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct weightd_plan *other;
		char difference[256];

		init_layers(&m, "zero3", cases[i].n_replicas, cases[i].n_sharing, 2);
		other = model_plan(&m);
		assert_int_equal(weightd_plan_compare(other, p, difference, sizeof(difference)), 1);
		assert_string_equal(difference, cases[i].sentence);
		weightd_plan_free(other);
		model_deinit(&m);
	}
	weightd_plan_free(p);
}

/* --- Bad input ---------------------------------------------------------------------------------- */

static void refuse(const char *strategy, const struct weightd_mesh_dim *dims, uint32_t n_dims,
		   uint32_t n_nodes, const char *sentence)
{
	struct weightd_plan *p = NULL;
	struct model m;

	init_layers(&m, strategy, 0, 1, 1);
	m.options.n_nodes = n_nodes;
	m.options.n_copies = 0;
	weightd_mesh_free(m.mesh);
	assert_int_equal(weightd_mesh_new(dims, n_dims, &m.mesh), 0);
	m.options.mesh = m.mesh;
	assert_int_equal(weightd_plan_new(m.tensors, m.n_tensors, &m.options, &p), -EINVAL);
	assert_string_equal(weightd_train_error(), sentence);
	assert_null(p);
	model_deinit(&m);
}

static void bad_meshes_are_refused_with_a_reason(void **state)
{
	static const char *const others[] = {"shared", "zero1", "replicated"};
	static const struct weightd_mesh_dim three[] = {{"replicate", 2}, {"shard", 2}, {"tp", 2}};
	static const struct weightd_mesh_dim four[] = {{"replicate", 2}, {"shard", 4}};
	static const struct weightd_mesh_dim six[] = {{"outer", 6}, {"shard", 2}};
	static const struct weightd_mesh_dim split[] = {{"replicate", 2}, {"shard", 3}};

	(void)state;
	refuse("zero3", three, 3, 4,
	       "a plan has one mesh dimension, of data parallelism, or two, replicas and shards; this "
	       "mesh has 3");
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		char sentence[256];

		(void)snprintf(sentence, sizeof(sentence),
			       "a mesh of two dimensions, replicas and shards, is for the strategies "
			       "'zero2' and 'zero3', and this one is '%s'",
			       others[i]);
		refuse(others[i], four, 2, 2, sentence);
	}
	refuse("zero2", six, 2, 4,
	       "4 nodes cannot be 6 replicas ('outer'): each is as many whole nodes as the others; "
	       "use a number that divides 4");
	refuse("zero3", four, 2, 1,
	       "1 node cannot be 2 replicas ('replicate'): each is as many whole nodes as the others; "
	       "use a number that divides 1");
	/* The second of three nodes would be in both. */
	refuse("zero3", split, 2, 3,
	       "3 nodes cannot be 2 replicas ('replicate'): each is as many whole nodes as the others; "
	       "use a number that divides 3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_share_with_neighbours_and_mirror_others),
		cmocka_unit_test(replicas_are_plans_of_their_nodes),
		cmocka_unit_test(replicas_add_up_all_of_a_piece),
		cmocka_unit_test(replicas_of_one_node_have_all_parameters),
		cmocka_unit_test(nodes_send_their_part_between_replicas),
		cmocka_unit_test(sums_of_replicas_follow_those_of_their_nodes),
		cmocka_unit_test(one_replica_has_no_sums_of_replicas),
		cmocka_unit_test(plans_come_back_from_their_forms),
		cmocka_unit_test(differences_are_named),
		cmocka_unit_test(bad_meshes_are_refused_with_a_reason),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
