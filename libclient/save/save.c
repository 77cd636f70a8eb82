/*
 * A version is written to a folder that nothing sees before all of it is on the disk. An image that one file can hold is
 * copied byte for byte; all else is written densely behind new headers.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/buffer.h"
#include "libclient/image/files.h"
#include "libclient/image/header.h"
#include "libclient/save/contents.h"
#include "libclient/save/folder.h"
#include "libclient/save/output.h"
#include "libclient/save/shards.h"

#define SHARD_SIZE_DEFAULT 5000000000u /* as transformers has it */
#define CHUNK (16 * MIB) /* copied from a GPU at once */
#define GGUF_MAGIC "GGUF"
#define GGUF_WEIGHTS "model.gguf"

struct saving {
	struct weightd_buffer *b;
	struct weightd_files *files; /* NULL: none */
	const char *weights; /* path of the weights */
	struct shards shards;
	struct save_folder folder;
	struct save_run run;
	void *chunk; /* CHUNK bytes, for memory of a GPU */
	uint64_t n_files;
};

static void saving_deinit(struct saving *v)
{
	weightd_files_free(v->files);
	shards_deinit(&v->shards);
	save_folder_deinit(&v->folder);
	free(v->chunk);
}

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the save");
}

/* --- Bytes ------------------------------------------------------------------------------------ */

static int write_from_gpu(struct saving *v, struct output *o, uint64_t offset, uint64_t n)
{
	int r = 0;

	if (!v->chunk)
		v->chunk = malloc(CHUNK);
	if (!v->chunk)
		return out_of_memory(v->run.s);
	for (uint64_t part; r == 0 && n > 0; offset += part, n -= part) {
		part = n < CHUNK ? n : CHUNK;
		r = weightd_buffer_read(v->b, offset, v->chunk, part);
		if (r == 0)
			r = output_write_weights(o, v->chunk, part);
	}
	return r;
}

static int write_range(struct saving *v, struct output *o, uint64_t offset, uint64_t n)
{
	if (v->b->memory.location.memory != WIRE_MEMORY_HOST)
		return write_from_gpu(v, o, offset, n);
	return output_write_weights(o, (const char *)v->b->memory.data + offset, n);
}

/* Tensors that lie beside each other are one range. */
static int write_shard_data(struct saving *v, struct output *o, const struct shard *shard)
{
	const struct layout_tensor *tensors = v->b->layout.tensors;
	uint64_t start = 0, end = 0;
	int r = 0;

	for (uint32_t i = shard->first; r == 0 && i < shard->first + shard->n; i++) {
		const struct layout_tensor *t = &tensors[v->shards.order[i]];

		if (t->n_bytes == 0)
			continue;
		if (t->offset != end) {
			r = write_range(v, o, start, end - start);
			start = t->offset;
		}
		end = t->offset + t->n_bytes;
	}
	return r < 0 ? r : write_range(v, o, start, end - start);
}

/* --- Weights ---------------------------------------------------------------------------------- */

static int write_weights(struct saving *v, const char *path, const void *header,
			 uint64_t header_size, const struct shard *shard)
{
	cleanup(output_deinit) struct output o = OUTPUT_INIT;
	uint64_t n_bytes = shard ? shard->n_bytes : v->b->data_size;
	int r = output_open(&o, &v->run, path, header_size + n_bytes);

	if (r == 0)
		r = output_write(&o, header, header_size);
	if (r == 0)
		r = shard ? write_shard_data(v, &o, shard) : write_range(v, &o, 0, n_bytes);
	return r < 0 ? r : output_finish(&o);
}

static int header_failed(struct saving *v, int r)
{
	const struct weightd_buffer *b = v->b;

	if (r == -EOPNOTSUPP)
		return sentence_set(v->run.s, r,
				    "'%s@%" PRIu64
				    "' on %s cannot be saved: it has a type, name or dimension that "
				    "safetensors files cannot have; a version of the host that was "
				    "loaded from a GGUF file can be saved as that file",
				    b->name, b->version, b->device);
	if (r == -E2BIG)
		return sentence_set(v->run.s, r,
				    "'%s@%" PRIu64
				    "' on %s cannot be saved in one file: the header would have more "
				    "than %u bytes; save it in more files, with a smaller shard size",
				    b->name, b->version, b->device, IMAGE_HEADER_TEXT_MAX);
	return out_of_memory(v->run.s);
}

