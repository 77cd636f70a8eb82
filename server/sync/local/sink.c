/*
 * A sink makes the next version of a buffer. The agent receives weightd's memory for it, and its
 * engines write the missing bytes through their own mappings, while the sink copies the rest from a
 * base. Instead, the agent may send a patch of that base in separate memory, and the sink makes the
 * missing bytes with it. The sink publishes the version only if, leaf for leaf, it has the signed
 * tree. Every verify also gives weightd the digest of the bytes that it has just hashed: so the
 * version's digest is of the verified bytes, and of no later ones.
 *
 * Versions that nodes compute together are not signed before: verify returns their tree, and
 * publish accepts no other one. For a GPU they are computed in a staging, unless NCCL writes to the
 * GPU itself; verify has the GPU prove that its bytes are equal.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/local/acl.h"
#include "server/sync/local/base.h"
#include "server/sync/local/companions.h"
#include "server/sync/local/direct.h"
#include "server/sync/local/tensors.h"
#include "server/sync/local/transfer.h"

#define LAYOUT_SIZE_MAX ((uint64_t)1 << 30) /* weightd's own limit */
/* weightd waits a second for the mappings of an engine to end. A killed engine may take longer. */
#define PUBLISH_TRIES 5

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);
CLEANUP_POINTER(struct weightd_list, weightd_list_free);

static void blob_deinitp(struct blob *b)
{
	blob_deinit(b);
}

/* The parts of a version that come before its bytes. */
struct received {
	struct weightd_layout *layout;
	struct received_companions companions;
};

static void received_deinit(struct received *d)
{
	weightd_layout_free(d->layout);
	received_companions_deinit(&d->companions);
}

static bool is_hash_of(const struct blob *b, const uint8_t wanted[MERKLE_HASH_SIZE])
{
	uint8_t found[MERKLE_HASH_SIZE];

	merkle_hash(b->data, b->size, found);
	return !memcmp(found, wanted, sizeof(found));
}

/* The table must have the signed root: then its leaves are true. */
static int take_leaves(struct task *e, const struct json_packet *t, struct fault *f)
{
	uint64_t size = merkle_n_leaves(e->n_bytes) * MERKLE_HASH_SIZE;
	uint8_t root[MERKLE_HASH_SIZE];
	int r = blob_map(t->fds[1], size, &e->leaves);

	if (r < 0 || e->leaves.size != size)
		return fault_set_message(f, t, "lacks a sealed table of all leaves");
	merkle_root(e->n_bytes, e->leaves.data, root);
	if (memcmp(root, e->root, sizeof(root)) != 0)
		return fault_set(f, -EILSEQ, "the table of leaves does not have the announced root");
	return 0;
}

static int take_layout(const struct task *e, const struct json_packet *t,
		       struct weightd_layout **ret, struct fault *f)
{
	cleanup(weightd_layout_freep) struct weightd_layout *layout = NULL;
	cleanup(blob_deinitp) struct blob image = {0};
	uint8_t hash[MERKLE_HASH_SIZE];
	int r;

	if (field_bytes(t->message, "layout", hash, sizeof(hash)) < 0 ||
	    blob_map(t->fds[0], LAYOUT_SIZE_MAX, &image) < 0)
		return fault_set_message(f, t, "lacks a sealed layout with its hash");
	if (!is_hash_of(&image, hash))
		return fault_set(f, -EILSEQ, "the layout differs from the announced one");
	r = weightd_layout_parse(image.data, image.size, &layout);
	if (r < 0)
		return fault_set(f, r, "the received layout cannot be used: %s", strerror(-r));
	if (weightd_layout_n_bytes(layout) != e->n_bytes)
		return fault_set(f, -EBADMSG,
				 "the received layout is of %" PRIu64 " bytes, and %" PRIu64
				 " were announced",
				 weightd_layout_n_bytes(layout), e->n_bytes);
	*ret = take_ptr(layout);
	return 0;
}

/* Returns the current tree, which is not signed yet. */
static int send_found(struct task *e, const uint8_t (*found)[MERKLE_HASH_SIZE], struct fault *f)
{
	size_t size = merkle_n_leaves(e->n_bytes) * MERKLE_HASH_SIZE;
	char root[2 * MERKLE_HASH_SIZE + 1], table[2 * MERKLE_HASH_SIZE + 1];
	uint8_t hash_of_table[MERKLE_HASH_SIZE];
	cleanup(fd_closep) int fd = -1;
	int r = fd_sealed_copy("weightd-sync-leaves", found, size, &fd);

	if (r < 0)
		return fault_set(f, r, "the table of leaves cannot be made: %s", strerror(-r));
	merkle_root(e->n_bytes, found, e->root);
	merkle_hash(found, size, hash_of_table);
	e->stage = STAGE_VERIFIED;
	return task_send(json_pack("{s:s, s:s, s:s}", "op", "verified", "root",
				   field_hex(e->root, sizeof(e->root), root), "leaves",
				   field_hex(hash_of_table, sizeof(hash_of_table), table)),
			 &fd, 1, f);
}

