/*
 * Models for tests of plans: options and tensors that a test may change before it makes a plan of them
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/plan.h"

#define TENSORS 40
#define DIMS 3

static inline unsigned draw(unsigned n)
{
	return (unsigned)(random() % n);
}

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

static inline struct weightd_mesh *mesh_of(uint32_t n_ranks)
{
	const struct weightd_mesh_dim dim = {"dp", n_ranks};
	struct weightd_mesh *m = NULL;

	assert_int_equal(weightd_mesh_new(&dim, 1, &m), 0);
	return m;
}

/* Replicas of nodes, and the shards in each. */
static inline struct weightd_mesh *mesh_of_replicas(uint32_t n_replicas, uint32_t n_ranks)
{
	const struct weightd_mesh_dim dims[] = {{"replicate", n_replicas},
						{"shard", n_ranks / n_replicas}};
	struct weightd_mesh *m = NULL;

	assert_int_equal(weightd_mesh_new(dims, ARRAY_LEN(dims), &m), 0);
	return m;
}

static inline void model_init(struct model *m, uint32_t n_ranks, const char *strategy,
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

static inline void model_set_replicas(struct model *m, uint32_t n_replicas)
{
	uint32_t n_ranks = weightd_mesh_n_ranks(m->mesh);

	weightd_mesh_free(m->mesh);
	m->options.mesh = m->mesh = mesh_of_replicas(n_replicas, n_ranks);
}

/* Replicas in the mesh of a plan: its first dimension, of two. */
static inline uint32_t mesh_replicas(const struct weightd_plan *p)
{
	struct weightd_mesh_dim dim = {.size = 1};

	if (weightd_mesh_n_dims(p->mesh) == 2)
		assert_int_equal(weightd_mesh_dim(p->mesh, 0, &dim), 0);
	return dim.size;
}

static inline void model_deinit(struct model *m)
{
	weightd_mesh_free(m->mesh);
}

static inline struct weightd_train_tensor *model_add(struct model *m, const char *name,
						     enum weightd_role role,
						     enum weightd_dtype dtype, uint64_t rows,
						     uint64_t columns)
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

static inline void model_add_param(struct model *m, const char *name, uint64_t rows,
				   uint64_t columns)
{
	(void)model_add(m, name, WEIGHTD_PARAM, WEIGHTD_F32, rows, columns);
}

static inline bool model_has_elements(const struct weightd_train_tensor *t)
{
	bool has = t->role == WEIGHTD_PARAM && !t->frozen;

	for (uint32_t i = 0; i < t->n_dims; i++)
		has = has && t->shape[i];
	return has;
}

/* A model of every kind of tensor that there is, empty ones and scalars among them. */
static inline void model_draw_tensors(struct model *m)
{
	static const enum weightd_dtype dtypes[] = {WEIGHTD_BOOL, WEIGHTD_U8, WEIGHTD_BF16,
						    WEIGHTD_F32, WEIGHTD_I64};
	static const enum weightd_dtype trained[] = {WEIGHTD_F32, WEIGHTD_F32, WEIGHTD_BF16,
						     WEIGHTD_F16};
	enum weightd_dtype dtype = trained[draw(ARRAY_LEN(trained))];
	uint32_t n = 1 + draw(TENSORS - 1);

	(void)model_add(m, "first", WEIGHTD_PARAM, dtype, 1 + draw(50), 1 + draw(50));
	for (uint32_t i = 1; i < n; i++) {
		bool is_param = draw(4) != 0, is_frozen = is_param && draw(4) == 0;
		char name[24];
		struct weightd_train_tensor *t;

		(void)snprintf(name, sizeof(name), "h.%u.%u", draw(10), i);
		t = model_add(m, name, is_param ? WEIGHTD_PARAM : WEIGHTD_BUFFER,
			      is_param && !is_frozen ? dtype : dtypes[draw(ARRAY_LEN(dtypes))],
			      draw(80), draw(80));
		t->n_dims = draw(DIMS);
		t->frozen = is_frozen;
		t->group = is_param ? draw(ARRAY_LEN(m->groups)) : 0;
	}
}

/* Nested at random; tensors that are in no unit have any. */
static inline void model_draw_units(struct model *m)
{
	const struct weightd_train_tensor *before = NULL;

	for (uint32_t i = 0; i < m->n_tensors; i++) {
		struct weightd_train_tensor *t = &m->tensors[i];

		t->unit = draw(TENSORS);
		t->level = draw(2 * WEIGHTD_LEVELS_MAX);
		if (!model_has_elements(t))
			continue;
		if (before && draw(2)) {
			t->unit = before->unit;
			t->level = before->level;
		} else {
			t->unit = before ? before->unit + 1 : 0;
			t->level = draw(before ? before->level + 2 : 1) % WEIGHTD_LEVELS_MAX;
		}
		before = t;
	}
}

static inline bool model_pools(const struct model *m)
{
	return !strcmp(m->options.strategy, "zero2") || !strcmp(m->options.strategy, "zero3");
}

/* As many replicas as the nodes can be. */
static inline void model_draw_replicas(struct model *m, uint32_t n_nodes)
{
	uint32_t n_replicas;

	do
		n_replicas = 1 + draw(n_nodes);
	while (n_nodes % n_replicas);
	model_set_replicas(m, n_replicas);
}

static inline void model_draw(struct model *m)
{
	static const char *const strategies[] = {"shared", "zero1", "zero2", "zero3", "replicated"};

	uint32_t n_nodes = draw(2) ? 1 : 1 + draw(6), n_ranks = 1 + draw(6);

	model_init(m, n_nodes * n_ranks, strategies[draw(ARRAY_LEN(strategies))],
		   WEIGHTD_ADAMW + draw(3));
	model_draw_tensors(m);
	model_draw_units(m);
	if (model_pools(m) && draw(2))
		model_draw_replicas(m, n_nodes);
	m->options.n_nodes = n_nodes == 1 && draw(2) ? 0 : n_nodes;
	m->options.sync_every = n_nodes > 1 && draw(3) == 0 ? 1 + draw(9) : 0;
	m->options.form = draw(3);
	m->options.bucket_bytes = draw(2) ? 0 : 1 + draw(20000);
	m->options.overlap = draw(4) == 0;
	m->options.staleness = draw(4) == 0 ? 1 + draw(3) : 0;
	m->options.state_size = draw(2) ? 0 : 1 + draw(10000);
	m->options.without_journal = draw(8) == 0;
	m->options.grad_dtype = draw(3) == 0 ? WEIGHTD_F32 : 0;
	m->options.scaling = draw(4) == 0 ? &m->scaling : NULL;
	if (!strcmp(m->options.strategy, "shared"))
		m->options.n_copies = draw(2) ? 0 : 1 + draw(n_ranks);
	if (!strcmp(m->options.strategy, "zero3")) {
		m->options.keeps_units = draw(3) == 0;
		m->options.without_prefetch = draw(3) == 0;
	}
}

static inline struct weightd_plan *model_plan(const struct model *m)
{
	struct weightd_plan *p = NULL;
	int r = weightd_plan_new(m->tensors, m->n_tensors, &m->options, &p);

	if (r < 0)
		fail_msg("no plan: %d: %s", r, weightd_train_error());
	return p;
}

static inline bool model_sums_nodes(const struct model *m)
{
	return m->options.n_nodes > 1 && !m->options.sync_every;
}

/* Some options exclude each other. */
static inline bool model_is_possible(const struct model *m)
{
	const struct weightd_plan_options *o = &m->options;
	bool replicated = !strcmp(o->strategy, "replicated"),
	     shared = !strcmp(o->strategy, "shared");

	if (o->sync_every && (!shared || o->staleness || o->scaling))
		return false;
	if (o->form == WEIGHTD_STEP_FUSED &&
	    (replicated || model_pools(m) || o->overlap || o->scaling || model_sums_nodes(m)))
		return false;
	if (o->staleness && (!shared || o->overlap || o->scaling ||
			     o->form == WEIGHTD_STEP_TWO_PHASE || model_sums_nodes(m)))
		return false;
	return true;
}

static inline void model_init_small(struct model *m, const char *strategy)
{
	model_init(m, 3, strategy, WEIGHTD_ADAMW);
	m->options.n_groups = 2;
	model_add_param(m, "h.0.weight", 24, 16);
	m->tensors[m->n_tensors - 1].group = 1;
	model_add_param(m, "h.0.bias", 1, 24);
	model_add_param(m, "h.1.weight", 4, 8);
	m->tensors[m->n_tensors - 1].group = 1;
	(void)model_add(m, "steps", WEIGHTD_BUFFER, WEIGHTD_I64, 1, 1);
}

/* The plan as another release would have made it, by the place of the release in its binary form. */
static inline struct weightd_plan *model_plan_of_release(const struct model *m, const char *release)
{
	struct weightd_plan *p = model_plan(m), *ret = NULL;
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
