/*
 * An attached version: three read-only mappings and a lease. What only looks at them needs neither the
 * connection nor a lock, since nothing in them changes but the head page, which is made for that.
 */
#include "libclient/buffer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/mapping.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "libclient/connection/connection.h"
#include "libclient/connection/restart.h"
#include "libclient/cuda/gpu.h"
#include "libclient/files.h"
#include "libclient/owner.h"
#include "libclient/target.h"
#include "libclient/version/difference.h"
#include "libclient/version/tensor.h"
#include "libclient/version_layout.h"

static_assert(WEIGHTD_LEAF_SIZE == DIGEST_LEAF_SIZE && WEIGHTD_DIGEST_SIZE == HASH_SIZE,
	      "digest sizes are ABI");

static struct weightd_buffer *buffer_free(struct weightd_buffer *b)
{
	list_remove(&b->held.link);
	guard_remove(&b->guarded);
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

void buffer_end(struct weightd_buffer *b)
{
	guard_remove(&b->guarded);
	/* Unmapped first: the server then frees a version that no process maps. */
	memory_unmap(&b->memory);
	client_end(b->w, WIRE_DETACH, b->lease);
	buffer_free(b);
}

/* A lease again; none when the server will not give one. */
static int buffer_resume(struct held *h, const struct restart_patience *p)
{
	struct weightd_buffer *b = container_of(h, struct weightd_buffer, held);
	struct client_call call = {.op = WIRE_RENEW, .tick = p->tick, .userdata = p->userdata};
	int r;

	if (b->lease == 0)
		return 0;
	call.request.renew.buffer = b->id;
	call.request.renew.version = b->version;
	r = client_ask(b->w, &call);
	if (b->w->fd < 0)
		return r; /* to be tried again, on the next connection */
	/* Refused: the mapping stays readable, but without a lease the server may free the version. */
	b->lease = r == 0 ? call.reply.renew.lease : 0;
	return 0;
}

static void buffer_forget(struct held *h)
{
	container_of(h, struct weightd_buffer, held)->lease = 0;
}

static bool buffer_leave(struct held *h, bool wait)
{
	struct weightd_buffer *b = container_of(h, struct weightd_buffer, held);

	if (!b->is_leaving || !memory_has_passed(&b->memory, wait))
		return false;
	buffer_end(b);
	return true;
}

static const struct held_ops buffer_held_ops = {buffer_resume, buffer_forget, buffer_leave};

/* The version has the layout, and yet cannot take the place of the one that is attached. The sentence is set. */
#define ATTACH_MISPLACED 1

/* A file shorter than the server's size would fault on reading. */
static int check_size(int fd, uint64_t size)
{
	uint64_t file_size;
	int r = fd_size(fd, &file_size);

	return r == 0 && file_size < size ? -EBADMSG : r;
}

/* True for the size that the slot has in its form. */
static bool is_slot_size(const struct wire_attach_reply *reply)
{
	if (reply->data_size > DIGEST_DATA_MAX)
		return false;
	if (!(reply->flags & WIRE_VERSION_IMAGE))
		return reply->slot_size == digest_slot_size(reply->data_size);
	return reply->location.memory == WIRE_MEMORY_HOST && reply->slot_size > reply->data_size &&
	       reply->slot_size - reply->data_size <= WIRE_DATA_OFFSET_MAX;
}

static int map_tables(struct weightd_buffer *b, const int fds[2])
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
	if (!head_ok(b->head, b->id) || b->layout.header->data_size != b->data_size)
		return -EBADMSG;
	return 0;
}

/* The slot from the first byte of the data on. */
static struct memory_request slot_request(const struct attaching *a, const struct client_call *call)
{
	const struct wire_attach_reply *reply = &call->reply.attach;
	struct memory_request q = {
		.location = reply->location,
		.size = reply->slot_size,
		.access = MEMORY_READ,
		.fd = call->reply_fds[2],
		.device = a->map_device,
		.stream = a->stream,
	};

	if (reply->flags & WIRE_VERSION_IMAGE) {
		q.offset = reply->slot_size - reply->data_size;
		q.size = reply->data_size;
	}
	return q;
}

/* Pointers stay valid only if the data have the same place in a page. */
static int refuse_place(const struct weightd_buffer *b, const struct weightd_buffer *over,
			uint64_t offset)
{
	return sentence_set(&b->w->sentence, ATTACH_MISPLACED,
			    "the data of '%s@%" PRIu64 "' on %s begin at byte %" PRIu64
			    " of its memory, those of version %" PRIu64 " at byte %" PRIu64
			    ", which is another place in a page; attach anew",
			    b->name, b->version, b->device, offset, over->version,
			    over->memory.offset);
}