static int take_announced(struct task *e, const struct json_packet *t, struct fault *f)
{
	if (t->n_fds < 2 || field_number(t->message, "n_bytes", N_BYTES_MAX, &e->n_bytes) < 0 ||
	    field_bytes(t->message, "root", e->root, sizeof(e->root)) < 0)
		return fault_set_message(f, t, "lacks a size, a root or a descriptor");
	return take_leaves(e, t, f);
}

/*
 * The old version must stay until the new one is complete: an exclusive buffer would be overwritten
 * in place.
 */
static int check_target(const struct task *e, const struct target *target, struct fault *f)
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;
	const struct weightd_buffer_info *b;
	char device[WEIGHTD_DEVICE_MAX + 1];
	int r = weightd_device_name(e->w, target->device, device);

	if (r == 0)
		r = weightd_list(e->w, target->buffer, &list);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	for (size_t i = 0; (b = weightd_list_buffer(list, i)); i++)
		if (b->exclusive && !strcmp(b->device, device))
			return fault_set(
				f, -EOPNOTSUPP,
				"'%s' is exclusive here, and would be written in place with no "
				"way back; remove it first (weightctl rm%s%s %s)",
				target->buffer, target_is_host(target) ? "" : " --device ",
				target_is_host(target) ? "" : target->device, target->buffer);
	return 0;
}

static bool is_on_host(const struct task *e)
{
	struct weightd_location location = {.size = sizeof(location)};

	return weightd_writer_location(e->writer, &location) == 0 &&
	       location.memory == WEIGHTD_MEMORY_HOST;
}

/*
 * Sends the memory for the engines: the staging, or weightd's memory itself. Takes the reference to
 * the message.
 */
static int send_created(const struct task *e, json_t *message, struct fault *f)
{
	cleanup(json_freep) json_t *m = message;
	cleanup(fd_closep) int own = -1;
	int r = e->staging.data ? 0 : weightd_writer_fd(e->writer, &own);

	if (r < 0 && e->gpu[0])
		return direct_refuse(e, r, f);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	direct_describe(e, m);
	return task_send(take_ptr(m), own >= 0 ? &own : &e->staging.fd, 1, f);
}

static json_t *base_describe(const struct base *b)
{
	return json_pack("{s:s, s:o, s:b, s:s*}", "op", "created", "missing",
			 ranges_to_json(&b->missing), "has_base", b->buffer != NULL, "why",
			 b->why[0] ? b->why : NULL);
}

/* Engines write the missing bytes while the rest is copied here; verify follows both. */
static int sink_fill(struct task *e, const struct json_packet *t, const struct target *target,
		     struct fault *f)
{
	int r = base_new(e, t, target, &e->base, f);

	if (r == 0)
		r = send_created(e, base_describe(e->base), f);
	if (r == 0)
		base_copy(e, e->base);
	return r;
}

/* All the missing bytes arrived as a patch. */
static int sink_patch(struct task *e, const struct json_packet *t, struct fault *f)
{
	char why[FAULT_WHY_SIZE];

	base_patch(e, e->base, t->fds[0], why);
	return task_send(json_pack("{s:s, s:s*}", "op", "patched", "why", why[0] ? why : NULL),
			 NULL, 0, f);
}

/* False: there is no buffer. Changes the sentence of the connection. */
static bool is_there(const struct task *e, const struct target *target)
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;

	return weightd_list_versions(e->w, target->buffer, target->device, &list) != -ENOENT;
}

/* Without the way out for other clients, which name an owner: an agent publishes in its own buffers alone. */
static int sink_refused(const struct task *e, const struct target *target, int r, struct fault *f)
{
	char why[FAULT_WHY_SIZE];

	(void)snprintf(why, sizeof(why), "%s", weightd_error(e->w));
	if ((r != -EACCES && r != -EPERM) || !is_there(e, target))
		return fault_set(f, r, "%s", why);
	return fault_set(
		f, r,
		"%.*s: somebody else made it on this node, and an agent publishes in buffers "
		"of its own user alone; let the agent have it (weightctl chown %u%s%s %s), or "
		"remove it (weightctl rm)",
		(int)strcspn(why, ";"), why, geteuid(), target_is_host(target) ? "" : " --device ",
		target_is_host(target) ? "" : target->device, target->buffer);
}

