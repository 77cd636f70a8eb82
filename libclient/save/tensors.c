/*
 * Files with tensors of the caller, which are in no version
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/connection/client.h"
#include "libclient/image/file.h"
#include "libclient/image/header.h"
#include "libclient/save/output.h"
#include "libclient/save/shards.h"

#define CONTENTS_MIN offsetof(struct weightd_safetensors_contents, progress)

struct writing {
	struct weightd_safetensors_contents contents;
	const char *name;
	void *image; /* of the layout */
	struct layout layout;
	struct shards shards; /* one */
	void *header;
	uint64_t header_size;
	struct save_run run;
};

static void writing_deinit(struct writing *v)
{
	free(v->image);
	free(v->header);
	shards_deinit(&v->shards);
	(void)fd_close(v->run.folder_fd);
}

static int refuse(struct writing *v, int r, const char *why)
{
	return sentence_set(v->run.s, r, "cannot save to %s: %s: %s",
			    file_quote(&(struct quote){0}, v->run.folder), v->name, why);
}

static int take_layout(struct writing *v)
{
	uint64_t size;
	int r = weightd_layout_image(v->contents.layout, &v->image, &size);

	if (r == -EINVAL)
		return refuse(v, r, "a file has one tensor at least");
	if (r == 0)
		r = layout_open(v->image, size, &v->layout);
	return r < 0 ? refuse(v, r, strerror(-r)) : 0;
}

static int build_header(struct writing *v)
{
	struct image_part part = {.layout = &v->layout};
	int r = shards_init(&v->shards, &v->layout, UINT64_MAX, false);

	if (r == 0 && v->shards.n_tensors < v->layout.header->n_tensors)
		return refuse(v, -EINVAL, "a tensor of the layout is tied to another one");
	part.tensors = v->shards.order;
	part.n_tensors = v->shards.n_tensors;
	if (r == 0)
		r = image_header_build_part(&part, NULL, 0, &v->header, &v->header_size);
	if (r == -EOPNOTSUPP)
		return refuse(v, r,
			      "it has a type, name or dimension that safetensors files cannot have");
	return r < 0 ? refuse(v, r, strerror(-r)) : 0;
}

static int write_tensors(struct writing *v, struct output *o)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < v->shards.n_tensors; i++) {
		uint32_t index = v->shards.order[i];

		r = output_write_weights(o, v->contents.data[index],
					 v->layout.tensors[index].n_bytes);
	}
	return r;
}

static int write_file(struct writing *v)
{
	cleanup(output_deinit) struct output o = OUTPUT_INIT;
	int r;

	v->run.total = v->shards.list[0].n_bytes;
	v->run.needed = v->header_size + v->run.total;
	r = output_open(&o, &v->run, v->name, v->run.needed);
	if (r == 0)
		r = output_write(&o, v->header, v->header_size);
	if (r == 0)
		r = write_tensors(v, &o);
	return r < 0 ? r : output_finish(&o);
}

int weightd_safetensors_write(struct weightd *w, const char *directory, const char *name,
			      const struct weightd_safetensors_contents *contents)
{
	cleanup(writing_deinit) struct writing v = {
		.name = name,
		.run = {.folder = directory, .folder_fd = -1, .s = client_sentence(w)},
	};
	int r = client_copy_options(w, contents, CONTENTS_MIN, &v.contents, sizeof(v.contents));

	if (r < 0)
		return r;
	v.run.progress = (struct progress){.fn = v.contents.progress,
					   .userdata = v.contents.userdata};
	v.run.folder_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (v.run.folder_fd < 0)
		return refuse(&v, -errno, strerror(errno));
	r = take_layout(&v);
	if (r == 0)
		r = build_header(&v);
	return r < 0 ? r : write_file(&v);
}
