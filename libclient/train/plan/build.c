/*
 * Plans are made of options and tensors alone. Everything else in a plan is derived here, by the same functions in every
 * rank.
 */
#include "libclient/train/plan/build.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/base/quote.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/nodes.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/strategy.h"

#define BUCKET_BYTES (25 * MIB)
#define BUCKET_BYTES_MAX (PLAN_ELEMENTS_MAX * 4)
#define STATE_SIZE 4096

CLEANUP_POINTER(struct weightd_plan, weightd_plan_free);

/* --- Options ------------------------------------------------------------------------------------ */

static int take_mesh(struct weightd_plan *p, const struct weightd_mesh *mesh)
{
	struct weightd_mesh_dim dims[WEIGHTD_MESH_DIMS_MAX];
	uint32_t n_dims;

	if (!mesh)
		return train_fail(-EINVAL, "the plan has no mesh");
	n_dims = weightd_mesh_n_dims(mesh);
	for (uint32_t i = 0; i < n_dims; i++)
		(void)weightd_mesh_dim(mesh, i, &dims[i]);
	if (n_dims > 2)
		return train_fail(
			-EINVAL,
			"a plan has one mesh dimension, of data parallelism, or two, replicas and shards; "
			"this mesh has %u",
			n_dims);
	return weightd_mesh_new(dims, n_dims, &p->mesh);
}

static int take_nodes(struct weightd_plan *p, const struct weightd_plan_options *o)
{
	uint32_t n_ranks = weightd_mesh_n_ranks(o->mesh);

	p->n_nodes = o->n_nodes ? o->n_nodes : 1;
	p->sync_every = o->sync_every;
	if (p->n_nodes > WEIGHTD_NODES_MAX)
		return train_fail(-EINVAL, "%u nodes are too many; %d are the most", p->n_nodes,
				  WEIGHTD_NODES_MAX);
	if (p->n_nodes > n_ranks || n_ranks % p->n_nodes)
		return train_fail(
			-EINVAL,
			"%u ranks cannot be on %u nodes; each node has as many as the others",
			n_ranks, p->n_nodes);
	p->n_ranks = n_ranks / p->n_nodes;
	if (p->sync_every && p->n_nodes == 1)
		return train_fail(-EINVAL,
				  "sync_every is %u, and there is one node: its ranks have one "
				  "copy of the parameters",
				  p->sync_every);
	return 0;
}

static int take_strategy(struct weightd_plan *p, const char *name)
{
	struct quote q;

	p->row = name ? strategy_find(name) : NULL;
	if (!p->row)
		return train_fail(-EINVAL, "the strategy %s is unknown; there are " STRATEGY_NAMES,
				  name ? quote_name(&q, name) : "NULL");
	(void)strcpy(p->strategy, p->row->name);
	return 0;
}

static int check_adam(const struct weightd_group *g, uint32_t index)
{
	if (!(g->beta1 >= 0 && g->beta1 < 1) || !(g->beta2 >= 0 && g->beta2 < 1))
		return train_fail(
			-EINVAL,
			"parameter group %u has betas %g and %g; both are 0 or more, and less than 1",
			index, g->beta1, g->beta2);
	if (!(g->eps >= 0) || !isfinite(g->eps))
		return train_fail(-EINVAL, "parameter group %u has eps %g; it is 0 or more", index,
				  g->eps);
	return 0;
}

static int check_sgd(const struct weightd_group *g, uint32_t index)
{
	if (!(g->momentum >= 0) || !isfinite(g->momentum))
		return train_fail(-EINVAL, "parameter group %u has momentum %g; it is 0 or more",
				  index, g->momentum);
	if (g->nesterov && g->momentum == 0)
		return train_fail(-EINVAL, "parameter group %u is nesterov, and has no momentum",
				  index);
	return 0;
}

/* Copies what the optimizer uses, so that nothing else makes two plans differ. */
static int take_group(struct weightd_plan *p, const struct weightd_group *from, uint32_t index)
{
	bool is_sgd = p->optimizer == WEIGHTD_SGD;
	struct weightd_group g = {.size = sizeof(g), .weight_decay = from->weight_decay};
	int r = is_sgd ? check_sgd(from, index) : check_adam(from, index);

	if (r < 0)
		return r;
	if (!(g.weight_decay >= 0) || !isfinite(g.weight_decay))
		return train_fail(-EINVAL, "parameter group %u has weight_decay %g; it is 0 or more",
				  index, g.weight_decay);
	if (is_sgd) {
		g.momentum = from->momentum;
		g.nesterov = from->nesterov;
	} else {
		g.beta1 = from->beta1;
		g.beta2 = from->beta2;
		g.eps = from->eps;
	}
	p->groups[index] = g;
	return 0;
}

