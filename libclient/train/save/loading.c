#include "libclient/train/save/loading.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/quote.h"
#include "ipc/dtype.h"
#include "libclient/train/plan/names.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

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

static int find_folder(struct loading *l, const char *path)
{
	char newest[CHECKPOINT_NAME_MAX] = "";
	int r = 0;

	if (weightd_new(&l->w) < 0)
		return train_out_of_memory();
	if (!folder_is_checkpoint(AT_FDCWD, path))
		r = folder_newest(path, newest);
	if (r == 0 && (size_t)snprintf(l->folder, sizeof(l->folder), "%s%s%s", path,
				       *newest ? "/" : "", newest) >= sizeof(l->folder))
		r = train_fail(-ENAMETOOLONG, "the path of the checkpoint is too long");
	return r;
}

int loading_open(struct loading *l, struct weightd_train *t, const char *path)
{
	struct checkpoint_state first;
	int r = find_folder(l, path);

	l->t = t;
	if (r == 0)
		r = description_read(l->folder, &l->description);
	if (r == 0)
		r = description_read_index(l->folder, CHECKPOINT_MODEL, &l->model);
	if (r == 0 && checkpoint_state(t->plan, 0, &first))
		r = description_read_index(l->folder, CHECKPOINT_OPTIMIZER, &l->optimizer);
	return r < 0 ? r : check_plan(l);
}

void loading_deinit(struct loading *l)
{
	weightd_safetensors_close(l->file);
	json_decref(l->model);
	json_decref(l->optimizer);
	weightd_close(l->w);
}

/* --- Tensors --------------------------------------------------------------------------------------- */

int loading_read_state(struct loading *l, const struct weightd_train_tensor *tensor,
		       const struct checkpoint_state *state, struct plan_interval part, void *to)
{
	uint64_t size = plan_element_size(l->t->plan, state->kind);
	bool is_param = state->kind == WEIGHTD_KIND_PARAM;
	char name[WEIGHTD_TENSOR_NAME_MAX + 64];
	struct weightd_tensor from;
	const char *file;
	int r;

	(void)snprintf(name, sizeof(name), "%s%s", tensor->name, state->suffix);
	file = json_string_value(json_object_get(is_param ? l->model : l->optimizer, name));
	if (!file)
		return missing(name);
	r = open_file(l, file);
	if (r == 0)
		r = find(l, name, tensor, is_param ? tensor->dtype : WEIGHTD_F32, &from);
	return r < 0 ? r
		     : read_bytes(l, &from, part.begin * size, to, (part.end - part.begin) * size);
}

int loading_read_frozen(struct loading *l, const struct weightd_train_tensor *tensor, void *to)
{
	struct weightd_tensor from;
	int r = open_file(l, json_string_value(json_object_get(l->model, tensor->name)));

	if (r == 0)
		r = find(l, tensor->name, tensor, tensor->dtype, &from);
	return r < 0 ? r : read_bytes(l, &from, 0, to, tensor->n_bytes);
}

/* --- Ranks ----------------------------------------------------------------------------------------- */

static int read_buffers(struct loading *l, uint8_t *to)
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
			r = read_bytes(l, &from, 0, to + tensor->offset, tensor->n_bytes);
	}
	return r;
}

static int read_state(struct loading *l, void *to, uint64_t *ret_size)
{
	struct weightd_tensor from = {.size = sizeof(from)};
	int r = weightd_safetensors_find(l->file, CHECKPOINT_STATE, &from);

	if (r < 0)
		return file_failed(l, r == -ENOENT ? -EBADMSG : r);
	if (from.n_bytes > l->t->plan->state_size)
		return train_fail(-EPROTOTYPE,
				  "the state of a rank in the checkpoint has %" PRIu64
				  " bytes, and the plan has room for %u; raise state_size of the plan",
				  from.n_bytes, l->t->plan->state_size);
	r = read_bytes(l, &from, 0, to, from.n_bytes);
	if (r == 0)
		*ret_size = from.n_bytes;
	return r;
}

int loading_read_rank(struct loading *l, uint32_t mesh_rank, uint8_t *buffers, void *state,
		      uint64_t *ret_state_size)
{
	uint32_t n = l->description.n_ranks;
	bool is_same = n == weightd_mesh_n_ranks(l->t->plan->mesh);
	char name[CHECKPOINT_NAME_MAX];
	int r;

	checkpoint_file_name(CHECKPOINT_RANK, is_same ? mesh_rank + 1 : 1, n, name);
	r = open_file(l, name);
	if (r == 0)
		r = read_buffers(l, buffers);
	return r < 0 ? r : read_state(l, state, ret_state_size);
}
