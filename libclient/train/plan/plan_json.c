/*
 * Writes plans as JSON: options and tensors, and all that follows from them.
 */
#include "libclient/train/plan/plan_json.h"

#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/sentence.h"

/* A NULL in the place of a value makes an object NULL, too: the caller looks once, at the end. */

static json_t *size_json(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *name_json(const char *name)
{
	return name ? json_string(name) : json_null();
}

static json_t *mesh_json(const struct weightd_plan *p)
{
	json_t *a = json_array();
	struct weightd_mesh_dim dim;

	for (uint32_t i = 0; weightd_mesh_n_dims(p->mesh) > i; i++) {
		(void)weightd_mesh_dim(p->mesh, i, &dim);
		if (json_array_append_new(a, json_pack("{ss sI}", "name", dim.name, "size",
						       (json_int_t)dim.size)))
			return json_decref(a), NULL;
	}
	return a;
}

static json_t *group_json(const struct weightd_plan *p, const struct weightd_group *g)
{
	if (p->optimizer == WEIGHTD_SGD)
		return json_pack("{sf sf sb}", "weight_decay", g->weight_decay, "momentum",
				 g->momentum, "nesterov", g->nesterov);
	return json_pack("{sf sf sf sf}", "weight_decay", g->weight_decay, "beta1", g->beta1,
			 "beta2", g->beta2, "eps", g->eps);
}

static json_t *groups_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_groups; i++)
		if (json_array_append_new(a, group_json(p, &p->groups[i])))
			return json_decref(a), NULL;
	return a;
}

static json_t *sizes_json(const uint64_t *sizes, uint32_t n)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < n; i++)
		if (json_array_append_new(a, size_json(sizes[i])))
			return json_decref(a), NULL;
	return a;
}

static json_t *scaling_json(const struct weightd_plan *p)
{
	const struct weightd_scaling *s = &p->scaling;

	if (!p->has_scaling)
		return json_null();
	return json_pack("{sf sf sf sI}", "init", s->init, "growth", s->growth, "backoff",
			 s->backoff, "interval", (json_int_t)s->interval);
}

static json_t *tensors_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];

		if (json_array_append_new(
			    a,
			    json_pack("{ss ss so ss sb sI sI sI sI sI}", "name", t->name, "dtype",
				      dtype_name(t->dtype), "shape",
				      sizes_json(t->shape, t->n_dims), "role", role_name(t->role),
				      "frozen", t->frozen, "group", (json_int_t)t->group, "unit",
				      (json_int_t)t->unit, "level", (json_int_t)t->level, "offset",
				      (json_int_t)t->offset, "n_bytes", (json_int_t)t->n_bytes)))
			return json_decref(a), NULL;
	}
	return a;
}

static json_t *runs_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_runs; i++)
		if (json_array_append_new(a, json_pack("{sI sI sI}", "begin",
						       (json_int_t)p->runs[i].interval.begin, "end",
						       (json_int_t)p->runs[i].interval.end, "group",
						       (json_int_t)p->runs[i].group)))
			return json_decref(a), NULL;
	return a;
}

static json_t *buckets_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_buckets; i++)
		if (json_array_append_new(a, json_pack("{sI sI}", "begin",
						       (json_int_t)p->buckets[i].begin, "end",
						       (json_int_t)p->buckets[i].end)))
			return json_decref(a), NULL;
	return a;
}

static json_t *units_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_units; i++) {
		const struct plan_unit *u = &p->units[i];

		if (json_array_append_new(
			    a, json_pack("{sI sI sI sI}", "begin", (json_int_t)u->interval.begin,
					 "end", (json_int_t)u->interval.end, "level",
					 (json_int_t)u->level, "room", (json_int_t)u->room)))
			return json_decref(a), NULL;
	}
	return a;
}

static json_t *rooms_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_rooms; i++)
		if (json_array_append_new(a, json_pack("{sI sI sI}", "offset",
						       (json_int_t)p->rooms[i].offset, "size",
						       (json_int_t)p->rooms[i].size, "level",
						       (json_int_t)p->rooms[i].level)))
			return json_decref(a), NULL;
	return a;
}

static json_t *parts_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_parts; i++) {
		const struct plan_part *part = &p->parts[i];

		if (json_array_append_new(
			    a, json_pack("{ss sI sI sI so}", "kind", weightd_kind_name(part->kind),
					 "n", (json_int_t)part->n, "used", (json_int_t)part->used,
					 "stride", (json_int_t)part->stride, "placement",
					 name_json(weightd_placement_name(part->placement)))))
			return json_decref(a), NULL;
	}
	return a;
}

/* A version of JOURNAL is none. */
static json_t *version_json(enum weightd_kind kind)
{
	return name_json(kind == WEIGHTD_KIND_JOURNAL ? NULL : weightd_kind_name(kind));
}

