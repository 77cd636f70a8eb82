/*
 * A source lends a published version. It sends the layout and a descriptor of the bytes at once, so
 * that receivers can prepare, and the tree over the bytes as soon as they are hashed. With the tree
 * it sends the patch from an older version, if the agent has that version's memory and a patch is
 * small enough. The lease lasts until the agent hangs up.
 *
 * A version on a GPU is lent as a copy, and its lease ends with the copying; if an engine reads it
 * in place, the source lends the allocation, and a copy of the bytes that the engine cannot carry.
 * A request that only needs the identity of a version gets no bytes, and makes no copy. A request
 * that makes something new of it gets no tree, but may get a table of its tensors, and the
 * difference to another layout; the copy of a GPU's version is made last, when no other check can
 * fail.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/limits.h"
#include "server/sync/base/patch.h"
#include "server/sync/local/companions.h"
#include "server/sync/local/difference.h"
#include "server/sync/local/direct.h"
#include "server/sync/local/tensors.h"
#include "server/sync/local/transfer.h"

CLEANUP_POINTER(struct weightd_list, weightd_list_free);

/* The version was dropped or superseded, so it is no loss. */
static bool was_dropped(const struct task *e, const struct target *target, uint64_t version)
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;
	const struct weightd_version_info *v;

	if (weightd_list_history(e->w, target->buffer, target->device, &list) < 0)
		return false;
	for (size_t i = 0; (v = weightd_list_version(list, i)); i++)
		if (v->version > version || (v->version == version && v->end != WEIGHTD_END_NONE &&
					     v->end != WEIGHTD_END_LOST))
			return true;
	return false;
}

static int fail_to_attach(const struct task *e, const struct target *target, uint64_t version,
			  int r, struct fault *f)
{
	if (r == -EOPNOTSUPP && e->gpu[0])
		return direct_refuse(e, r, f);
	if (r == -EACCES)
		return fault_set(
			f, r,
			"%s: the agent reads what its own user may; give the buffer a Unix group that this user is in "
			"(weightctl chown%s%s :GROUP %s), or let everybody read it (weightctl chmod 0644)",
			weightd_error(e->w), target_is_host(target) ? "" : " --device ",
			target_is_host(target) ? "" : target->device, target->buffer);
	fault_set_weightd(f, r, e->w);
	if (version && was_dropped(e, target, version))
		f->code = "superseded";
	return r;
}

#define WORTH 2 /* times fewer bytes than the leaves that differ */

/* `*ret_fd` stays unchanged if only a copy can be lent. */
static int source_attach(struct task *e, const struct json_packet *t, struct target *ret_target,
			 bool *ret_is_on_gpu, int *ret_fd, struct fault *f)
{
	struct weightd_attach_options o = {.size = sizeof(o)};
	struct target target;
	int r;

	if (field_number_or(t->message, "version", INT64_MAX, 0, &o.version) < 0)
		return fault_set_message(f, t, "lacks a version");
	r = task_begin(e, t, &target, f);
	if (r < 0)
		return r;
	r = direct_read(e, t, &target, f);
	if (r < 0)
		return r;
	o.device = target.device;
	o.ret_fd = target_is_host(&target) || e->gpu[0] ? ret_fd : NULL;
	r = weightd_attach(e->w, target.buffer, &o, &e->buffer);
	if (r < 0)
		return fail_to_attach(e, &target, o.version, r, f);
	if (weightd_buffer_is_mutable(e->buffer))
		return fault_set(
			f, -EOPNOTSUPP,
			"'%s' is exclusive, which is written in place: it could change while it is "
			"sent; load it anew without --exclusive",
			target.buffer);
	(void)weightd_buffer_data(e->buffer, &e->n_bytes);
	*ret_target = target;
	*ret_is_on_gpu = !target_is_host(&target);
	return 0;
}

/* Creates the copy that is lent, still empty. `beside`: bytes that are staged next. */
static int source_stage(struct task *e, uint64_t beside, int *ret_fd, struct fault *f)
{
	int r = staging_check(e->n_bytes + beside, f);

	if (r == 0)
		r = staging_open(e->n_bytes, &e->staging, f);
	if (r < 0)
		return r;
	r = fd_reopen_readonly(e->staging.fd, ret_fd);
	return r < 0 ? fault_set(f, r, "the copy cannot be lent: %s", strerror(-r)) : 0;
}