static int build_header(struct saving *v, uint32_t i, void **ret, uint64_t *ret_size)
{
	const struct shard *shard = &v->shards.list[i];
	const struct image_part part = {
		.layout = &v->b->layout,
		.tensors = v->shards.order + shard->first,
		.n_tensors = shard->n,
		.has_ties = i == 0,
	};

	return image_header_build_part(&part, NULL, 0, ret, ret_size);
}

static int write_one_shard(struct saving *v, uint32_t i)
{
	cleanup(freep) char *path = shards_path(&v->shards, v->weights, i);
	cleanup(freep) void *header = NULL;
	uint64_t size;
	int r;

	if (!path)
		return out_of_memory(v->run.s);
	r = build_header(v, i, &header, &size);
	if (r < 0)
		return header_failed(v, r);
	return write_weights(v, path, header, size, &v->shards.list[i]);
}

static int write_index(struct saving *v)
{
	cleanup(freep) char *path = shards_index_path(v->weights);
	cleanup(freep) char *text = shards_index(&v->shards, &v->b->layout, v->weights);

	if (!path || !text)
		return out_of_memory(v->run.s);
	return output_file(&v->run, path, text, strlen(text));
}

static int write_shards(struct saving *v)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < v->shards.n; i++)
		r = write_one_shard(v, i);
	if (r == 0 && v->shards.n > 1)
		r = write_index(v);
	v->n_files = v->shards.n;
	return r;
}

static bool is_gguf(const void *header, uint64_t size)
{
	return size >= strlen(GGUF_MAGIC) && !memcmp(header, GGUF_MAGIC, strlen(GGUF_MAGIC));
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && !strcmp(text + n - m, end);
}

/* The image itself, if it is a GGUF file, which cannot be divided, or has one shard. */
static int write_image(struct saving *v)
{
	uint64_t size = v->b->memory.offset;
	cleanup(freep) void *header = malloc(size);
	cleanup(freep) char *path = NULL;
	int r;

	if (!header)
		return out_of_memory(v->run.s);
	r = buffer_read_header(v->b, header);
	if (r < 0)
		return r;
	v->n_files = 1;
	if (is_gguf(header, size))
		return write_weights(v, ends_with(v->weights, ".gguf") ? v->weights : GGUF_WEIGHTS,
				     header, size, NULL);
	if (v->shards.n > 1)
		return write_shards(v);
	path = shards_path(&v->shards, v->weights, 0);
	if (!path)
		return out_of_memory(v->run.s);
	return write_weights(v, path, header, size, NULL);
}

/* --- Files ------------------------------------------------------------------------------------ */

static int get_files(struct saving *v)
{
	const struct weightd_buffer *b = v->b;
	int r = weightd_files_get(b->w, b->name, b->device, b->version, &v->files);

	/* An older server has none. */
	return r == -ENODATA || r == -EOPNOTSUPP ? 0 : r;
}

static int write_files(struct saving *v)
{
	struct weightd_file f = {.size = sizeof(f)};
	int r = 0;

	for (size_t i = 0; r == 0 && v->files && weightd_files_file(v->files, i, &f) == 0; i++) {
		r = output_file(&v->run, f.path, f.data, f.n_bytes);
		v->n_files++;
	}
	return r;
}

/* --- Saves ------------------------------------------------------------------------------------ */

static int write_all(struct saving *v)
{
	int r = progress_report(&v->run.progress, "write", 0, v->run.total);

	if (r < 0)
		return sentence_set(v->run.s, r, "the save was cancelled");
	r = v->b->memory.offset ? write_image(v) : write_shards(v);
	return r < 0 ? r : write_files(v);
}

/* A mutable version is whole if no update began since. */
static int write_whole(struct saving *v)
{
	struct weightd_buffer *b = v->b;
	uint64_t ticket;
	int r;

	if (!b->is_mutable)
		return write_all(v);
	r = weightd_read_begin(b, &ticket);
	if (r < 0)
		return sentence_set(v->run.s, r, "'%s' on %s %s", b->name, b->device,
				    r == -ESTALE    ? "was removed"
				    : r == -EUCLEAN ? "is torn: update it again"
						    : "is being updated in place: save it later");
	r = write_all(v);
	if (r == 0 && weightd_read_retry(b, ticket))
		return sentence_set(v->run.s, -EAGAIN,
				    "'%s' on %s was updated in place during the save: save it again",
				    b->name, b->device);
	return r;
}

