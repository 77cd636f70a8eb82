/*
 * A copy is a load whose source is a version: the same layout, and bytes with the same digest, on another device or under
 * another name. A GPU copies from memory that it reaches; all other bytes pass through this process, as those of files do.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "libclient/buffer.h"
#include "libclient/connection/connection.h"
#include "libclient/cuda/cuda.h"
#include "libclient/load/progress.h"
#include "libclient/load/sink.h"
#include "libclient/target.h"
#include "libclient/writer.h"

#define STEP (64 * MIB) /* bytes between reports of progress, copied by a GPU */

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);
CLEANUP_POINTER(struct weightd_list, weightd_list_free);
CLEANUP_POINTER(struct weightd_files, weightd_files_free);
CLEANUP_POINTER(struct weightd_writer, weightd_writer_free);

struct copying {
	struct weightd_buffer *b;
	struct weightd *w; /* a connection of its own, as a load has */
	const char *name;
	char device[WIRE_DEVICE_SIZE];
	struct weightd_create_options create;
	bool with_files;
	bool is_new; /* the buffer */
	uint32_t gid; /* of the source */
	struct weightd_writer *wr;
	struct progress progress;
	struct sentence *s;
};

static void copying_deinit(struct copying *c)
{
	weightd_writer_free(c->wr);
	client_unref(c->w);
}

static int copy_report(struct copying *c, const char *phase, uint64_t done)
{
	int r = progress_report(&c->progress, phase, done, c->b->data_size);

	return r < 0 ? sentence_set(c->s, r, "the copy was cancelled") : 0;
}

static int copy_tick(void *userdata)
{
	struct copying *c = userdata;

	return progress_report(&c->progress, "memory", 0, c->b->data_size);
}

/* --- The new version ---------------------------------------------------------------------------- */

/* A new buffer has the mode of the source, unless the caller sets another one. */
static int find_access(struct copying *c)
{
	cleanup(weightd_list_freep) struct weightd_list *source = NULL, *there = NULL;
	const struct weightd_buffer_info *info;
	int r = weightd_list(c->w, c->b->name, &source);

	if (r == 0)
		r = weightd_list(c->w, c->name, &there);
	if (r < 0)
		return r;
	c->is_new = true;
	for (size_t i = 0; (info = weightd_list_buffer(there, i)); i++)
		if (!strcmp(info->device, c->device))
			c->is_new = false;
	c->gid = UINT32_MAX;
	for (size_t i = 0; (info = weightd_list_buffer(source, i)); i++) {
		if (strcmp(info->device, c->b->device) != 0)
			continue;
		c->gid = info->gid;
		if (!c->create.mode)
			c->create.mode = info->mode;
	}
	return 0;
}

/* A mode admits another group than that of the source only if the source admits everybody. */
static int keep_group(struct copying *c)
{
	const uint32_t all = c->create.mode & 07;
	int r;

	if (!c->is_new || c->gid == UINT32_MAX || c->gid == getegid())
		return 0;
	r = weightd_set_access(c->w, c->name, c->device, -1, -1, c->gid);
	if (r != -EPERM)
		return r;
	return weightd_set_access(c->w, c->name, c->device,
				  (c->create.mode & 0700) | all << 3 | all, -1, -1);
}

/* The bytes in front of the data of a file travel to host memory, where the version is that file again. */
static int copy_header(struct copying *c, void **ret)
{
	const uint64_t size = c->b->memory.offset;
	int r;

	if (!size || strcmp(c->device, "host") != 0)
		return 0;
	*ret = malloc(size);
	if (!*ret)
		return sentence_set(c->s, -ENOMEM, "out of memory");
	r = buffer_read_header(c->b, *ret);
	if (r < 0)
		return sentence_set(c->s, r, "%s", client_sentence(c->b->w)->text);
	c->create.header = *ret;
	c->create.header_size = size;
	return 0;
}

static int create_version(struct copying *c)
{
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	cleanup(freep) void *header = NULL;
	const struct writer_hooks hooks = {.tick = copy_tick, .userdata = c};
	int r = weightd_layout_parse(c->b->image, c->b->image_size, &layout);

	if (r < 0)
		return sentence_set(c->s, r, "the layout of '%s' cannot be copied: %s", c->b->name,
				    strerror(-r));
	c->create.device = c->device;
	c->create.new_layout = true;
	r = copy_header(c, &header);
	if (r == 0)
		r = copy_report(c, "memory", 0);
	if (r == 0)
		r = writer_create(c->w, c->name, layout, &c->create, &hooks, &c->wr);
	if (r == -ECANCELED)
		return sentence_set(c->s, r, "the copy was cancelled");
	return r < 0 ? r : keep_group(c);
}