/* Descriptors of a version, each -1 if it is not requested, or a copy will be requested later. */
struct lent {
	int data_fd;
	int table_fd;
	struct companions companions;
};

static void lent_deinit(struct lent *l)
{
	l->data_fd = fd_close(l->data_fd);
	l->table_fd = fd_close(l->table_fd);
	companions_clear(&l->companions);
}

static int send_attached(const struct task *e, const struct lent *l, bool has_companions,
			 struct fault *f)
{
	uint64_t layout_size;
	const void *image = weightd_buffer_layout_image(e->buffer, &layout_size);
	cleanup(fd_closep) int layout_fd = -1;
	int fds[4], r = fd_sealed_copy("weightd-sync-layout", image, layout_size, &layout_fd);
	uint8_t hash[MERKLE_HASH_SIZE];
	char hex[2 * MERKLE_HASH_SIZE + 1];
	unsigned n_fds = 0;
	json_t *message;

	if (r < 0)
		return fault_set(f, r, "the layout cannot be copied: %s", strerror(-r));
	merkle_hash(image, layout_size, hash);
	message = json_pack("{s:s, s:I, s:I, s:I, s:s}", "op", "attached", "version",
			    (json_int_t)weightd_buffer_version(e->buffer), "n_bytes",
			    (json_int_t)e->n_bytes, "layout_bytes", (json_int_t)layout_size,
			    "layout", field_hex(hash, sizeof(hash), hex));
	if (l->data_fd >= 0)
		direct_describe(e, message);
	if (has_companions)
		companions_describe(&l->companions, message);
	fds[n_fds++] = layout_fd;
	if (l->data_fd >= 0)
		fds[n_fds++] = l->data_fd;
	if (l->table_fd >= 0)
		fds[n_fds++] = l->table_fd;
	if (l->companions.fd >= 0)
		fds[n_fds++] = l->companions.fd;
	return task_send(message, fds, n_fds, f);
}

/* --- Patches ------------------------------------------------------------------------------------ */

/* An older version, lent by the agent. */
struct older {
	uint64_t n_bytes;
	uint64_t data_offset; /* where it begins in `data` */
	uint8_t root[MERKLE_HASH_SIZE];
	struct blob data;
	struct blob leaves;
};

static void older_deinit(struct older *o)
{
	blob_deinit(&o->data);
	blob_deinit(&o->leaves);
}

static int take_older(const struct json_packet *t, struct older *ret, struct fault *f)
{
	const json_t *named = json_object_get(t->message, "base");
	uint64_t size;

	if (!named && t->n_fds == 0)
		return 0;
	if (t->n_fds != 2 || field_number(named, "n_bytes", N_BYTES_MAX, &ret->n_bytes) < 0 ||
	    field_number_or(named, "data_offset", DATA_OFFSET_MAX, 0, &ret->data_offset) < 0 ||
	    field_bytes(named, "root", ret->root, sizeof(ret->root)) < 0)
		return fault_set_message(f, t, "lacks a base, or its bytes");
	size = merkle_n_leaves(ret->n_bytes) * MERKLE_HASH_SIZE;
	if (blob_map(t->fds[0], N_BYTES_MAX, &ret->data) < 0 ||
	    ret->data.size < ret->data_offset + ret->n_bytes ||
	    blob_map(t->fds[1], size, &ret->leaves) < 0 || ret->leaves.size != size)
		return fault_set_message(f, t, "lacks a sealed base with its leaves");
	return 0;
}

struct made {
	int fd; /* -1: no patch, or none that is small enough */
	uint64_t size;
	uint64_t changed;
};

/* Compares by leaves and then by elements. A missing patch is no failure. */
static void make_patch(const struct task *e, const struct older *o,
		       const uint8_t (*leaves)[MERKLE_HASH_SIZE],
		       const uint8_t root[MERKLE_HASH_SIZE], struct made *ret)
{
	cleanup(ranges_deinit) struct ranges differ = {0};
	cleanup(patch_draft_deinit) struct patch_draft d = {0};
	const void *before;

	if (o->n_bytes != e->n_bytes || !o->n_bytes ||
	    merkle_difference(e->n_bytes, leaves, merkle_n_leaves(o->n_bytes), o->leaves.data,
			      &differ) < 0 ||
	    !differ.n)
		return;
	before = (const uint8_t *)o->data.data + o->data_offset;
	if (patch_draft_difference(before, task_data(e), e->n_bytes, &differ, &d) < 0 ||
	    d.size > ranges_total(&differ) / WORTH)
		return;
	ret->size = d.size;
	ret->changed = d.n_changed;
	if (patch_draft_write(&d, o->root, root, &ret->fd) < 0)
		ret->fd = -1;
}