static int map_all(struct weightd_buffer *b, const struct attaching *a,
		   const struct client_call *call)
{
	const struct memory_request q = slot_request(a, call);
	struct sentence *s = &b->w->sentence;
	int r = is_slot_size(&call->reply.attach) ? map_tables(b, call->reply_fds) : -EBADMSG;

	if (r == 0 && a->over && !memory_is_congruent(&a->over->memory, q.offset))
		return refuse_place(b, a->over, q.offset);
	if (r < 0)
		(void)sentence_set(s, r, "%s", strerror(-r));
	else if (a->over)
		r = memory_replace(&a->over->memory, &q, s);
	else
		r = memory_map(&b->memory, &q, s);
	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be mapped: %s", b->name,
				    b->version, b->device, s->text);
	return 0;
}

static int give_descriptor(const struct weightd_buffer *b, int *fd, int *ret_fd)
{
	if (!memory_has_descriptor(&b->memory))
		return sentence_set(&b->w->sentence, -EOPNOTSUPP,
				    "'%s' on %s is cuda-ipc memory, which has no descriptor",
				    b->name, b->device);
	*ret_fd = take_fd(*fd);
	return 0;
}

/* Sends the request, on a new connection if there is none and the caller wants one. */
static int attach_ask(struct weightd *w, const struct attaching *a, struct client_call *call)
{
	bool has_owner = a->attach.flags & WIRE_ATTACH_OWNER;
	int r = -ENOTCONN;

	if (!a->connects || w->fd >= 0 || client_awaits_restart(w))
		r = client_call_run(w, call);
	if (r != -ENOTCONN || !a->connects)
		return r;
	r = connection_attach(w, a->socket, call);
	if (r != CONNECTION_ONLY)
		return r;
	r = owner_check_server(w, has_owner ? &a->attach.owner : NULL);
	return r < 0 ? r : client_call_run(w, call);
}

/* Without memory when what was asked for took the place of what `over` had. Or ATTACH_MISPLACED. */
static int attach_once(struct weightd *w, const struct attaching *a, struct weightd_buffer **ret)
{
	const struct wire_attach *attach = &a->attach;
	cleanup(buffer_freep) struct weightd_buffer *b = calloc(1, sizeof(*b));
	struct client_call call = {
		.op = WIRE_ATTACH,
		.deadline_ns = a->deadline_ns,
		.again = attach->flags & WIRE_ATTACH_OWNER ? owner_again : NULL,
		.request.attach = *attach,
	};
	const struct wire_attach_reply *reply = &call.reply.attach;
	int r;

	if (!b)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	list_init(&b->held.link);
	b->held.ops = &buffer_held_ops;
	b->map_device = a->map_device;
	b->name = strdup(attach->name);
	b->device = strdup(attach->device);
	if (!b->name || !b->device)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	r = attach_ask(w, a, &call);
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
	b->uid = reply->uid;
	b->has_uid = w->has_owners;
	b->has_owner = attach->flags & WIRE_ATTACH_OWNER;
	b->owner = attach->owner;
	b->w = client_ref(w);
	r = map_all(b, a, &call);
	if (r == 0 && a->ret_fd)
		r = give_descriptor(b, &call.reply_fds[2], a->ret_fd);
	client_call_deinit(&call); /* the mappings keep the files */
	if (r != 0) {
		client_end(w, WIRE_DETACH, b->lease);
		return r;
	}
	list_append(&w->buffers, &b->held.link);
	if (!a->over)
		guard_add(&b->guarded, b->name, &b->version, &b->layout, &b->memory);
	*ret = take_ptr(b);
	return 0;
}

/* Takes over what `n` has attached in our memory's place, and ends with `n` what there was before. */
static void buffer_become(struct weightd_buffer *b, struct weightd_buffer *n)
{
	uint64_t lease = b->lease;

	b->lease = n->lease;
	b->version = n->version;
	b->has_digest = n->has_digest;
	b->uid = n->uid;
	b->has_uid = n->has_uid;
	b->was_evicted = false;
	b->is_asleep = false;
	memcpy(b->digest, n->digest, HASH_SIZE);
	/* Tensors point into the layout that `b` has, which is equal; the head page is the same. */
	n->lease = lease;
	buffer_end(n);
}

