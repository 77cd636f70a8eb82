/*
 * A base lends its bytes from base_new() to base_free(): its lease ends before the new version is
 * published, because weightd may then need the memory for the next one. A patch also needs the
 * bytes of leaves that differ. It copies these late, because received leaves are written by other
 * processes.
 */
#include "server/sync/local/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/patch.h"
#include "server/sync/local/companions.h"

struct copy {
	const struct base *base;
	const struct patch *patch; /* applied to the missing leaves; NULL: these are skipped */
	const char *from; /* NULL: the base is on a GPU, and is read by calls */
	char *to;
	/* Used instead of `to` if the new version is on a GPU as well. */
	struct weightd_writer *writer;
	uint64_t n_bytes; /* common to both */
	pthread_mutex_t lock; /* protects the connection, if the bytes are read by calls */
};

static void blob_deinitp(struct blob *b)
{
	blob_deinit(b);
}

/* Reads {version, n_bytes} and the table: 1. 0: no base. */
static int take_named(const struct json_packet *t, uint64_t *ret_version, uint64_t *ret_n_bytes,
		      struct blob *ret_leaves, struct fault *f)
{
	const json_t *named = json_object_get(t->message, "base");
	uint64_t size;

	if (!named && t->n_fds == 2 + companions_n_fds(t))
		return 0;
	if (t->n_fds != 3 + companions_n_fds(t) ||
	    field_number(named, "version", INT64_MAX, ret_version) < 0 ||
	    field_number(named, "n_bytes", N_BYTES_MAX, ret_n_bytes) < 0)
		return fault_set_message(f, t, "lacks a base, or its table");
	size = merkle_n_leaves(*ret_n_bytes) * MERKLE_HASH_SIZE;
	if (blob_map(t->fds[2], size, ret_leaves) < 0 || ret_leaves->size != size)
		return fault_set_message(f, t, "lacks a sealed table of the base's leaves");
	return 1;
}

/* A base that was removed, or lost in a restart of weightd, only costs time. */
static void base_attach(const struct task *e, const struct target *target, uint64_t version,
			uint64_t n_bytes, struct base *b)
{
	const struct weightd_attach_options o = {
		.size = sizeof(o),
		.device = target->device,
		.version = version,
	};
	uint64_t found = 0;

	if (weightd_attach(e->w, target->buffer, &o, &b->buffer) < 0) {
		b->buffer = NULL;
		(void)snprintf(b->why, sizeof(b->why), "%s", weightd_error(e->w));
		return;
	}
	(void)weightd_buffer_data(b->buffer, &found);
	if (found == n_bytes && !weightd_buffer_is_mutable(b->buffer))
		return;
	weightd_detach(b->buffer);
	b->buffer = NULL;
	(void)snprintf(b->why, sizeof(b->why), "version %ju is another one than it was",
		       (uintmax_t)version);
}

int base_new(const struct task *e, const struct json_packet *t, const struct target *target,
	     struct base **ret, struct fault *f)
{
	cleanup(base_freep) struct base *b = calloc(1, sizeof(*b));
	cleanup(blob_deinitp) struct blob leaves = {0};
	uint64_t version, n_bytes = 0;
	int r = b ? take_named(t, &version, &n_bytes, &leaves, f)
		  : fault_set(f, -ENOMEM, "out of memory");

	if (r < 0)
		return r;
	if (r > 0)
		base_attach(e, target, version, n_bytes, b);
	r = merkle_difference(e->n_bytes, e->leaves.data, b->buffer ? merkle_n_leaves(n_bytes) : 0,
			      leaves.data, &b->missing);
	if (r < 0)
		return fault_set(f, r, "out of memory");
	*ret = take_ptr(b);
	return 0;
}

/* Ranges begin and end at leaves: a leaf is missing as a whole, or not at all. */
static bool is_missing(const struct ranges *missing, uint64_t offset)
{
	size_t low = 0, high = missing->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct range *r = &missing->at[middle];

		if (offset < r->offset)
			high = middle;
		else if (offset >= r->offset + r->size)
			low = middle + 1;
		else
			return true;
	}
	return false;
}