/* Operations on all buckets have no bucket. */
static json_t *bucket_json(const struct plan_op *op)
{
	bool is_of_one = op->type == PLAN_REDUCE || op->type == PLAN_SCATTER ||
			 op->type == PLAN_SUM || op->type == PLAN_FETCH ||
			 op->type == PLAN_SCATTER_REPLICAS || op->type == PLAN_GATHER_REPLICAS;
	bool has_bucket = is_of_one && op->bucket != UINT32_MAX;

	return has_bucket ? size_json(op->bucket) : json_null();
}

/* Operations inside a node exchange nothing. */
static json_t *exchange_json(const struct plan_op *op)
{
	return op->exchange ? size_json(op->exchange) : json_null();
}

static json_t *op_json(const struct plan_op *op)
{
	return json_pack("{ss so so sI ss ss ss ss sI sI so so sI ss}", "op", op_name(op->type),
			 "bucket", bucket_json(op), "exchange", exchange_json(op), "every",
			 (json_int_t)op->every, "from", weightd_kind_name(op->from), "to",
			 weightd_kind_name(op->to), "placement_from",
			 weightd_placement_name(op->placement_from), "placement_to",
			 weightd_placement_name(op->placement_to), "begin",
			 (json_int_t)op->interval.begin, "end", (json_int_t)op->interval.end,
			 "waits", version_json(op->waits), "produces", version_json(op->produces),
			 "lag", (json_int_t)op->lag, "resource", op->resource);
}

static json_t *ops_json(const struct weightd_plan *p)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < p->n_ops; i++)
		if (json_array_append_new(a, op_json(&p->ops[i])))
			return json_decref(a), NULL;
	return a;
}

static json_t *traffic_json(const struct weightd_plan *p)
{
	struct weightd_traffic t = {.size = sizeof(t)};
	json_t *a = json_array();

	for (uint32_t i = 0; i < weightd_mesh_n_ranks(p->mesh); i++) {
		(void)weightd_plan_traffic(p, i, &t);
		if (json_array_append_new(a, json_pack("{sI sI sI sI}", "read", (json_int_t)t.read,
						       "written", (json_int_t)t.written, "sent",
						       (json_int_t)t.sent, "sent_replicas",
						       (json_int_t)t.sent_replicas)))
			return json_decref(a), NULL;
	}
	return a;
}

static json_t *hash_json(const struct weightd_plan *p)
{
	uint8_t hash[16];
	char text[2 * sizeof(hash) + 1];

	weightd_plan_hash(p, hash);
	for (size_t i = 0; i < sizeof(hash); i++)
		(void)snprintf(text + 2 * i, 3, "%02x", hash[i]);
	return json_string(text);
}

json_t *plan_json(const struct weightd_plan *p)
{
	return json_pack("{ss ss so sI sI ss ss ss sI sb sb sb sI sI sI sb ss so so so"
			 " sI sI so so so so so so so sI sI so so}",
			 "format", PLAN_JSON_FORMAT, "release", p->release, "mesh", mesh_json(p),
			 "n_nodes", (json_int_t)p->n_nodes, "sync_every", (json_int_t)p->sync_every,
			 "strategy", p->strategy, "optimizer", optimizer_name(p->optimizer), "form",
			 form_name(p->form), "bucket_bytes", (json_int_t)p->bucket_bytes, "overlap",
			 p->overlap, "keeps_units", p->keeps_units, "without_prefetch",
			 p->without_prefetch, "staleness", (json_int_t)p->staleness, "n_copies",
			 (json_int_t)p->n_copies, "state_size", (json_int_t)p->state_size,
			 "journal", !p->without_journal, "grad_dtype", dtype_name(p->grad_dtype),
			 "scaling", scaling_json(p), "groups", groups_json(p), "tensors",
			 tensors_json(p), "n_elements", (json_int_t)p->n_elements, "padding_bytes",
			 (json_int_t)weightd_plan_padding(p), "cuts",
			 sizes_json(p->cuts, p->n_ranks + 1), "runs", runs_json(p), "buckets",
			 buckets_json(p), "units", units_json(p), "rooms", rooms_json(p), "parts",
			 parts_json(p), "ops", ops_json(p), "n_exchanges",
			 (json_int_t)p->n_exchanges, "n_asked", (json_int_t)p->n_asked, "traffic",
			 traffic_json(p), "hash", hash_json(p));
}

int weightd_plan_json(const struct weightd_plan *p, char **ret)
{
	cleanup(plan_json_decref) json_t *o = plan_json(p);
	char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;

	if (!text)
		return train_out_of_memory();
	*ret = text;
	return 0;
}