/* The attributes alone. */
static int leave_files_out(struct weightd_files **files)
{
	cleanup(weightd_files_freep) struct weightd_files *some = NULL;
	const char *key, *value;
	int r = weightd_files_new(&some);

	for (size_t i = 0; r == 0 && weightd_files_attribute(*files, i, &key, &value) == 0; i++)
		r = weightd_files_set_attribute(some, key, value);
	if (r < 0)
		return r;
	weightd_files_free(*files);
	*files = take_ptr(some);
	return 0;
}

/* Those of an earlier version of the copy are not of this one. */
static int copy_files(struct copying *c)
{
	cleanup(weightd_files_freep) struct weightd_files *files = NULL;
	int r = weightd_files_get(c->w, c->b->name, c->b->device, c->b->version, &files);

	if (r == -EOPNOTSUPP) /* an older server keeps none */
		return 0;
	if (r == 0 && !c->with_files && leave_files_out(&files) < 0)
		return sentence_set(c->s, -ENOMEM, "out of memory");
	if (r == 0 || r == -ENODATA)
		r = weightd_writer_set_files(c->wr, files);
	return r == -EOPNOTSUPP && !files ? 0 : r;
}

/* --- Its bytes ---------------------------------------------------------------------------------- */

/* The GPU that is to have them copies them. */
static int copy_on_gpu(struct copying *c)
{
	const uint64_t size = c->b->data_size;
	int r = 0;

	for (uint64_t at = 0; r == 0 && at < size; at += STEP) {
		r = copy_report(c, "copy", at);
		if (r == 0)
			r = cuda_copy(&c->wr->memory, &c->b->memory, at,
				      size - at < STEP ? size - at : STEP, c->s);
	}
	return r;
}

static int copy_stretch(struct copying *c, struct sink *sink, uint64_t first, uint64_t end)
{
	const uint64_t begin = first * DIGEST_LEAF_SIZE, left = c->b->data_size - begin;
	const uint64_t all = (end - first) * DIGEST_LEAF_SIZE, size = left < all ? left : all;
	char *at;
	int r = sink->kind->begin(sink, 0, first, &at, c->s);

	if (r == 0)
		r = memory_read(&c->b->memory, begin, at, size, c->s);
	if (r < 0)
		return r;
	for (uint64_t leaf = first; leaf < end; leaf++)
		weightd_writer_digest_bytes(c->wr, leaf, at + (leaf - first) * DIGEST_LEAF_SIZE);
	return sink->kind->end(sink, 0, first, size, c->s);
}

static int copy_through(struct copying *c)
{
	const uint64_t n_leaves = c->wr->n_leaves;
	const struct copies none = {0};
	struct sink sink = {
		.kind = sink_kind_of(c->wr),
		.wr = c->wr,
		.copies = &none,
		.progress = &c->progress,
		.phase = "copy",
	};
	unsigned n_threads = 1;
	int r = sink_open(&sink, &n_threads, c->s);

	for (uint64_t leaf = 0; r == 0 && leaf < n_leaves; leaf += sink.kind->n_leaves) {
		uint64_t end = leaf + sink.kind->n_leaves;

		r = copy_report(c, "copy", leaf * DIGEST_LEAF_SIZE);
		if (r == 0)
			r = copy_stretch(c, &sink, leaf, end < n_leaves ? end : n_leaves);
	}
	if (r == 0)
		r = sink.kind->finish(&sink, c->s);
	sink_close(&sink);
	return r;
}

static bool is_reached(const struct copying *c)
{
	const struct cuda_state *to = c->wr->memory.state;

	return c->wr->memory.device >= 0 && c->b->memory.device >= 0 &&
	       cuda_open_to(&c->b->memory, &to->place);
}

