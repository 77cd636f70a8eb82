/*
 * Loads: each rank reads what it updates, and no other bytes of the tensors
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/quote.h"
#include "ipc/dtype.h"
#include "libclient/train/loaded.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/save/description.h"
#include "libclient/train/scale.h"
#include "libclient/train/trainer.h"

struct loading {
	struct weightd_train *t;
	struct weightd *w; /* for the sentences of files */
	char folder[FOLDER_PATH_MAX]; /* the checkpoint */
	struct description description;
	json_t *model, *optimizer; /* files by tensor; `optimizer` NULL: it has no state */
	struct weightd_safetensors *file; /* the last one */
	char file_name[CHECKPOINT_NAME_MAX];
};

static void loading_deinit(struct loading *l)
{
	weightd_safetensors_close(l->file);
	json_decref(l->model);
	json_decref(l->optimizer);
	weightd_close(l->w);
}

/* --- Files ----------------------------------------------------------------------------------------- */

static int file_failed(const struct loading *l, int r)
{
	return r < 0 ? train_fail(r, "%s", weightd_error(l->w)) : 0;
}

static int open_file(struct loading *l, const char *name)
{
	char path[FOLDER_PATH_MAX + CHECKPOINT_NAME_MAX];

	if (l->file && !strcmp(l->file_name, name))
		return 0;
	weightd_safetensors_close(take_ptr(l->file));
	(void)snprintf(l->file_name, sizeof(l->file_name), "%s", name);
	(void)snprintf(path, sizeof(path), "%s/%s", l->folder, name);
	return file_failed(l, weightd_safetensors_open(l->w, path, &l->file));
}

static bool has_shape(const struct weightd_tensor *found, const struct weightd_train_tensor *t)
{
	return found->n_dims == t->n_dims &&
	       (!t->n_dims || !memcmp(found->shape, t->shape, t->n_dims * sizeof(*t->shape)));
}

/* Finds a tensor in the open file, of the type and the shape that the plan has. */
static int find(struct loading *l, const char *name, const struct weightd_train_tensor *t,
		enum weightd_dtype dtype, struct weightd_tensor *ret)
{
	struct quote q;
	int r;

	*ret = (struct weightd_tensor){.size = sizeof(*ret)};
	r = weightd_safetensors_find(l->file, name, ret);
	if (r < 0)
		return file_failed(l, r == -ENOENT ? -EBADMSG : r);
	if (ret->dtype != dtype)
		return train_fail(-EPROTOTYPE, "%s is %s in the checkpoint, and %s in the plan",
				  quote_name(&q, name), dtype_name(ret->dtype), dtype_name(dtype));
	if (!has_shape(ret, t))
		return train_fail(-EPROTOTYPE,
				  "%s has another shape in the checkpoint than in the plan",
				  quote_name(&q, name));
	return 0;
}

/* Bytes of a tensor, from `offset` in it on. */
static int read_bytes(struct loading *l, const struct weightd_tensor *from, uint64_t offset,
		      void *to, uint64_t size)
{
	return size ? file_failed(l,
				  weightd_safetensors_read(l->file, from->offset + offset, to, size))
		    : 0;
}

/* --- The checkpoint and the plan -------------------------------------------------------------------- */

static int missing(const char *name)
{
	struct quote q;

	return train_fail(-EPROTOTYPE, "the plan has %s, which the checkpoint lacks",
			  quote_name(&q, name));
}

static int check_names(const struct loading *l)
{
	const struct weightd_plan *p = l->t->plan;
	const char *name;
	json_t *file;
	uint32_t index;
	struct quote q;

	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (!json_object_get(l->model, p->tensors[i].name))
			return missing(p->tensors[i].name);
	json_object_foreach(
		l->model, name,
		file) if (weightd_plan_find(p, name, &index) <
			  0) return train_fail(-EPROTOTYPE,
					       "the checkpoint has %s, which the plan lacks",
					       quote_name(&q, name));
	return 0;
}

static int check_plan(const struct loading *l)
{
	const struct weightd_plan *p = l->t->plan;
	struct quote q;

	if (strcmp(l->description.optimizer, optimizer_name(p->optimizer)) != 0)
		return train_fail(-EPROTOTYPE,
				  "the checkpoint has the state of %s, and the plan trains with "
				  "%s",
				  quote_name(&q, l->description.optimizer),
				  optimizer_name(p->optimizer));
	return check_names(l);
}

/* --- Tensors --------------------------------------------------------------------------------------- */

/* The elements of a trained tensor that this rank updates, from its first one on. */
static struct plan_interval part_of(const struct weightd_train *t,
				    const struct weightd_train_tensor *tensor)
{
	struct plan_interval all = plan_elements(t->plan, tensor), part = t->arena.updated;

	part.begin = part.begin > all.begin ? part.begin : all.begin;
	part.end = part.end < all.end ? part.end : all.end;
	if (part.begin >= part.end)
		return (struct plan_interval){0, 0};
	return (struct plan_interval){part.begin - all.begin, part.end - all.begin};
}

