/*
 * An attached version: three read-only mappings and a lease. What only looks at them needs neither the
 * connection nor a lock, since nothing in them changes but the head page, which is made for that.
 */
#include "libclient/buffer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "libclient/mapping.h"
#include "libclient/tensor.h"

#define VERIFY_LEAVES 1024 /* digested at a time */

static_assert(WEIGHTD_LEAF_SIZE == DIGEST_LEAF_SIZE && WEIGHTD_DIGEST_SIZE == HASH_SIZE,
	      "digest sizes are ABI");

static struct weightd_buffer *buffer_free(struct weightd_buffer *b)
{
	list_remove(&b->link);
	memory_unmap(&b->memory);
	mapping_free(b->image, b->image_size);
	mapping_free(b->head, HEAD_SIZE);
	free(b->name);
	free(b->device);
	client_unref(b->w);
	free(b);
	return NULL;
}
CLEANUP_POINTER(struct weightd_buffer, buffer_free);

/* Shorter than the server said, and reading it would fault. */
static int check_size(int fd, uint64_t size)
{
	uint64_t file_size;
	int r = fd_size(fd, &file_size);

	return r == 0 && file_size < size ? -EBADMSG : r;
}

static int map_tables(struct weightd_buffer *b, const int fds[2], uint64_t slot_size)
{
	int r = fd_size(fds[0], &b->image_size);

	if (r == 0)
		r = mapping_new_plain(fds[0], b->image_size, &b->image);
	if (r == 0)
		r = layout_open(b->image, b->image_size, &b->layout);
	if (r == 0)
		r = check_size(fds[1], HEAD_SIZE);
	if (r == 0)
		r = mapping_new_plain(fds[1], HEAD_SIZE, &b->head);
	if (r < 0)
		return r;
	if (!head_ok(b->head, b->id) || b->layout.header->data_size != b->data_size ||
	    b->data_size > DIGEST_DATA_MAX || digest_slot_size(b->data_size) != slot_size)
		return -EBADMSG;
	return 0;
}

/* Into the memory of `over` if that is not NULL, in the place of what is there. */
static int map_all(struct weightd_buffer *b, struct weightd_buffer *over,
		   const struct client_call *call)
{
	const struct wire_attach_reply *reply = &call->reply.attach;
	const struct memory_request q = {
		.location = reply->location,
		.size = reply->slot_size,
		.access = MEMORY_READ,
		.fd = call->reply_fds[2],
		.device = -1,
	};
	struct sentence *s = &b->w->sentence;
	int r = map_tables(b, call->reply_fds, reply->slot_size);

	if (r < 0)
		(void)sentence_set(s, r, "%s", strerror(-r));
	else if (over)
		r = memory_replace(&over->memory, &q, s);
	else
		r = memory_map(&b->memory, &q, s);
	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be mapped: %s", b->name,
				    b->version, b->device, s->text);
	return 0;
}

/*
 * A new attachment, with memory of its own; or without, when what was asked for took the place of the memory
 * of `over`, if that is not NULL.
 */
static int attach_once(struct weightd *w, const struct wire_attach *attach,
		       struct weightd_buffer *over, uint64_t deadline_ns,
		       struct weightd_buffer **ret)
{
	cleanup(buffer_freep) struct weightd_buffer *b = calloc(1, sizeof(*b));
	struct client_call call = {
		.op = WIRE_ATTACH,
		.deadline_ns = deadline_ns,
		.request.attach = *attach,
	};
	const struct wire_attach_reply *reply = &call.reply.attach;
	int r;

	if (!b)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	list_init(&b->link);
	b->name = strdup(attach->name);
	b->device = strdup(attach->device);
	if (!b->name || !b->device)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	r = client_call(w, &call);
	if (r < 0)
		return r;
	b->lease = reply->lease;
	b->id = reply->buffer;
	b->version = reply->version;
	b->data_size = reply->data_size;
	b->has_digest = reply->flags & WIRE_VERSION_DIGEST;
	b->is_mutable = reply->flags & WIRE_VERSION_MUTABLE;
	memcpy(b->layout_hash, reply->layout_hash, HASH_SIZE);
	memcpy(b->digest, reply->digest, HASH_SIZE);
	b->w = client_ref(w);
	r = map_all(b, over, &call);
	client_call_deinit(&call); /* the mappings keep the files */
	if (r < 0) {
		client_end(w, WIRE_DETACH, b->lease);
		return r;
	}
	list_append(&w->buffers, &b->link);
	*ret = take_ptr(b);
	return 0;
}

