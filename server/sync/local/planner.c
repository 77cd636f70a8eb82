/*
 * A planner does not use weightd. It receives the layouts of shards, rank by rank, and the split,
 * and returns the layouts of the targets and the moves. It reads untrusted data of other nodes, and
 * takes seconds for a large model: so it does not run in the agent.
 */
#include "server/sync/local/planner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "libclient/reshard/tensor.h"
#include "server/sync/base/json_fields.h"

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

struct planning {
	struct weightd_layout *layouts[RESHARD_RANKS_MAX]; /* indexed by rank */
	/* The same; names and shapes are borrowed from `layouts`. */
	struct reshard_layout sources[RESHARD_RANKS_MAX];
	unsigned n;
};

struct planning *planning_free(struct planning *p)
{
	for (unsigned i = 0; p && i < p->n; i++) {
		free((void *)p->sources[i].tensors);
		weightd_layout_free(p->layouts[i]);
	}
	free(p);
	return NULL;
}

/* --- Requests ---------------------------------------------------------------------------------- */

static int add_source(struct planning *p, const struct weightd_layout *l, struct fault *f)
{
	uint32_t n = weightd_layout_n_tensors(l);
	struct reshard_tensor *tensors = calloc((size_t)n + 1, sizeof(*tensors));
	struct weightd_tensor t = {.size = sizeof(t)};

	if (!tensors)
		return fault_set(f, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < n && weightd_layout_tensor(l, i, &t) == 0; i++)
		tensors[i] = reshard_tensor_of(&t);
	p->sources[p->n] = (struct reshard_layout){.tensors = tensors,
						   .n_tensors = n,
						   .n_bytes = weightd_layout_n_bytes(l)};
	return 0;
}

static int take_layout(struct planning *p, const struct json_packet *t, struct fault *f)
{
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	cleanup(blob_deinit) struct blob image = {0};
	int r;

	if (p->n == RESHARD_RANKS_MAX || t->n_fds != 1 ||
	    blob_map(t->fds[0], PLANNER_LAYOUT_MAX, &image) < 0)
		return fault_set_message(f, t, "lacks a sealed layout, or is one too many");
	r = weightd_layout_parse(image.data, image.size, &layout);
	if (r < 0)
		return fault_set(f, r, "the layout of rank %u cannot be used: %s", p->n,
				 strerror(-r));
	r = add_source(p, layout, f);
	if (r == 0)
		p->layouts[p->n++] = take_ptr(layout);
	return r;
}

/* The nodes of ranks. */
static int take_nodes(const struct json_packet *t, const char *key, uint64_t n_nodes,
		      unsigned ret[RESHARD_RANKS_MAX], unsigned *ret_n)
{
	json_t *nodes, *node;
	size_t i;

	if (field_array(t->message, key, RESHARD_RANKS_MAX, &nodes) < 0 || !json_array_size(nodes))
		return -EBADMSG;
	json_array_foreach(nodes, i, node)
	{
		json_int_t n = json_integer_value(node);

		if (!json_is_integer(node) || n < 0 || (uint64_t)n >= n_nodes)
			return -EBADMSG;
		ret[i] = (unsigned)n;
	}
	*ret_n = (unsigned)json_array_size(nodes);
	return 0;
}

struct asked {
	uint64_t n_nodes;
	unsigned n_sources, n_targets;
	unsigned sources[RESHARD_RANKS_MAX], targets[RESHARD_RANKS_MAX]; /* nodes */
	struct split split;
};

static void asked_deinit(struct asked *a)
{
	split_deinit(&a->split);
}

static int take_asked(const struct planning *p, const struct json_packet *t, struct asked *ret,
		      struct fault *f)
{
	cleanup(blob_deinit) struct blob text = {0};
	char why[SPLIT_WHY_SIZE];
	int r;

	if (t->n_fds != 1 || blob_map(t->fds[0], SPLIT_SIZE_MAX, &text) < 0 ||
	    field_number(t->message, "n_nodes", MOVES_NODES_MAX, &ret->n_nodes) < 0 ||
	    take_nodes(t, "sources", ret->n_nodes, ret->sources, &ret->n_sources) < 0 ||
	    take_nodes(t, "targets", ret->n_nodes, ret->targets, &ret->n_targets) < 0 ||
	    ret->n_sources != p->n)
		return fault_set_message(f, t, "lacks nodes, layouts or a split");
	r = split_read(text.data, text.size, &ret->split, why);
	return r < 0 ? fault_set(f, r, "%s", why) : 0;
}

/* --- Answers ----------------------------------------------------------------------------------- */

static int add_tensor(struct weightd_layout *l, const struct reshard *r, unsigned target,
		      uint32_t index, const struct weightd_tensor *t)
{
	uint64_t shape[RESHARD_DIMS_MAX];

	if (t->tied_to != WEIGHTD_NOT_TIED)
		return weightd_layout_tie(l, t->name, t->tied_to, t->unit);
	reshard_shape(r, target, index, shape);
	return weightd_layout_add(l, t->name, t->dtype, t->n_dims, shape, t->role, t->unit);
}