/*
 * Explains why the current version cannot replace the mapped memory: by the tensors that differ, if the server sends
 * them.
 */
static int explain_layout(struct weightd_buffer *b)
{
	cleanup(version_layout_deinit) struct version_layout other = {0};
	struct sentence *s = &b->w->sentence, said = *s;
	uint64_t current = head_version(head_current(b->head));
	char text[SENTENCE_MAX], here[32], there[32];
	/* The sentence around it takes less than 100 bytes beside the names. */
	size_t room = sizeof(text) - 100 - strlen(b->name) - strlen(b->device);
	struct difference d;
	int r;

	if (!b->w->sends_layouts)
		return -EPROTOTYPE; /* with the sentence of the server, which is older than this library */
	r = version_layout_init(&other, b->w, b->name, b->device, current);
	if (r == 0)
		r = difference_find(&other.layout, &b->layout, &d);
	if (r < 0) {
		*s = said;
		return -EPROTOTYPE;
	}
	if (r == 0)
		return sentence_set(s, -EPROTOTYPE,
				    "'%s@%" PRIu64 "' on %s has the tensors of version %" PRIu64
				    " in another order; attach anew",
				    b->name, other.version, b->device, b->version);
	(void)snprintf(here, sizeof(here), "version %" PRIu64, b->version);
	(void)snprintf(there, sizeof(there), "version %" PRIu64, other.version);
	difference_describe(&d, &other.layout, &b->layout, there, here, text, room);
	return sentence_set(s, -EPROTOTYPE, "the tensors of '%s' on %s differ (%s); attach anew",
			    b->name, b->device, text);
}

int buffer_attach(struct weightd *w, const struct attaching *a, struct weightd_buffer **ret)
{
	int r = attach_once(w, a, ret);

	if (r == ATTACH_MISPLACED)
		return -EPROTOTYPE;
	if (r == -EPROTOTYPE && a->over)
		return explain_layout(a->over);
	if (r == 0 && a->over) {
		buffer_become(a->over, *ret);
		*ret = a->over;
	}
	return r;
}

/* The GPU that is to map it, which is this process's own business. */
static int choose_map_device(struct weightd *w, const char *spelling, struct attaching *a)
{
	const struct cuda_driver *d;
	struct sentence *s = &w->sentence;
	int r;

	if (!spelling)
		return 0;
	if (!strcmp(a->attach.device, "host"))
		return sentence_set(s, -EINVAL,
				    "'%s' on host cannot be mapped by a GPU; name the buffer's "
				    "GPU (device)",
				    a->attach.name);
	r = gpu_driver(&d, s);
	if (r == 0)
		r = gpu_number(d, spelling, &a->map_device, s);
	return r < 0 ? sentence_set(s, r, "'%s' cannot be mapped on '%.64s': %s", a->attach.name,
				    spelling, s->text)
		     : 0;
}

static int start_attaching(struct weightd *w, const char *name,
			   const struct weightd_attach_options *o, struct attaching *ret)
{
	struct wire_attach *attach = &ret->attach;
	int r;

	*ret = (struct attaching){.map_device = -1, .connects = o->connect, .socket = o->socket};
	/* A server that takes the request with a hello checks owners. */
	r = owner_check_server(w, o->connect && w->fd < 0 ? NULL : o->owner);
	if (r == 0)
		r = client_put_target(w, name, o->device, attach->name, attach->device);
	if (r < 0)
		return r;
	if (o->owner) {
		attach->flags = WIRE_ATTACH_OWNER;
		attach->owner = *o->owner;
	}
	attach->version = o->version;
	if (o->layout_hash) {
		attach->flags |= WIRE_ATTACH_CHECK_LAYOUT;
		memcpy(attach->layout_hash, o->layout_hash, HASH_SIZE);
	}
	if (o->timeout_ms > 0)
		ret->deadline_ns = num_now_ns() + (uint64_t)o->timeout_ms * 1000000;
	ret->ret_fd = o->ret_fd;
	return choose_map_device(w, o->map_device, ret);
}

/* The version may be gone again before it is attached: retry, up to the deadline. */
static int attach_in_time(struct weightd *w, const struct attaching *a, int timeout_ms,
			  struct weightd_buffer **ret)
{
	bool is_updated;
	int r;