/* The place of an element of a tensor in a range, which begins with the updated elements. */
static uint8_t *place_of(const struct weightd_train *t, enum weightd_kind kind, void *range,
			 const struct weightd_train_tensor *tensor, uint64_t element)
{
	uint64_t at = plan_elements(t->plan, tensor).begin + element - t->arena.updated.begin;

	return (uint8_t *)range + at * plan_element_size(t->plan, kind);
}

static int load_values(struct loading *l, const struct weightd_train_tensor *tensor,
		       struct plan_interval part)
{
	struct weightd_train *t = l->t;
	uint32_t own = plan_copy(t->plan, t->arena.rank);
	uint64_t element = plan_element_size(t->plan, WEIGHTD_KIND_PARAM);
	uint64_t size = (part.end - part.begin) * element;
	struct weightd_tensor from;
	uint8_t *to;
	int r = open_file(l, json_string_value(json_object_get(l->model, tensor->name)));

	if (r == 0)
		r = find(l, tensor->name, tensor, tensor->dtype, &from);
	if (r < 0)
		return r;
	to = place_of(t, WEIGHTD_KIND_PARAM, t->arena.params[own], tensor, part.begin);
	r = read_bytes(l, &from, part.begin * element, to, size);
	for (uint32_t i = 0; r == 0 && i < t->plan->n_copies && !plan_is_replicated(t->plan); i++)
		if (i != own)
			memcpy(place_of(t, WEIGHTD_KIND_PARAM, t->arena.params[i], tensor,
					part.begin),
			       to, size);
	return r;
}

static int load_state(struct loading *l, const struct weightd_train_tensor *tensor,
		      const struct checkpoint_state *state, struct plan_interval part)
{
	struct arena *a = &l->t->arena;
	float *range = state->kind == WEIGHTD_KIND_MASTER ? a->master : a->moments[state->moment];
	char name[WEIGHTD_TENSOR_NAME_MAX + 64];
	struct weightd_tensor from;
	const char *file;
	int r;

	(void)snprintf(name, sizeof(name), "%s%s", tensor->name, state->suffix);
	file = json_string_value(json_object_get(l->optimizer, name));
	if (!file)
		return missing(name);
	r = open_file(l, file);
	if (r == 0)
		r = find(l, name, tensor, WEIGHTD_F32, &from);
	if (r < 0)
		return r;
	return read_bytes(l, &from, part.begin * sizeof(float),
			  place_of(l->t, state->kind, range, tensor, part.begin),
			  (part.end - part.begin) * sizeof(float));
}

static int load_states(struct loading *l, const struct weightd_train_tensor *tensor,
		       struct plan_interval part)
{
	struct checkpoint_state state;
	int r = 0;

	for (uint32_t i = 0; r == 0 && checkpoint_state(l->t->plan, i, &state); i++)
		r = load_state(l, tensor, &state, part);
	return r;
}

/* Calls `load` for each tensor that this rank updates elements of. Files are in the order of tensors. */
static int for_each_part(struct loading *l,
			 int (*load)(struct loading *l, const struct weightd_train_tensor *tensor,
				     struct plan_interval part))
{
	const struct weightd_plan *p = l->t->plan;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < p->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &p->tensors[i];
		struct plan_interval part = {0, 0};

		if (plan_is_trained(tensor))
			part = part_of(l->t, tensor);
		if (part.begin < part.end)
			r = load(l, tensor, part);
	}
	return r;
}

/* Those that are not trained have one copy, which rank 0 fills. */
static int load_frozen(struct loading *l)
{
	struct weightd_train *t = l->t;
	struct weightd_tensor from;
	uint8_t *all = NULL;
	int r = 0;

	for (uint32_t i = 0; r == 0 && t->arena.rank == 0 && i < t->plan->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &t->plan->tensors[i];

		if (!tensor->frozen || !tensor->n_bytes)
			continue;
		if (!all)
			all = arena_map_all(&t->arena, WEIGHTD_KIND_FROZEN, 0);
		if (!all)
			return -ENOMEM;
		r = open_file(l, json_string_value(json_object_get(l->model, tensor->name)));
		if (r == 0)
			r = find(l, tensor->name, tensor, tensor->dtype, &from);
		if (r == 0)
			r = read_bytes(l, &from, 0, all + tensor->offset, tensor->n_bytes);
	}
	if (all)
		arena_unmap_all(&t->arena, all);
	return r;
}

/* --- The rank -------------------------------------------------------------------------------------- */

static int load_buffers(struct loading *l)
{
	const struct weightd_plan *p = l->t->plan;
	char name[WEIGHTD_TENSOR_NAME_MAX + 64];
	struct weightd_tensor from;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < p->n_tensors; i++) {
		const struct weightd_train_tensor *tensor = &p->tensors[i];

		if (tensor->role != WEIGHTD_BUFFER)
			continue;
		(void)snprintf(name, sizeof(name), CHECKPOINT_BUFFER "%s", tensor->name);
		r = find(l, name, tensor, tensor->dtype, &from);
		if (r == 0)
			r = read_bytes(l, &from, 0, l->t->buffers + tensor->offset, tensor->n_bytes);
	}
	return r;
}