/* The received patches, each based on the result of the one before it. */
static int open_row(const struct json_packet *t, struct blob blobs[JSON_PACKET_FDS_MAX],
		    struct patch patches[JSON_PACKET_FDS_MAX])
{
	for (unsigned i = 0; i < t->n_fds; i++) {
		int r = blob_map(t->fds[i], N_BYTES_MAX, &blobs[i]);

		if (r == 0)
			r = patch_open(blobs[i].data, blobs[i].size, &patches[i]);
		if (r < 0)
			return r;
		if (i > 0 && memcmp(patches[i - 1].result, patches[i].base, MERKLE_HASH_SIZE) != 0)
			return -EBADMSG;
	}
	return 0;
}

static int make_one(const struct patch *patches, unsigned n, struct made *ret)
{
	cleanup(patch_draft_deinit) struct patch_draft d = {0};
	int r = patch_draft_union(patches, n, &d);

	if (r < 0)
		return r;
	ret->size = d.size;
	ret->changed = d.n_changed;
	return patch_draft_write(&d, patches[0].base, patches[n - 1].result, &ret->fd);
}

static int source_compose(const struct json_packet *t, struct fault *f)
{
	struct patch patches[JSON_PACKET_FDS_MAX] = {0};
	struct blob blobs[JSON_PACKET_FDS_MAX] = {0};
	struct made made = {.fd = -1};
	int r = open_row(t, blobs, patches);

	if (r == 0)
		r = make_one(patches, t->n_fds, &made);
	for (unsigned i = 0; i < t->n_fds; i++) {
		patch_close(&patches[i]);
		blob_deinit(&blobs[i]);
	}
	if (r < 0)
		return task_send(json_pack("{s:s, s:s}", "op", "composed", "why", strerror(-r)),
				 NULL, 0, f);
	r = task_send(json_pack("{s:s, s:I, s:I}", "op", "composed", "size", (json_int_t)made.size,
				"changed", (json_int_t)made.changed),
		      &made.fd, 1, f);
	(void)fd_close(made.fd);
	return r;
}

/* --- The version -------------------------------------------------------------------------------- */

static int source_hash(struct task *e, bool is_on_gpu, uint8_t (*ret)[MERKLE_HASH_SIZE],
		       struct fault *f)
{
	int r = e->staging.data ? staging_fill(&e->staging, f) : 0;

	if (r == 0 && is_on_gpu)
		r = transfer_read(e, ret, f);
	else if (r == 0)
		merkle_leaves(task_data(e), e->n_bytes, ret, NULL, NULL);
	return r;
}

/*
 * Ends the lease once the version is copied, or identified: nothing else needs a GPU's version,
 * unless an engine reads it in place.
 */
static int buffer_release(struct task *e, struct fault *f)
{
	weightd_detach(e->buffer);
	e->buffer = NULL;
	return e->staging.data ? staging_seal(&e->staging, f) : 0;
}

static int send_root(struct task *e, bool is_on_gpu, const struct older *o, struct fault *f)
{
	uint64_t n = merkle_n_leaves(e->n_bytes);
	cleanup(freep) uint8_t(*leaves)[MERKLE_HASH_SIZE] = calloc(n + 1, sizeof(*leaves));
	cleanup(fd_closep) int fd = -1, patch_fd = -1;
	struct made made = {.fd = -1};
	uint8_t root[MERKLE_HASH_SIZE], table[MERKLE_HASH_SIZE];
	char root_hex[2 * MERKLE_HASH_SIZE + 1], table_hex[2 * MERKLE_HASH_SIZE + 1];
	int r = leaves ? source_hash(e, is_on_gpu, leaves, f)
		       : fault_set(f, -ENOMEM, "out of memory");

	if (r == 0 && is_on_gpu && !e->gpu[0])
		r = buffer_release(e, f);
	if (r < 0)
		return r;
	merkle_root(e->n_bytes, (const void *)leaves, root);
	merkle_hash(leaves, n * sizeof(*leaves), table);
	r = fd_sealed_copy("weightd-sync-leaves", leaves, n * sizeof(*leaves), &fd);
	if (r < 0)
		return fault_set(f, r, "the table of leaves cannot be made: %s", strerror(-r));
	if (!is_on_gpu) /* a version on a GPU is not mapped any more */
		make_patch(e, o, (const void *)leaves, root, &made);
	patch_fd = made.fd;
	return task_send(json_pack("{s:s, s:s, s:s, s:o*}", "op", "root", "root",
				   field_hex(root, sizeof(root), root_hex), "leaves",
				   field_hex(table, sizeof(table), table_hex), "patch",
				   made.fd < 0
					   ? NULL
					   : json_pack("{s:I, s:I}", "size", (json_int_t)made.size,
						       "changed", (json_int_t)made.changed)),
			 (const int[]){fd, patch_fd}, made.fd < 0 ? 1 : 2, f);
}