	for (;;) {
		uint64_t now;
		int left_ms = -1;

		r = buffer_attach(w, a, ret);
		is_updated = r == -EAGAIN;
		if (timeout_ms == 0 || (r != -ENODATA && r != -ENOENT && !is_updated))
			return r;
		now = num_now_ns();
		if (timeout_ms > 0)
			left_ms = now < a->deadline_ns ? (int)((a->deadline_ns - now) / 1000000) : 0;
		r = weightd_wait(w, a->attach.name, a->attach.device, a->attach.version, left_ms,
				 NULL);
		if (r < 0)
			return r;
		/* -ENOENT: the buffer is past it. */
		if (a->attach.version && !is_updated)
			return buffer_attach(w, a, ret);
	}
}

int weightd_attach(struct weightd *w, const char *name,
		   const struct weightd_attach_options *options, struct weightd_buffer **ret)
{
	struct weightd_attach_options o = {0};
	cleanup(fd_closep) int fd = -1;
	struct weightd_buffer *b = NULL;
	struct attaching a;
	int r;

	if (options) {
		r = client_copy_options(w, options, offsetof(struct weightd_attach_options, version),
					&o, sizeof(o));
		if (r < 0)
			return r;
	}
	r = start_attaching(w, name, &o, &a);
	a.ret_fd = o.ret_fd ? &fd : NULL;
	if (r == 0)
		r = attach_in_time(w, &a, o.timeout_ms, &b);
	if (r < 0)
		return r;
	r = files_require(w, b->name, b->device, b->version, o.require, o.n_require);
	if (r < 0) {
		weightd_detach(b);
		return r;
	}
	r = o.ret_attached ? weightd_buffer_attached(b, o.ret_attached) : 0;
	if (r < 0) {
		weightd_detach(b);
		return sentence_set(&w->sentence, r,
				    "a struct weightd_attached has no size (set .size)");
	}
	if (o.ret_fd)
		*o.ret_fd = take_fd(fd);
	*ret = b;
	return 0;
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

int weightd_buffer_owner(const struct weightd_buffer *b, uint32_t *ret_uid)
{
	if (!b->has_uid)
		return -EOPNOTSUPP;
	*ret_uid = b->uid;
	return 0;
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

const void *weightd_buffer_layout_image(const struct weightd_buffer *b, uint64_t *ret_size)
{
	if (ret_size)
		*ret_size = b->image_size;
	return b->image;
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

int buffer_request_current(struct weightd_buffer *b, struct wire_attach *ret)
{
	int r = owner_check_server(b->w, b->has_owner ? &b->owner : NULL);

	*ret = (struct wire_attach){
		.buffer = b->id,
		.flags = b->has_owner ? WIRE_ATTACH_OWNER : 0,
		.owner = b->owner,
	};
	return r < 0 ? r : client_put_target(b->w, b->name, b->device, ret->name, ret->device);
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
	struct attaching a = {.map_device = b->map_device};
	struct sentence *s = &b->w->sentence;
	int r = is_outdated(b);

	/* Nothing newer, and what there is is no more. */
	if (r == 0 && b->memory.is_mapped) {
		r = memory_check(&b->memory, s);
		if (r < 0)
			return sentence_set(s, r, "'%s@%" PRIu64 "' on %s: %s", b->name, b->version,
					    b->device, s->text);
	}
	if (r <= 0)
		return r;
	r = buffer_request_current(b, &a.attach);
	if (r == 0)
		r = buffer_attach(b->w, &a, ret);
	return r < 0 ? r : 1;
}

int buffer_swap_until(struct weightd_buffer *b, void *stream, uint64_t deadline_ns)
{
	struct attaching a = {
		.over = b,
		.stream = stream,
		.map_device = b->map_device,
		.deadline_ns = deadline_ns,
	};
	int r = b->memory.is_mapped ? is_outdated(b) : 1;

	if (r <= 0)
		return r;
	r = buffer_request_current(b, &a.attach);
	if (r < 0)
		return r;
	a.attach.flags |= WIRE_ATTACH_CHECK_LAYOUT;
	memcpy(a.attach.layout_hash, b->layout_hash, HASH_SIZE);
	r = buffer_attach(b->w, &a, &b);
	return r < 0 ? r : 1;
}

int weightd_buffer_swap_on(struct weightd_buffer *b, void *stream)
{
	if (b->is_asleep)
		return sentence_set(&b->w->sentence, -EADDRNOTAVAIL,
				    "'%s' on %s is asleep; wake it first "
				    "(weightd_buffer_reacquire())",
				    b->name, b->device);
	return buffer_swap_until(b, stream, 0);
}

int weightd_buffer_swap(struct weightd_buffer *b)
{
	return weightd_buffer_swap_on(b, WEIGHTD_ALL_STREAMS);
}