int buffer_renew(struct weightd_buffer *b, const struct restart_patience *p)
{
	struct client_call call = {.op = WIRE_RENEW, .tick = p->tick, .userdata = p->userdata};
	int r;

	if (b->lease == 0)
		return 0;
	call.request.renew.buffer = b->id;
	call.request.renew.version = b->version;
	r = client_ask(b->w, &call);
	if (b->w->fd < 0)
		return r; /* to be tried again, on the next connection */
	/* Refused: it is mapped, and can be read for as long as it is, but nobody counts on that. */
	b->lease = r == 0 ? call.reply.renew.lease : 0;
	return 0;
}

int weightd_attach(struct weightd *w, const char *name,
		   const struct weightd_attach_options *options, struct weightd_buffer **ret)
{
	struct weightd_attach_options o = {0};
	struct wire_attach attach = {0};
	uint64_t deadline = 0;
	bool is_updated;
	int r;

	if (options) {
		r = client_copy_options(w, options, offsetof(struct weightd_attach_options, version),
					&o, sizeof(o));
		if (r < 0)
			return r;
	}
	r = client_put_target(w, name, o.device, attach.name, attach.device);
	if (r < 0)
		return r;
	attach.version = o.version;
	if (o.layout_hash) {
		attach.flags = WIRE_ATTACH_CHECK_LAYOUT;
		memcpy(attach.layout_hash, o.layout_hash, HASH_SIZE);
	}
	if (o.timeout_ms > 0)
		deadline = num_now_ns() + (uint64_t)o.timeout_ms * 1000000;
	/* What was waited for may be gone before it is attached: then once more, up to the deadline. */
	for (;;) {
		uint64_t now;
		int left_ms = -1;

		r = attach_once(w, &attach, NULL, deadline, ret);
		is_updated = r == -EAGAIN;
		if (o.timeout_ms == 0 || (r != -ENODATA && r != -ENOENT && !is_updated))
			return r;
		now = num_now_ns();
		if (o.timeout_ms > 0)
			left_ms = now < deadline ? (int)((deadline - now) / 1000000) : 0;
		r = weightd_wait(w, attach.name, attach.device, attach.version, left_ms, NULL);
		if (r < 0)
			return r;
		/* -ENOENT: the buffer is past it. */
		if (attach.version && !is_updated)
			return attach_once(w, &attach, NULL, deadline, ret);
	}
}

void weightd_detach(struct weightd_buffer *b)
{
	if (!b)
		return;
	/* Unmapped first: when the server frees the version nobody is left who maps it. */
	memory_unmap(&b->memory);
	client_end(b->w, WIRE_DETACH, b->lease);
	buffer_free(b);
}

const char *weightd_buffer_name(const struct weightd_buffer *b)
{
	return b->name;
}

const char *weightd_buffer_device(const struct weightd_buffer *b)
{
	return b->device;
}

uint64_t weightd_buffer_version(const struct weightd_buffer *b)
{
	return b->version;
}

const void *weightd_buffer_data(const struct weightd_buffer *b, uint64_t *ret_size)
{
	if (ret_size)
		*ret_size = b->data_size;
	return b->memory.data;
}

const uint8_t *weightd_buffer_layout_hash(const struct weightd_buffer *b)
{
	return b->layout_hash;
}

const uint8_t *weightd_buffer_digest(const struct weightd_buffer *b)
{
	return b->has_digest ? b->digest : NULL;
}

uint32_t weightd_buffer_n_tensors(const struct weightd_buffer *b)
{
	return b->layout.header->n_tensors;
}

int weightd_buffer_tensor(const struct weightd_buffer *b, uint32_t index, struct weightd_tensor *ret)
{
	return tensor_get(&b->layout, b->memory.data, index, ret);
}

int weightd_buffer_find(const struct weightd_buffer *b, const char *name, struct weightd_tensor *ret)
{
	return tensor_find(&b->layout, b->memory.data, name, ret);
}

static int request_current(struct weightd_buffer *b, struct wire_attach *ret)
{
	*ret = (struct wire_attach){.buffer = b->id};
	return client_put_target(b->w, b->name, b->device, ret->name, ret->device);
}

/* 1: there is another current version than the one attached. */
static int is_outdated(struct weightd_buffer *b)
{
	uint64_t current;
	int r = weightd_buffer_latest(b, &current);

	if (r < 0)
		return sentence_set(&b->w->sentence, r, "'%s' on %s was removed", b->name,
				    b->device);
	return current != b->version;
}

int weightd_buffer_refresh(struct weightd_buffer *b, struct weightd_buffer **ret)
{
	struct wire_attach attach;
	int r = is_outdated(b);

	if (r <= 0)
		return r;
	r = request_current(b, &attach);
	if (r == 0)
		r = attach_once(b->w, &attach, NULL, 0, ret);
	return r < 0 ? r : 1;
}