/* The first of two dimensions has replicas; each is some nodes as a whole. */
static int take_replicas(struct weightd_plan *p)
{
	struct weightd_mesh_dim replicas = {.size = 1};

	p->n_sharing = p->n_nodes;
	if (weightd_mesh_n_dims(p->mesh) == 1)
		return 0;
	(void)weightd_mesh_dim(p->mesh, 0, &replicas);
	if (!p->row->pools_grads)
		return train_fail(-EINVAL,
				  "a mesh of two dimensions, replicas and shards, is for the strategies "
				  "'zero2' and 'zero3', and this one is '%s'",
				  p->strategy);
	if (p->n_nodes % replicas.size)
		return train_fail(-EINVAL,
				  "%u node%s cannot be %u replicas ('%s'): each is as many whole nodes "
				  "as the others; use a number that divides %u",
				  p->n_nodes, p->n_nodes == 1 ? "" : "s", replicas.size,
				  replicas.name, p->n_nodes);
	p->n_sharing = p->n_nodes / replicas.size;
	return 0;
}

static int take_groups(struct weightd_plan *p, const struct weightd_plan_options *o)
{
	if (!optimizer_name(o->optimizer))
		return train_fail(-EINVAL, "the optimizer %u is unknown", o->optimizer);
	p->optimizer = o->optimizer;
	if (o->n_groups == 0 || o->n_groups > PLAN_GROUPS_MAX)
		return train_fail(-EINVAL,
				  "a plan has 1 to %d parameter groups, and this one has %u",
				  PLAN_GROUPS_MAX, o->n_groups);
	p->groups = calloc(o->n_groups, sizeof(*p->groups));
	if (!p->groups)
		return train_out_of_memory();
	p->n_groups = o->n_groups;
	p->n_moments = p->optimizer == WEIGHTD_SGD ? 0 : 2;
	for (uint32_t i = 0; i < p->n_groups; i++) {
		int r = take_group(p, &o->groups[i], i);

		if (r < 0)
			return r;
		if (p->groups[i].momentum > 0)
			p->n_moments = 1;
	}
	return 0;
}

/* The form of a step: fused, unless something else is asked for. */
static int take_form(struct weightd_plan *p, const struct weightd_plan_options *o)
{
	bool sums_nodes = plan_sums_nodes(p);

	p->form = o->form;
	if (o->form == WEIGHTD_STEP_AUTO)
		p->form = p->row->can_fuse && !o->overlap && !o->scaling && !sums_nodes
				  ? WEIGHTD_STEP_FUSED
				  : WEIGHTD_STEP_TWO_PHASE;
	if (!form_name(p->form))
		return train_fail(-EINVAL, "the step form %u is unknown", o->form);
	if (p->form == WEIGHTD_STEP_FUSED && !p->row->can_fuse)
		return train_fail(-EINVAL,
				  "the strategy '%s' has no fused step; use the form 'two-phase'",
				  p->strategy);
	if (o->overlap && p->form == WEIGHTD_STEP_FUSED)
		return train_fail(
			-EINVAL,
			"overlap needs buckets, which a fused step lacks; use the form 'two-phase'");
	if (o->scaling && p->form == WEIGHTD_STEP_FUSED)
		return train_fail(
			-EINVAL,
			"scaling needs to know whether all gradients are finite before the update, which a "
			"fused step does not; use the form 'two-phase'");
	if (sums_nodes && p->form == WEIGHTD_STEP_FUSED)
		return train_fail(-EINVAL,
				  "several nodes exchange sums of gradients, which a fused step "
				  "does not have; use the form 'two-phase'");
	if (p->sync_every &&
	    (p->row->has_copies || p->row->pools_grads || o->staleness || o->scaling))
		return train_fail(
			-EINVAL,
			"sync_every needs the strategy 'shared', without staleness and without "
			"scaling: between two averages each node goes its own way");
	if (o->staleness > PLAN_STALENESS_MAX)
		return train_fail(-EINVAL, "a staleness of %u is too large; %d is the most",
				  o->staleness, PLAN_STALENESS_MAX);
	if (o->staleness && !p->row->can_lag)
		return train_fail(-EINVAL, "the strategy '%s' has no staleness; 'shared' has",
				  p->strategy);
	if (o->staleness && sums_nodes)
		return train_fail(
			-EINVAL,
			"staleness is for one node: several exchange sums of gradients, which "
			"the fused step that it needs does not have; use a staleness of 0");
	if (o->staleness && p->form != WEIGHTD_STEP_FUSED)
		return train_fail(
			-EINVAL,
			"staleness needs the fused step; use the form 'fused', without overlap "
			"and without scaling, or a staleness of 0");
	p->overlap = o->overlap || p->row->pools_grads;
	p->staleness = o->staleness;
	p->n_slots = o->staleness + 1;
	return 0;
}