static int make_layout(const struct planning *p, const struct reshard *r, unsigned target,
		       struct weightd_layout *l, struct fault *f)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	int e = 0;

	for (uint32_t i = 0; e == 0 && weightd_layout_tensor(p->layouts[0], i, &t) == 0; i++)
		e = add_tensor(l, r, target, i, &t);
	if (e < 0)
		return fault_set(f, e, "tensor '%.200s' cannot be at target %u: %s", t.name, target,
				 strerror(-e));
	if (!r->target_bytes[target])
		return fault_set(f, -EINVAL,
				 "target %u would have no bytes; name fewer nodes for the "
				 "shards",
				 target);
	/* The moves use the planned offsets. */
	if (weightd_layout_n_bytes(l) != r->target_bytes[target])
		return fault_set(f, -EINVAL, "the layout of target %u differs from the plan",
				 target);
	return 0;
}

/* Sends a sealed copy, with its hash. */
static int send_blob(json_t *message, const void *data, size_t size, struct fault *f)
{
	cleanup(fd_closep) int fd = -1;
	uint8_t hash[MERKLE_HASH_SIZE];
	char hex[2 * MERKLE_HASH_SIZE + 1];
	int r = fd_sealed_copy("weightd-sync-plan", data, size, &fd);

	if (r < 0) {
		json_decref(message);
		return fault_set(f, r, "cannot copy the plan: %s", strerror(-r));
	}
	merkle_hash(data, size, hash);
	json_object_set_new(message, "size", json_integer((json_int_t)size));
	json_object_set_new(message, "hash", json_string(field_hex(hash, sizeof(hash), hex)));
	return task_send(message, &fd, 1, f);
}

static int send_target(const struct planning *p, const struct reshard *r, unsigned target,
		       struct fault *f)
{
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	cleanup(freep) void *image = NULL;
	uint64_t size;
	int e = weightd_layout_new(RESHARD_ALIGNMENT, &layout);

	e = e < 0 ? fault_set(f, e, "out of memory") : make_layout(p, r, target, layout, f);
	if (e < 0)
		return e;
	e = weightd_layout_image(layout, &image, &size);
	if (e < 0)
		return fault_set(f, e, "cannot write the layout of target %u: %s", target,
				 strerror(-e));
	if (size > PLANNER_LAYOUT_MAX)
		return fault_set(f, -EOVERFLOW,
				 "the layout of target %u would have more than %u MiB", target,
				 (unsigned)(PLANNER_LAYOUT_MAX >> 20));
	return send_blob(json_pack("{s:s, s:i, s:I}", "op", "target", "rank", (int)target,
				   "n_bytes", (json_int_t)r->target_bytes[target]),
			 image, size, f);
}

static int send_moves(const struct reshard *r, const struct asked *a, struct fault *f)
{
	cleanup(moves_deinit) struct moves moves = {0};
	cleanup(freep) void *text = NULL;
	char why[RESHARD_WHY_SIZE];
	size_t size;
	int e = reshard_moves(r, a->sources, a->targets, (unsigned)a->n_nodes, &moves, why);

	if (e < 0)
		return fault_set(f, e, "%s", why);
	e = moves_encode(&moves, &text, &size);
	if (e < 0)
		return fault_set(f, e, "out of memory");
	return send_blob(json_pack("{s:s}", "op", "planned"), text, size, f);
}

static int planner_plan(const struct planning *p, const struct json_packet *t, struct fault *f)
{
	cleanup(asked_deinit) struct asked a = {0};
	cleanup(reshard_deinit) struct reshard r = {0};
	char why[RESHARD_WHY_SIZE];
	int e = take_asked(p, t, &a, f);

	if (e < 0)
		return e;
	e = reshard_init(&r, &a.split, p->sources, a.n_sources, a.n_targets, why);
	if (e < 0)
		return fault_set(f, e, "%s", why);
	for (unsigned i = 0; e == 0 && i < a.n_targets; i++)
		e = send_target(p, &r, i, f);
	return e < 0 ? e : send_moves(&r, &a, f);
}

int planner_handle(struct task *e, const struct json_packet *t, struct fault *f)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (e->stage == STAGE_NEW && !e->planning)
		e->planning = calloc(1, sizeof(*e->planning));
	if (!e->planning && e->stage == STAGE_NEW)
		return fault_set(f, -ENOMEM, "out of memory");
	if (op && !strcmp(op, "layout") && e->stage == STAGE_NEW)
		return take_layout(e->planning, t, f);
	if (op && !strcmp(op, "plan") && e->stage == STAGE_NEW && e->planning->n > 0) {
		e->stage = STAGE_OVER;
		return planner_plan(e->planning, t, f);
	}
	return fault_set_message(f, t, "expects the layout of each rank, and then one plan");
}