/* If the GPU fails here, the bytes are wrong: verify detects it, and they are sent. */
static void copy_on_gpu(struct copy *c, uint64_t offset, uint64_t size)
{
	cleanup(freep) void *window = c->writer ? malloc(size) : NULL;
	void *to = c->writer ? window : c->to + offset;

	if (!to)
		return;
	(void)pthread_mutex_lock(&c->lock);
	if (weightd_buffer_read(c->base->buffer, offset, to, size) == 0 && c->writer)
		(void)weightd_writer_write(c->writer, offset, window, size);
	(void)pthread_mutex_unlock(&c->lock);
}

static void copy_bytes(struct copy *c, uint64_t offset, uint64_t size)
{
	if (c->from)
		memcpy(c->to + offset, c->from + offset, size);
	else
		copy_on_gpu(c, offset, size);
}

/* The table gives a common leaf one length in both versions, but tables are not trusted. */
static void copy_leaf(void *userdata, uint64_t leaf)
{
	struct copy *c = userdata;
	uint64_t offset = leaf * MERKLE_LEAF_SIZE, left = c->n_bytes - offset;

	if (is_missing(&c->base->missing, offset) != (c->patch != NULL))
		return;
	copy_bytes(c, offset, left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE);
	if (c->patch) /* verify detects places that the patch lacks */
		(void)patch_apply(c->patch, leaf, (uint8_t *)c->to + offset);
}

static void each_leaf(const struct task *e, const struct base *b, const struct patch *patch)
{
	struct copy c = {.base = b, .patch = patch, .lock = PTHREAD_MUTEX_INITIALIZER};

	c.to = task_data(e);
	c.from = weightd_buffer_data(b->buffer, &c.n_bytes);
	c.n_bytes = c.n_bytes < e->n_bytes ? c.n_bytes : e->n_bytes;
	if (e->staging.data || e->gpu[0])
		c.from = NULL; /* an address on the GPU */
	if (e->gpu[0])
		c.writer = e->writer;
	merkle_each_leaf(c.n_bytes, copy_leaf, &c);
}

void base_copy(const struct task *e, const struct base *b)
{
	if (b->buffer)
		each_leaf(e, b, NULL);
}

/* The patch is for this version, and for a base of this size. */
static bool is_for(const struct patch *p, const struct task *e, const struct base *b)
{
	uint64_t n_bytes;

	(void)weightd_buffer_data(b->buffer, &n_bytes);
	return p->n_bytes == e->n_bytes && n_bytes == e->n_bytes &&
	       memcmp(p->result, e->root, sizeof(e->root)) == 0;
}

static int base_apply(const struct task *e, const struct base *b, const void *data, uint64_t size)
{
	struct patch p;
	int r = patch_open(data, size, &p);

	if (r < 0)
		return r;
	if (is_for(&p, e, b))
		each_leaf(e, b, &p);
	else
		r = -ESTALE;
	patch_close(&p);
	return r;
}

/*
 * The memory of the patch was the agent's, and a terminating engine may still map it: so it may
 * change at any time.
 */
void base_patch(const struct task *e, const struct base *b, int fd, char *why)
{
	uint64_t size;
	void *data = MAP_FAILED;
	int r = b && b->buffer && !e->gpu[0] ? fd_size(fd, &size) : -ENODATA;

	why[0] = '\0';
	if (r == 0)
		data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (r == 0)
		r = data == MAP_FAILED ? -errno : base_apply(e, b, data, size);
	if (data != MAP_FAILED)
		(void)munmap(data, size);
	if (r < 0)
		(void)snprintf(why, FAULT_WHY_SIZE, "%s",
			       r == -EBADMSG   ? "it is invalid"
			       : r == -ESTALE  ? "it makes another version"
			       : r == -ENODATA ? "there is nothing to apply it to"
					       : strerror(-r));
}

struct base *base_free(struct base *b)
{
	if (!b)
		return NULL;
	weightd_detach(b->buffer);
	ranges_deinit(&b->missing);
	free(b);
	return NULL;
}
