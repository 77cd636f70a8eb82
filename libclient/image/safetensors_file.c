/*
 * Safetensors files that a caller reads piece by piece
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/connection/client.h"
#include "libclient/image/safetensors.h"

struct weightd_safetensors {
	struct weightd *w; /* has the sentences */
	struct file file;
	struct safetensors contents;
	uint32_t *by_name; /* indexes of tensors, sorted */
};

CLEANUP_POINTER(struct weightd_safetensors, weightd_safetensors_close);

void weightd_safetensors_close(struct weightd_safetensors *f)
{
	if (!f)
		return;
	safetensors_deinit(&f->contents);
	file_deinit(&f->file);
	free(f->by_name);
	free(f);
}

static int compare_names(const void *a, const void *b, void *file)
{
	const struct weightd_safetensors *f = file;
	const uint32_t *i = a, *j = b;

	return strcmp(f->contents.tensors[*i].name, f->contents.tensors[*j].name);
}

static int sort_names(struct weightd_safetensors *f)
{
	f->by_name = calloc(f->contents.n_tensors + 1, sizeof(*f->by_name));
	if (!f->by_name)
		return sentence_set(client_sentence(f->w), -ENOMEM, "there is not enough memory");
	for (uint32_t i = 0; i < f->contents.n_tensors; i++)
		f->by_name[i] = i;
	qsort_r(f->by_name, f->contents.n_tensors, sizeof(*f->by_name), compare_names, f);
	return 0;
}

int weightd_safetensors_open(struct weightd *w, const char *path, struct weightd_safetensors **ret)
{
	cleanup(weightd_safetensors_closep) struct weightd_safetensors *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return sentence_set(client_sentence(w), -ENOMEM, "there is not enough memory");
	f->w = w;
	f->file = (struct file)FILE_INIT;
	r = file_open(path, &f->file, client_sentence(w));
	if (r == 0 && f->file.is_directory)
		r = sentence_set(client_sentence(w), -EISDIR, "%s is a directory",
				 file_quote(&(struct quote){0}, path));
	if (r == 0)
		r = safetensors_read(&f->file, &f->contents, NULL, client_sentence(w));
	if (r == 0)
		r = sort_names(f);
	if (r < 0)
		return r;
	*ret = take_ptr(f);
	return 0;
}

static int not_found(const struct weightd_safetensors *f, const char *name)
{
	return sentence_set(client_sentence(f->w), -ENOENT, "%s has no tensor %s",
			    file_quote(&(struct quote){0}, f->file.path),
			    quote_bytes(&(struct quote){0}, name, strlen(name)));
}

static const struct safetensors_tensor *find(const struct weightd_safetensors *f, const char *name)
{
	size_t low = 0, high = f->contents.n_tensors;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct safetensors_tensor *t = &f->contents.tensors[f->by_name[middle]];
		int order = strcmp(name, t->name);

		if (order == 0)
			return t;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

int weightd_safetensors_find(const struct weightd_safetensors *f, const char *name,
			     struct weightd_tensor *ret)
{
	const struct safetensors_tensor *t = find(f, name);
	struct weightd_tensor tensor;
	size_t size = ret->size < sizeof(tensor) ? ret->size : sizeof(tensor);

	if (size < offsetof(struct weightd_tensor, data))
		return sentence_set(client_sentence(f->w), -EINVAL,
				    "the size of struct weightd_tensor is not set");
	if (!t)
		return not_found(f, name);
	tensor = (struct weightd_tensor){
		.size = size,
		.name = t->name,
		.unit = t->unit ? t->unit : "",
		.shape = safetensors_shape(&f->contents, t),
		.offset = f->contents.data_offset + t->begin,
		.n_bytes = t->end - t->begin,
		.index = (uint32_t)(t - f->contents.tensors),
		.tied_to = WEIGHTD_NOT_TIED,
		.n_dims = t->n_dims,
		.dtype = t->dtype,
		.role = t->role,
	};
	memcpy(ret, &tensor, size);
	return 0;
}

int weightd_safetensors_read(struct weightd_safetensors *f, uint64_t offset, void *ret,
			     uint64_t size)
{
	return file_read(&f->file, ret, size, offset, client_sentence(f->w));
}