static int take_copies(struct weightd_plan *p, uint32_t asked)
{
	uint32_t n_nodes;

	if (p->row->has_copies) {
		p->n_copies = p->n_ranks;
		if (asked && asked != p->n_ranks)
			return train_fail(
				-EINVAL,
				"with the strategy '%s' each of the %u ranks has a copy; n_copies cannot be %u",
				p->strategy, p->n_ranks, asked);
		return 0;
	}
	if (asked > 1 && plan_shards_params(p))
		return train_fail(-EINVAL,
				  "with the strategy '%s' each node has a part of the parameters, "
				  "and no copy; n_copies cannot be %u",
				  p->strategy, asked);
	if (asked > p->n_ranks)
		return train_fail(-EINVAL, "%u copies are too many for %u ranks", asked, p->n_ranks);
	n_nodes = asked ? asked : plan_shards_params(p) ? 1 : nodes_of_machine();
	p->n_copies = n_nodes < p->n_ranks ? n_nodes : p->n_ranks;
	return 0;
}

static int take_units(struct weightd_plan *p, const struct weightd_plan_options *o)
{
	if ((o->keeps_units || o->without_prefetch) && !p->row->has_units)
		return train_fail(-EINVAL, "%s is for the strategy 'zero3', and this one is '%s'",
				  o->keeps_units ? "keeps_units" : "without_prefetch", p->strategy);
	p->keeps_units = o->keeps_units;
	p->without_prefetch = o->without_prefetch;
	return 0;
}

static int take_sizes(struct weightd_plan *p, const struct weightd_plan_options *o)
{
	p->bucket_bytes = o->bucket_bytes ? o->bucket_bytes : BUCKET_BYTES;
	p->state_size = o->state_size ? o->state_size : STATE_SIZE;
	p->without_journal = o->without_journal;
	if (p->bucket_bytes > BUCKET_BYTES_MAX)
		return train_fail(-EINVAL, "a bucket of %llu bytes is too large; %llu is the most",
				  (unsigned long long)p->bucket_bytes, BUCKET_BYTES_MAX);
	if (p->state_size > PLAN_STATE_MAX)
		return train_fail(-EINVAL, "a state of %u bytes is too large; %d is the most",
				  p->state_size, PLAN_STATE_MAX);
	return 0;
}

/* As fp32: the arithmetic of the scale has it. */
static bool is_scale(double scale)
{
	return scale > 0 && isnormal((float)scale);
}

static int take_scaling(struct weightd_plan *p, const struct weightd_scaling *s)
{
	if (!s)
		return 0;
	if (!is_scale(s->init))
		return train_fail(-EINVAL,
				  "the first scale of the loss is %g; give a positive number of fp32, "
				  "such as 65536",
				  s->init);
	if (!(s->growth >= 1) || !isfinite(s->growth))
		return train_fail(-EINVAL, "the scale grows by %g; give a factor of 1 or more",
				  s->growth);
	if (!(s->backoff > 0 && s->backoff <= 1))
		return train_fail(
			-EINVAL,
			"the scale backs off by %g; give a factor of more than 0, and 1 at most",
			s->backoff);
	if (!s->interval)
		return train_fail(-EINVAL, "the scale grows every 0 steps; give 1 or more");
	p->has_scaling = true;
	p->scaling = *s;
	p->scaling.size = sizeof(p->scaling);
	return 0;
}