static int create_version(struct task *e, const struct target *target,
			  const struct received *received, struct fault *f)
{
	const struct weightd_create_options o = {
		.size = sizeof(o),
		.device = target->device,
		.new_layout = true,
		.header = received->companions.header_size ? received->companions.blob.data : NULL,
		.header_size = received->companions.header_size,
	};
	int r = weightd_create(e->w, target->buffer, received->layout, &o, &e->writer);

	return r < 0 ? sink_refused(e, target, r, f) : 0;
}

/*
 * Begins the next version of the buffer. The rights are set afterwards: before any process can attach a new buffer, and only
 * on a buffer of the agent's. weightd distrusts a writer with reused memory when the rights change.
 */
static int begin_version(struct task *e, const struct target *target,
			 const struct received *received, const struct acl *acl, struct fault *f)
{
	bool is_distrusted = false;
	int r = create_version(e, target, received, f);

	if (r == 0)
		r = acl_apply(acl, e, target, &is_distrusted, f);
	if (r < 0 || !is_distrusted)
		return r;
	weightd_writer_free(e->writer);
	e->writer = NULL;
	return create_version(e, target, received, f);
}

/*
 * Creates the version's memory, and a staging if it needs one. If there is no room for the staging,
 * nothing is created.
 */
static int make_room(struct task *e, const struct target *target, const struct received *received,
		     const struct acl *acl, struct fault *f)
{
	const bool is_staged = !target_is_host(target) && !e->gpu[0];
	int r = is_staged ? staging_check(e->n_bytes, f) : 0;

	if (r == 0)
		r = begin_version(e, target, received, acl, f);
	if (r < 0 || !is_staged)
		return r;
	r = staging_open(e->n_bytes, &e->staging, f);
	return r < 0 ? r : staging_fill(&e->staging, f);
}

static int sink_create(struct task *e, const struct json_packet *t, struct fault *f)
{
	cleanup(received_deinit) struct received received = {0};
	struct target target;
	struct acl acl;
	int r = take_announced(e, t, f);

	if (r == 0)
		r = acl_read(t, &acl, f);
	if (r == 0)
		r = take_layout(e, t, &received.layout, f);
	if (r == 0)
		r = companions_take(t, &received.companions, f);
	if (r == 0)
		r = task_begin(e, t, &target, f);
	if (r == 0)
		r = direct_read(e, t, &target, f);
	if (r == 0)
		r = check_target(e, &target, f);
	if (r == 0)
		r = make_room(e, &target, &received, &acl, f);
	if (r == 0)
		r = companions_set_files(e, &received.companions, f);
	if (r < 0)
		return r;
	e->stage = STAGE_AT_WORK;
	return sink_fill(e, t, &target, f);
}

/* The same without a root, for memory that engines fill with computed bytes. */
static int sink_make(struct task *e, const struct json_packet *t, struct fault *f)
{
	cleanup(received_deinit) struct received received = {0};
	struct target target;
	struct acl acl;
	int r;

	if (t->n_fds != 1 || field_number(t->message, "n_bytes", N_BYTES_MAX, &e->n_bytes) < 0)
		return fault_set_message(f, t, "lacks a size or a descriptor");
	e->is_computed = true;
	r = acl_read(t, &acl, f);
	if (r == 0)
		r = take_layout(e, t, &received.layout, f);
	if (r == 0)
		r = task_begin(e, t, &target, f);
	if (r == 0)
		r = direct_read(e, t, &target, f);
	if (r == 0)
		r = check_target(e, &target, f);
	if (r == 0)
		r = make_room(e, &target, &received, &acl, f);
	if (r < 0)
		return r;
	e->stage = STAGE_AT_WORK;
	if (!e->staging.data) /* a staging is new, and all zero */
		r = tensors_clear_gaps(e->writer);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	return send_created(e, json_pack("{s:s}", "op", "created"), f);
}

static void digest_leaf(void *writer, uint64_t leaf)
{
	weightd_writer_digest_leaf(writer, leaf);
}

/* The memory is on a GPU, and is read by calls. */
static bool is_on_gpu(const struct task *e)
{
	return e->staging.data || e->gpu[0];
}

/* Hashes the leaves in memory; with a staging, correct ones are also copied to the GPU. */
static int sink_hash(struct task *e, uint8_t (**ret)[MERKLE_HASH_SIZE], struct fault *f)
{
	cleanup(freep) uint8_t(*found)[MERKLE_HASH_SIZE] = calloc(merkle_n_leaves(e->n_bytes) + 1,
								  sizeof(*found));
	int r = found ? 0 : fault_set(f, -ENOMEM, "out of memory");

	if (r == 0 && is_on_gpu(e))
		r = transfer_write(e, found, f);
	else if (r == 0)
		merkle_leaves(task_data(e), e->n_bytes, found, digest_leaf, e->writer);
	if (r == 0)
		*ret = take_ptr(found);
	return r;
}

