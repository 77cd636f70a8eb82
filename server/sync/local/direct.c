#include "server/sync/local/direct.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/nccl/nccl.h"

#define ENGINE_NAME_MAX 15

/* The engine will open the same library, in the same environment. */
static int check_library(struct task *e, uint64_t wanted, struct fault *f)
{
	char why[NCCL_WHY_SIZE], ours[NCCL_VERSION_SIZE], theirs[NCCL_VERSION_SIZE];
	struct nccl nccl;

	if (nccl_open(&nccl, why) < 0)
		return fault_set(f, -EOPNOTSUPP, "%s", why);
	e->nccl_version = nccl.version;
	if (!wanted || wanted == (uint64_t)nccl.version)
		return 0;
	return fault_set(f, -EOPNOTSUPP,
			 "NCCL is %s here and %s at the publisher, and they do not work together; "
			 "install the same on all nodes, or set engine = tcp at the publisher",
			 nccl_format_version(nccl.version, ours),
			 nccl_format_version((int)wanted, theirs));
}

int direct_read(struct task *e, const struct json_packet *t, const struct target *target,
		struct fault *f)
{
	const char *engine;
	uint64_t version;
	int r;

	if (field_string_or_null(t->message, "engine", ENGINE_NAME_MAX, &engine) < 0 ||
	    field_number_or(t->message, "nccl", INT32_MAX, 0, &version) < 0 ||
	    (engine && strcmp(engine, "nccl") != 0))
		return fault_set_message(f, t, "contains an engine that does not support GPUs");
	if (!engine)
		return 0;
	if (target_is_host(target))
		return fault_set(f, -EOPNOTSUPP,
				 "'%s' is in host memory here, and NCCL carries memory of GPUs only; "
				 "set 'device' of its group here, or engine = tcp at the publisher",
				 target->buffer);
	r = weightd_device_name(e->w, target->device, e->gpu);
	return r < 0 ? fault_set_weightd(f, r, e->w) : check_library(e, version, f);
}

int direct_refuse(const struct task *e, int r, struct fault *f)
{
	return fault_set(
		f, r,
		"%.300s; remove the buffer, to have it made anew (weightctl rm --device %s), or set engine "
		"= tcp at the publisher",
		weightd_error(e->w), e->gpu);
}

static void message_set(json_t *message, const char *key, json_t *value)
{
	/* Without memory the field is missing. */
	(void)json_object_set_new(message, key, value);
}

void direct_describe(const struct task *e, json_t *message)
{
	struct weightd_location at = {.size = sizeof(at)};

	message_set(message, "memory", json_string(e->gpu[0] ? "cuda" : "host"));
	(void)(e->writer ? weightd_writer_location(e->writer, &at)
			 : weightd_buffer_location(e->buffer, &at)); /* its size is set */
	if (at.data_offset)
		message_set(message, "data_offset", json_integer((json_int_t)at.data_offset));
	if (!e->gpu[0])
		return;
	message_set(message, "gpu", json_string(e->gpu));
	message_set(message, "map_size", json_integer((json_int_t)at.map_size));
	message_set(message, "nccl", json_integer(e->nccl_version));
}

bool direct_is_staged(const struct task *e, uint64_t leaf)
{
	return e->staging.data && (!e->is_staged || e->is_staged[leaf]);
}

static int read_leaf(struct task *e, uint64_t leaf, struct fault *f)
{
	uint64_t offset = leaf * MERKLE_LEAF_SIZE, left = e->n_bytes - offset;
	uint64_t size = left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE;
	int r = task_read(e, offset, e->staging.data + offset, size);

	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	e->is_staged[leaf] = true;
	return 0;
}

/*
 * Returns the end of the run, up to `end`, of leaves that are staged, or not staged, as this one.
 */
static uint64_t end_of_run(const struct task *e, uint64_t leaf, uint64_t end)
{
	const bool is_staged = e->is_staged[leaf];

	while (leaf < end && e->is_staged[leaf] == is_staged)
		leaf++;
	return leaf;
}

static int stage_leaves(struct task *e, uint64_t leaf, uint64_t end, struct fault *f)
{
	uint64_t left = e->n_bytes - leaf * MERKLE_LEAF_SIZE, size = (end - leaf) * MERKLE_LEAF_SIZE;
	uint64_t at = leaf * MERKLE_LEAF_SIZE;
	int r = staging_take(&e->staging, at, at + (size < left ? size : left), f);

	for (; r == 0 && leaf < end; leaf++)
		r = read_leaf(e, leaf, f);
	return r;
}

/* Leaves that are staged already have their memory. */
static int stage_range(struct task *e, const struct range *range, struct fault *f)
{
	uint64_t end = merkle_n_leaves(range->offset + range->size), run;
	int r = 0;

	for (uint64_t leaf = range->offset / MERKLE_LEAF_SIZE; r == 0 && leaf < end; leaf = run) {
		run = end_of_run(e, leaf, end);
		if (!e->is_staged[leaf])
			r = stage_leaves(e, leaf, run, f);
	}
	return r;
}

static int open_staging(struct task *e, struct fault *f)
{
	if (e->staging.data)
		return 0;
	e->is_staged = calloc(merkle_n_leaves(e->n_bytes) + 1, sizeof(*e->is_staged));
	return e->is_staged ? staging_open(e->n_bytes, &e->staging, f)
			    : fault_set(f, -ENOMEM, "out of memory");
}

/* The copy of a lent version is read-only. */
static int send_staged(const struct task *e, struct fault *f)
{
	cleanup(fd_closep) int fd = -1;
	int r = e->writer ? 0 : fd_reopen_readonly(e->staging.fd, &fd);

	if (r < 0)
		return fault_set(f, r, "the copy cannot be lent: %s", strerror(-r));
	return task_send(json_pack("{s:s}", "op", "staged"), e->writer ? &e->staging.fd : &fd, 1, f);
}

int direct_stage(struct task *e, const struct json_packet *t, struct fault *f)
{
	cleanup(ranges_deinit) struct ranges ranges = {0};
	int r;

	if (ranges_from_json(json_object_get(t->message, "ranges"), e->n_bytes, &ranges) < 0)
		return fault_set_message(f, t, "lacks ranges");
	r = open_staging(e, f);
	for (size_t i = 0; r == 0 && i < ranges.n; i++)
		r = stage_range(e, &ranges.at[i], f);
	return r < 0 ? r : send_staged(e, f);
}