static int source_lend(struct task *e, const struct json_packet *t, const char *op, struct fault *f)
{
	bool has_table = !strcmp(op, "lend"), has_tree = !has_table && strcmp(op, "give") != 0;
	bool is_lent = strcmp(op, "look") != 0, is_on_gpu = false;
	cleanup(older_deinit) struct older older = {0};
	cleanup(lent_deinit) struct lent lent = {-1, -1, COMPANIONS_NONE};
	struct target target;
	int r = take_older(t, &older, f);

	if (r == 0)
		r = source_attach(e, t, &target, &is_on_gpu, is_lent ? &lent.data_fd : NULL, f);
	if (r == 0 && has_table)
		r = tensors_table(e->buffer, &lent.table_fd, f);
	if (r == 0 && is_lent && has_tree)
		r = companions_new(e, &target, lent.data_fd, &lent.companions, f);
	if (r == 0 && is_lent && has_tree && is_on_gpu && !e->gpu[0])
		r = source_stage(e, 0, &lent.data_fd, f);
	if (r < 0)
		return r;
	e->stage = STAGE_AT_WORK;
	r = send_attached(e, &lent, is_lent && has_tree, f);
	lent_deinit(&lent);
	return r < 0 || !has_tree ? r : send_root(e, is_on_gpu, &older, f);
}

/* The version still has to be copied, as no tree was requested. */
static bool is_to_copy(const struct task *e)
{
	struct weightd_location at = {.size = sizeof(at)};

	return e->buffer && !e->gpu[0] && weightd_buffer_location(e->buffer, &at) == 0 &&
	       at.memory != WEIGHTD_MEMORY_HOST;
}

static int source_copy(struct task *e, const struct json_packet *t, struct fault *f)
{
	cleanup(fd_closep) int fd = -1;
	uint64_t beside;
	int r;

	if (field_number(t->message, "beside", N_BYTES_MAX, &beside) < 0)
		return fault_set_message(f, t, "lacks the size that is staged beside it");
	r = source_stage(e, beside, &fd, f);
	if (r == 0)
		r = staging_fill(&e->staging, f);
	if (r < 0)
		return r;
	r = task_read(e, 0, e->staging.data, e->n_bytes);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	r = buffer_release(e, f);
	return r < 0 ? r : task_send(json_pack("{s:s}", "op", "copied"), &fd, 1, f);
}

static bool is_to_lend(const char *op)
{
	return !strcmp(op, "attach") || !strcmp(op, "lend") || !strcmp(op, "give") ||
	       !strcmp(op, "look");
}

int source_handle(struct task *e, const struct json_packet *t, struct fault *f)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && is_to_lend(op) && e->stage == STAGE_NEW)
		return source_lend(e, t, op, f);
	if (op && !strcmp(op, "compose") && e->stage == STAGE_AT_WORK && t->n_fds > 0)
		return source_compose(t, f);
	if (op && !strcmp(op, "stage") && e->stage == STAGE_AT_WORK && e->gpu[0])
		return direct_stage(e, t, f);
	if (op && !strcmp(op, "copy") && e->stage == STAGE_AT_WORK && is_to_copy(e))
		return source_copy(e, t, f);
	if (op && !strcmp(op, "compare") && e->stage == STAGE_AT_WORK && e->buffer)
		return difference_explain(e->buffer, t, f);
	return fault_set_message(f, t,
				 "expects one attach and then nothing but compose or stage, one lend "
				 "or give and then nothing but compare or, of a GPU's, copy, or "
				 "nothing but one look");
}