/* Takes over what `n` has attached in our memory's place, and ends with `n` what there was before. */
static void become(struct weightd_buffer *b, struct weightd_buffer *n)
{
	uint64_t lease = b->lease;

	b->lease = n->lease;
	b->version = n->version;
	b->has_digest = n->has_digest;
	b->was_evicted = false;
	memcpy(b->digest, n->digest, HASH_SIZE);
	/* Tensors point into the layout that `b` has, which is equal; the head page is the same. */
	n->lease = lease;
	weightd_detach(n);
}

int buffer_swap_until(struct weightd_buffer *b, uint64_t deadline_ns)
{
	struct weightd_buffer *n;
	struct wire_attach attach;
	int r = b->memory.is_mapped ? is_outdated(b) : 1;

	if (r <= 0)
		return r;
	r = request_current(b, &attach);
	if (r < 0)
		return r;
	attach.flags = WIRE_ATTACH_CHECK_LAYOUT;
	memcpy(attach.layout_hash, b->layout_hash, HASH_SIZE);
	r = attach_once(b->w, &attach, b, deadline_ns, &n);
	if (r < 0)
		return r;
	become(b, n);
	return 1;
}

int weightd_buffer_swap(struct weightd_buffer *b)
{
	return buffer_swap_until(b, 0);
}

/* The digests of leaves [first, first + n) that were published and those of the bytes that there are. */
static int verify_run(struct weightd_buffer *b, uint64_t first, uint64_t n,
		      const uint8_t (*published)[HASH_SIZE], uint8_t (*found)[HASH_SIZE])
{
	struct sentence *s = &b->w->sentence;
	int r = memory_digest(&b->memory, b->data_size, first, n, found, s);

	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be digested: %s", b->name,
				    b->version, b->device, s->text);
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(found[i], published[first + i], HASH_SIZE) != 0)
			return sentence_set(s, -EILSEQ,
					    "'%s@%" PRIu64 "' on %s: the bytes from %" PRIu64
					    " to %" PRIu64 " are not those published",
					    b->name, b->version, b->device,
					    (first + i) * DIGEST_LEAF_SIZE,
					    (first + i + 1) * DIGEST_LEAF_SIZE);
	return 0;
}

static int read_leaves(struct weightd_buffer *b, uint64_t n, uint8_t (*ret)[HASH_SIZE])
{
	struct sentence *s = &b->w->sentence;
	uint8_t hash[HASH_SIZE];
	int r = memory_read(&b->memory, digest_leaves_offset(b->data_size), ret, n * HASH_SIZE, s);

	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be read: %s", b->name,
				    b->version, b->device, s->text);
	digest_root((const void *)ret, n, hash);
	if (memcmp(hash, b->digest, HASH_SIZE) != 0)
		return sentence_set(s, -EILSEQ,
				    "'%s@%" PRIu64
				    "' on %s: its table of digests is not the one published",
				    b->name, b->version, b->device);
	return 0;
}

static int verify(struct weightd_buffer *b)
{
	uint64_t n = digest_n_leaves(b->data_size);
	cleanup(freep) uint8_t(*leaves)[HASH_SIZE] = NULL;
	uint8_t found[VERIFY_LEAVES][HASH_SIZE];
	int r;

	if (!b->has_digest)
		return sentence_set(&b->w->sentence, -ENODATA,
				    "'%s@%" PRIu64 "' on %s was published without a digest",
				    b->name, b->version, b->device);
	leaves = calloc(n + 1, sizeof(*leaves));
	if (!leaves)
		return sentence_set(&b->w->sentence, -ENOMEM, "out of memory");
	r = read_leaves(b, n, leaves);
	for (uint64_t i = 0; r == 0 && i < n; i += VERIFY_LEAVES)
		r = verify_run(b, i, n - i < VERIFY_LEAVES ? n - i : VERIFY_LEAVES,
			       (const void *)leaves, found);
	return r;
}

int weightd_buffer_verify(struct weightd_buffer *b)
{
	uint64_t ticket;
	int r;

	if (!b->is_mutable)
		return verify(b);
	r = weightd_read_begin(b, &ticket);
	if (r == -EUCLEAN || r == -ESTALE)
		return sentence_set(&b->w->sentence, r, "'%s' on %s %s", b->name, b->device,
				    r == -ESTALE ? "was removed" : "is torn");
	if (r == 0 && head_version(ticket) == b->version) {
		r = verify(b);
		if (!weightd_read_retry(b, ticket))
			return r;
	}
	/* Another version's bytes say nothing about the digest of this one. */
	return sentence_set(&b->w->sentence, -EAGAIN,
			    "'%s' on %s is not at version %" PRIu64
			    " any more: it is updated in place",
			    b->name, b->device, b->version);
}