static int take_release(struct weightd_plan *p, const char *release)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789.+-~";
	size_t size = strlen(release);
	struct quote q;

	if (size == 0 || size > PLAN_RELEASE_MAX || strspn(release, allowed) != size)
		return train_fail(-EINVAL, "%s is no release", quote_name(&q, release));
	memcpy(p->release, release, size + 1);
	return 0;
}

static int take_options(struct weightd_plan *p, const struct weightd_plan_options *o)
{
	int r = take_mesh(p, o->mesh);

	if (r >= 0)
		r = take_nodes(p, o);
	if (r >= 0)
		r = take_strategy(p, o->strategy);
	if (r >= 0)
		r = take_replicas(p);
	if (r >= 0)
		r = take_groups(p, o);
	if (r >= 0)
		r = take_form(p, o);
	if (r >= 0)
		r = take_copies(p, o->n_copies);
	if (r >= 0)
		r = take_units(p, o);
	if (r >= 0)
		r = take_sizes(p, o);
	if (r >= 0)
		r = take_scaling(p, o->scaling);
	return r;
}

/* --- Making ------------------------------------------------------------------------------------- */

int build_plan(const struct weightd_train_tensor *tensors, uint32_t n_tensors,
	       const struct weightd_plan_options *options, const char *release,
	       struct weightd_plan **ret)
{
	cleanup(weightd_plan_freep) struct weightd_plan *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return train_out_of_memory();
	r = take_release(p, release);
	if (r >= 0)
		r = take_options(p, options);
	if (r >= 0)
		r = build_tensors(p, tensors, n_tensors, options->grad_dtype);
	if (r >= 0)
		r = build_units(p);
	if (r >= 0)
		r = build_intervals(p);
	if (r >= 0)
		r = build_pieces(p);
	if (r < 0)
		return r;
	build_parts(p);
	r = build_ops(p);
	if (r >= 0)
		r = build_image(p);
	if (r < 0)
		return r;
	*ret = take_ptr(p);
	return 0;
}

/* An array of the caller, whose structs may be those of another release, into one of `known` bytes each. */
static int copy_array(const void *given, uint32_t n, size_t min, size_t known, const char *type,
		      void *ret)
{
	const char *from = given;
	char *to = ret;

	for (uint32_t i = 0; i < n; i++) {
		size_t size;
		int r = given_copy(from, min, to, known, type);

		if (r < 0)
			return r;
		memcpy(&size, from, sizeof(size));
		from += size;
		to += known;
	}
	return 0;
}

int weightd_plan_new(const struct weightd_train_tensor *tensors, uint32_t n_tensors,
		     const struct weightd_plan_options *options, struct weightd_plan **ret)
{
	cleanup(freep) struct weightd_train_tensor *own = NULL;
	struct weightd_group groups[PLAN_GROUPS_MAX];
	struct weightd_scaling scaling;
	struct weightd_plan_options o;
	char release[PLAN_RELEASE_MAX + 1];
	int r = given_copy(options, GIVEN_PLAN_OPTIONS_MIN, &o, sizeof(o),
			   "struct weightd_plan_options");

	if (r < 0)
		return r;
	if (o.n_groups <= PLAN_GROUPS_MAX)
		r = copy_array(o.groups, o.n_groups, GIVEN_GROUP_MIN, sizeof(*groups),
			       "struct weightd_group", groups);
	if (r < 0)
		return r;
	o.groups = groups;
	if (o.scaling)
		r = given_copy(o.scaling, GIVEN_SCALING_MIN, &scaling, sizeof(scaling),
			       "struct weightd_scaling");
	if (r < 0)
		return r;
	o.scaling = o.scaling ? &scaling : NULL;
	if (n_tensors <= WEIGHTD_TENSORS_MAX) {
		own = malloc((n_tensors + 1ull) * sizeof(*own));
		if (!own)
			return train_out_of_memory();
		r = copy_array(tensors, n_tensors, GIVEN_TENSOR_MIN, sizeof(*own),
			       "struct weightd_train_tensor", own);
	}
	if (r < 0)
		return r;
	(void)snprintf(release, sizeof(release), "%d.%d.%d", WEIGHTD_VERSION_MAJOR,
		       WEIGHTD_VERSION_MINOR, WEIGHTD_VERSION_PATCH);
	return build_plan(own, n_tensors, &o, release, ret);
}