static int save_to(struct saving *v, const char *directory, bool replace)
{
	struct sentence *s = v->run.s;
	int r = save_folder_open(&v->folder, directory, replace, s);

	if (r < 0)
		return r;
	v->run.folder_fd = v->folder.fd;
	v->run.folder = v->folder.path;
	r = write_whole(v);
	if (r < 0)
		return r;
	if (progress_report(&v->run.progress, "commit", 0, 1) < 0)
		return sentence_set(s, -ECANCELED, "the save was cancelled");
	r = contents_sync(v->folder.fd);
	if (r < 0)
		return sentence_set(s, r, "cannot save to '%s': %s", v->folder.path, strerror(-r));
	return save_folder_commit(&v->folder, s);
}

static uint64_t sum_of(const struct shards *shards)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < shards->n; i++)
		n += shards->list[i].n_bytes;
	return n;
}

/* With headers and index. Headers that cannot be built are those of a GGUF file, which stays one. */
static uint64_t size_of_weights(struct saving *v)
{
	uint64_t image = v->b->memory.offset + v->b->data_size, n = sum_of(&v->shards), size;
	cleanup(freep) char *index = NULL;

	if (v->b->memory.offset && v->shards.n == 1)
		return image;
	for (uint32_t i = 0; i < v->shards.n; i++) {
		cleanup(freep) void *header = NULL;

		if (build_header(v, i, &header, &size) < 0)
			return image;
		n += size;
	}
	if (v->shards.n > 1)
		index = shards_index(&v->shards, &v->b->layout, v->weights);
	return n + (index ? strlen(index) : 0);
}

static uint64_t size_of_files(const struct weightd_files *files)
{
	struct weightd_file f = {.size = sizeof(f)};
	uint64_t n = 0;

	for (size_t i = 0; files && weightd_files_file(files, i, &f) == 0; i++)
		n += f.n_bytes;
	return n;
}

static int save_prepare(struct saving *v, const struct weightd_save_options *o)
{
	uint64_t shard_size = o->shard_size ? o->shard_size : SHARD_SIZE_DEFAULT;
	struct weightd_buffer *b = v->b;
	struct sentence *s = v->run.s;
	int r = client_check_owner(b->w);

	if (r == 0)
		r = memory_check(&b->memory, s);
	if (r == -ECHILD)
		return r;
	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be saved: %s", b->name,
				    b->version, b->device, s->text);
	r = o->no_files ? 0 : get_files(v);
	if (r < 0)
		return r;
	v->weights = v->files ? files_weights(v->files) : FILES_WEIGHTS_DEFAULT;
	r = shards_init(&v->shards, &b->layout, shard_size, b->memory.offset != 0);
	if (r < 0)
		return out_of_memory(s);
	v->run.total = sum_of(&v->shards);
	v->run.needed = size_of_weights(v) + size_of_files(v->files);
	return 0;
}

int weightd_save(struct weightd_buffer *b, const char *directory,
		 const struct weightd_save_options *options, struct weightd_save_result *ret)
{
	struct weightd_save_options o = {0};
	cleanup(saving_deinit) struct saving v = {
		.b = b,
		.folder = SAVE_FOLDER_INIT,
		.run = {.s = client_sentence(b->w)},
	};
	uint64_t start = num_now_ns();
	int r;

	if (options) {
		r = client_copy_options(b->w, options,
					offsetof(struct weightd_save_options, replace), &o,
					sizeof(o));
		if (r < 0)
			return r;
	}
	v.run.progress = (struct progress){.fn = o.progress, .userdata = o.userdata};
	r = save_prepare(&v, &o);
	if (r == 0)
		r = save_to(&v, directory, o.replace);
	if (r < 0)
		return r;
	if (ret) {
		struct weightd_save_result result = {
			.size = ret->size,
			.n_bytes = v.run.total,
			.n_tensors = v.b->layout.header->n_tensors,
			.n_files = v.n_files,
			.elapsed_ns = num_now_ns() - start,
		};

		memcpy(ret, &result, ret->size < sizeof(result) ? ret->size : sizeof(result));
	}
	return 0;
}