/* The slot of the step, as if this rank had handed it over. */
static int load_slot(struct loading *l)
{
	struct weightd_train *t = l->t;
	struct control_saved *saved = arena_saved(&t->arena, t->arena.rank, l->description.step);
	struct weightd_tensor from = {.size = sizeof(from)};
	int r = weightd_safetensors_find(l->file, CHECKPOINT_STATE, &from);

	if (r < 0)
		return file_failed(l, r == -ENOENT ? -EBADMSG : r);
	if (from.n_bytes > t->plan->state_size)
		return train_fail(-EPROTOTYPE,
				  "the state of a rank in the checkpoint has %" PRIu64
				  " bytes, and the plan has room for %u; raise state_size of the plan",
				  from.n_bytes, t->plan->state_size);
	memset(saved, 0, t->arena.layout.saved_stride);
	saved->state_size = from.n_bytes;
	r = read_bytes(l, &from, 0, saved + 1, from.n_bytes);
	__atomic_store_n(&saved->step, l->description.step, __ATOMIC_RELEASE);
	return r;
}

static int load_rank(struct loading *l)
{
	struct weightd_train *t = l->t;
	uint32_t n = l->description.n_ranks, rank = n == t->plan->n_ranks ? t->arena.rank : 0;
	char name[CHECKPOINT_NAME_MAX];
	int r;

	checkpoint_file_name(CHECKPOINT_RANK, rank + 1, n, name);
	r = open_file(l, name);
	if (r == 0)
		r = load_buffers(l);
	if (r == 0 && t->buffers)
		memcpy(t->arena.buffers + (l->description.step % 2) * t->arena.buffer_stride,
		       t->buffers, t->plan->buffer_size);
	return r < 0 ? r : load_slot(l);
}

/* --- Calls ----------------------------------------------------------------------------------------- */

static int loading_init(struct loading *l, struct weightd_train *t, const char *path)
{
	char newest[CHECKPOINT_NAME_MAX] = "";
	int r = 0;

	l->t = t;
	if (weightd_new(&l->w) < 0)
		return train_out_of_memory();
	if (!folder_is_checkpoint(AT_FDCWD, path))
		r = folder_newest(path, newest);
	if (r == 0 && (size_t)snprintf(l->folder, sizeof(l->folder), "%s%s%s", path,
				       *newest ? "/" : "", newest) >= sizeof(l->folder))
		r = train_fail(-ENAMETOOLONG, "the path of the checkpoint is too long");
	return r < 0 ? r : description_read(l->folder, &l->description);
}

static int load_all(struct loading *l)
{
	struct checkpoint_state first;
	int r = description_read_index(l->folder, CHECKPOINT_MODEL, &l->model);

	if (r == 0 && checkpoint_state(l->t->plan, 0, &first))
		r = description_read_index(l->folder, CHECKPOINT_OPTIMIZER, &l->optimizer);
	if (r == 0)
		r = check_plan(l);
	if (r == 0)
		r = for_each_part(l, load_values);
	if (r == 0)
		r = for_each_part(l, load_states);
	if (r == 0)
		r = load_frozen(l);
	return r < 0 ? r : load_rank(l);
}

/* The process before this one loaded this checkpoint, and the others have begun with it. */
static bool is_loaded(const struct loading *l)
{
	const struct weightd_train *t = l->t;
	uint64_t step = l->description.step;

	return step && t->step == 0 && trainer_word(&trainer_words(t)->grad) == step &&
	       trainer_word(&arena_head(&t->arena)->filled) == control_loaded(step);
}

static int check_load(const struct weightd_train *t)
{
	uint64_t step = trainer_word(&trainer_words(t)->grad);

	if (t->step || (step && t->is_begun) || t->handover.step)
		return train_fail(-EALREADY,
				  "job '%s' has begun step %" PRIu64
				  ", and a checkpoint is loaded before the first one",
				  weightd_job_name(t->arena.job), step ? step : 1);
	if (t->write.is_open)
		return train_fail(-EINVAL, "call weightd_train_write_end() before a load");
	return 0;
}

static struct control_scale scale_of(const struct loading *l)
{
	const struct weightd_train *t = l->t;

	if (!t->plan->has_scaling || l->description.has_scale)
		return l->description.scale;
	return scale_at(&t->arena, 0);
}

int weightd_train_load(struct weightd_train *t, const char *path)
{
	cleanup(loading_deinit) struct loading l = {0};
	int r = trainer_check(t);

	if (r == 0)
		r = loading_init(&l, t, path);
	if (r < 0)
		return r;
	if (is_loaded(&l))
		return loaded_adopt(t, l.description.step);
	r = check_load(t);
	if (r == 0)
		r = load_all(&l);
	if (r < 0)
		return r;
	t->loaded = (struct trainer_loaded){.is_there = true,
					    .step = l.description.step,
					    .n_skipped = l.description.n_skipped,
					    .scale = scale_of(&l)};
	if (!t->is_begun)
		return 0;
	r = loaded_settle(t);
	if (r == 0)
		r = loaded_adopt(t, l.description.step);
	if (r == 0)
		overlap_begin(t, t->step + 1);
	return r;
}