static int check_digest(struct copying *c)
{
	const struct weightd_buffer *b = c->b;
	int r = writer_digest_all(c->wr, c->s);

	if (r < 0)
		return sentence_set(c->s, r, "the bytes cannot be digested: %.300s", c->s->text);
	/* Nothing else writes them. */
	for (uint64_t i = 0; i < c->wr->n_leaves; i++)
		c->wr->leaf_done[i] = true;
	if (!b->has_digest || !memcmp(writer_digest(c->wr), b->digest, HASH_SIZE))
		return 0;
	if (b->is_mutable)
		return sentence_set(c->s, -EAGAIN,
				    "'%s' on %s was updated in place since it was attached: copy it "
				    "again",
				    b->name, b->device);
	return sentence_set(c->s, -EILSEQ,
			    "the bytes of '%s@%" PRIu64
			    "' on %s differ from its digest, and were not "
			    "copied; weightctl verify names the place",
			    b->name, b->version, b->device);
}

static int copy_bytes(struct copying *c)
{
	int r = memory_check(&c->b->memory, c->s);

	if (r == 0)
		r = is_reached(c) ? copy_on_gpu(c) : copy_through(c);
	if (r == 0)
		r = copy_report(c, "copy", c->b->data_size);
	return r < 0 ? r : check_digest(c);
}

/* A mutable version is whole if no update began since. */
static int copy_whole(struct copying *c)
{
	const struct weightd_buffer *b = c->b;
	uint64_t ticket;
	int r;

	if (!b->is_mutable)
		return copy_bytes(c);
	r = weightd_read_begin(b, &ticket);
	if (r < 0)
		return sentence_set(c->s, r, "'%s' on %s %s", b->name, b->device,
				    r == -ESTALE    ? "was removed"
				    : r == -EUCLEAN ? "is torn: update it again"
						    : "is being updated in place: copy it later");
	r = copy_bytes(c);
	if (r == 0 && weightd_read_retry(b, ticket))
		return sentence_set(c->s, -EAGAIN,
				    "'%s' on %s was updated in place during the copy: copy it again",
				    b->name, b->device);
	return r;
}

/* --- Copies ------------------------------------------------------------------------------------- */

static int copy_prepare(struct copying *c)
{
	char name[WIRE_NAME_SIZE];
	int r = client_put_target(c->w, c->name, c->create.device, name, c->device);

	if (r < 0)
		return r;
	if (!strcmp(c->name, c->b->name) && !strcmp(c->device, c->b->device))
		return sentence_set(c->s, -EINVAL,
				    "'%s' is on %s already: copy it to another device, or with "
				    "another name",
				    c->name, c->device);
	return find_access(c);
}

static int copy_run(struct copying *c, uint64_t *ret_version)
{
	int r = copy_prepare(c);

	if (r == 0)
		r = create_version(c);
	if (r == 0)
		r = copy_files(c);
	if (r == 0)
		r = copy_whole(c);
	if (r == 0)
		r = copy_report(c, "publish", c->b->data_size);
	return r < 0 ? r : weightd_writer_publish(c->wr, ret_version);
}

int weightd_copy(struct weightd_buffer *b, const char *name,
		 const struct weightd_copy_options *options, struct weightd_copy_result *ret)
{
	struct weightd_copy_options o = {0};
	cleanup(copying_deinit) struct copying c = {.b = b, .name = name ? name : b->name};
	struct weightd_copy_result result = {.n_bytes = b->data_size};
	uint64_t start = num_now_ns();
	int r = 0;

	if (options)
		r = client_copy_options(b->w, options,
					offsetof(struct weightd_copy_options, no_files), &o,
					sizeof(o));
	if (r == 0 && o.create)
		r = client_copy_options(b->w, o.create,
					offsetof(struct weightd_create_options, mode), &c.create,
					sizeof(c.create));
	if (r == 0)
		r = connection_twin(b->w, &c.w);
	if (r < 0)
		return r;
	c.s = client_sentence(c.w);
	c.create.size = sizeof(c.create);
	c.with_files = !o.no_files;
	c.progress = (struct progress){.fn = o.progress, .userdata = o.userdata};
	r = copy_run(&c, &result.version);
	if (r < 0) {
		*client_sentence(b->w) = *c.s;
		return r;
	}
	if (ret) {
		result.size = ret->size;
		result.n_tensors = b->layout.header->n_tensors;
		result.elapsed_ns = num_now_ns() - start;
		memcpy(result.digest, writer_digest(c.wr), sizeof(result.digest));
		memcpy(ret, &result, ret->size < sizeof(result) ? ret->size : sizeof(result));
	}
	return 0;
}