static bool is_right(const struct task *e, const uint8_t (*found)[MERKLE_HASH_SIZE])
{
	uint8_t root[MERKLE_HASH_SIZE];

	merkle_root(e->n_bytes, found, root);
	return !memcmp(root, e->root, sizeof(root));
}

static int send_corrupt(const struct task *e, const uint8_t (*found)[MERKLE_HASH_SIZE],
			struct fault *f)
{
	cleanup(ranges_deinit) struct ranges bad = {0};
	int r = merkle_difference(e->n_bytes, found, merkle_n_leaves(e->n_bytes), e->leaves.data,
				  &bad);

	if (r < 0)
		return fault_set(f, r, "out of memory");
	return task_send(json_pack("{s:s, s:o}", "op", "corrupt", "ranges", ranges_to_json(&bad)),
			 NULL, 0, f);
}

/*
 * The GPU's bytes are published, not those of the staging. The staging is freed when both are
 * equal.
 */
static int verify_gpu(struct task *e, struct fault *f)
{
	int r = weightd_writer_verify(e->writer, 0, merkle_n_leaves(e->n_bytes));

	if (r < 0)
		return fault_set(
			f, r,
			"the version did not arrive on the GPU as it came: %.300s; look at the memory "
			"of the GPU and of the machine if it happens twice",
			weightd_error(e->w));
	staging_deinit(&e->staging);
	return 0;
}

/*
 * A node that cannot publish must not be counted among those that have the version: others would
 * serve it, and this node would not.
 */
static int check_weightd(const struct task *e, struct fault *f)
{
	struct weightd_server server = {.size = sizeof(server)};
	int r = weightd_ping(e->w, &server);

	return r < 0 ? fault_set_weightd(f, r, e->w) : 0;
}

static int sink_verify(struct task *e, struct fault *f)
{
	cleanup(freep) uint8_t(*found)[MERKLE_HASH_SIZE] = NULL;
	char hex[2 * MERKLE_HASH_SIZE + 1];
	int r;

	e->stage = STAGE_AT_WORK;
	e->base = base_free(e->base);
	r = sink_hash(e, &found, f);
	if (r < 0)
		return r;
	if (!e->is_computed && !is_right(e, (const void *)found))
		return send_corrupt(e, (const void *)found, f);
	r = is_on_gpu(e) ? verify_gpu(e, f) : 0;
	if (r == 0)
		r = check_weightd(e, f);
	if (r < 0)
		return r;
	if (e->is_computed)
		return send_found(e, (const void *)found, f);
	e->stage = STAGE_VERIFIED;
	return task_send(json_pack("{s:s, s:s}", "op", "verified", "root",
				   field_hex(e->root, sizeof(e->root), hex)),
			 NULL, 0, f);
}

/*
 * The process that delayed the publication may have written: so the bytes must be verified again.
 */
static int verify_again(struct task *e, struct fault *f)
{
	cleanup(freep) uint8_t(*found)[MERKLE_HASH_SIZE] = NULL;
	int r = sink_hash(e, &found, f);

	if (r < 0 || is_right(e, (const void *)found))
		return r;
	return fault_set(f, -EILSEQ,
			 "the bytes changed after they were verified; a process still writes them");
}

/* On a GPU no other process can delay it. */
static int sink_publish(struct task *e, struct fault *f)
{
	uint64_t version;
	int r = weightd_writer_publish(e->writer, &version);

	for (unsigned i = 1; r == -EBUSY && is_on_host(e) && i < PUBLISH_TRIES; i++) {
		r = verify_again(e, f);
		if (r < 0)
			return r;
		r = weightd_writer_publish(e->writer, &version);
	}
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	task_end(e);
	return task_send(json_pack("{s:s, s:I}", "op", "published", "version", (json_int_t)version),
			 NULL, 0, f);
}

int sink_handle(struct task *e, const struct json_packet *t, struct fault *f)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && !strcmp(op, "create") && e->stage == STAGE_NEW)
		return sink_create(e, t, f);
	if (op && t->n_fds == 1 && !strcmp(op, "patch") && e->stage == STAGE_AT_WORK)
		return sink_patch(e, t, f);
	if (op && !strcmp(op, "make") && e->stage == STAGE_NEW)
		return sink_make(e, t, f);
	if (op && t->n_fds == 0 && !strcmp(op, "stage") && e->stage == STAGE_AT_WORK && e->gpu[0])
		return direct_stage(e, t, f);
	if (op && t->n_fds == 0 && !strcmp(op, "verify") && e->writer &&
	    (is_on_gpu(e) || is_on_host(e)))
		return sink_verify(e, f);
	if (op && t->n_fds == 0 && !strcmp(op, "publish") && e->stage == STAGE_VERIFIED)
		return sink_publish(e, f);
	return fault_set_message(
		f, t,
		"expects create or make, a patch or stage perhaps, then verify until that "
		"succeeds, then publish");
}
