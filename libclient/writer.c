/*
 * An unpublished version: the slot mapped writable, by this process alone. Publishing replaces the mapping in place
 * by one of a read-only descriptor, because the kernel seals the memory only when no writable mapping exists.
 * Pointers into it, and numpy and torch views on them, stay valid.
 */
#include "libclient/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/mapping.h"
#include "ipc/digest.h"
#include "libclient/buffer.h"
#include "libclient/connection/call.h"
#include "libclient/connection/restart.h"
#include "libclient/version/holders.h"
#include "libclient/version/tensor.h"
#include "libclient/writer_check.h"
#include "weightd.h"

static void writer_lose(struct weightd_writer *wr, const char *why)
{
	wr->lost = true;
	wr->id = 0;
	(void)sentence_set(&wr->why_lost, 0, "%s", why);
}

/* The connection it belongs to is another one now. */
static void writer_forget(struct held *h)
{
	struct weightd_writer *wr = container_of(h, struct weightd_writer, held);

	if (wr->version || wr->committed)
		wr->id = 0;
	else if (!wr->aborted && wr->owner == getpid())
		writer_lose(wr, "it was reconnected");
}

static int writer_renew(struct weightd_writer *wr, struct client_call *call)
{
	int r;

	call->op = WIRE_RENEW;
	call->request.renew.buffer = wr->buffer;
	call->request.renew.version = wr->version ? wr->version : wr->committed;
	r = client_ask(wr->w, call);
	if (wr->w->fd < 0)
		return r;
	wr->id = r == 0 ? call->reply.renew.lease : 0;
	return 0;
}

/* Takes it up on a new connection; or learns that it was published, or that it is lost. */
static int writer_resume(struct held *h, const struct restart_patience *p)
{
	struct weightd_writer *wr = container_of(h, struct weightd_writer, held);
	struct client_call call = {.tick = p->tick, .userdata = p->userdata};
	int r;

	if (wr->id == 0 || wr->aborted || wr->owner != getpid())
		return 0;
	if (wr->version || wr->committed)
		return writer_renew(wr, &call);
	call.op = WIRE_RESUME;
	call.request.resume.id = wr->id;
	r = client_ask(wr->w, &call);
	if (wr->w->fd < 0)
		return r;
	if (r < 0)
		writer_lose(wr, wr->w->sentence.text);
	else
		wr->committed = call.reply.resume.version;
	return 0;
}

static const struct held_ops writer_held_ops = {writer_resume, writer_forget, NULL};

struct weightd_writer *client_writer_new(struct weightd *w)
{
	struct weightd_writer *wr = calloc(1, sizeof(*wr));

	if (!wr)
		return NULL;
	list_init(&wr->held.link);
	wr->held.ops = &writer_held_ops;
	wr->w = client_ref(w);
	wr->fd = -1;
	wr->reader_fd = -1;
	wr->digests_fd = -1;
	wr->files_fd = -1;
	return wr;
}

struct weightd_writer *client_writer_free(struct weightd_writer *wr)
{
	list_remove(&wr->held.link);
	guard_remove(&wr->guarded);
	memory_unmap(&wr->memory);
	mapping_free(wr->image, wr->image_size);
	adoption_deinit(&wr->adoption);
	(void)fd_close(wr->fd);
	(void)fd_close(wr->reader_fd);
	(void)fd_close(wr->digests_fd);
	(void)fd_close(wr->files_fd);
	free(wr->header);
	free(wr->leaf_done);
	free(wr->digests);
	client_unref(wr->w);
	free(wr);
	return NULL;
}

static struct memory_request request_of(const struct weightd_writer *wr, enum memory_access access)
{
	return (struct memory_request){
		.location = wr->memory.location,
		.offset = wr->memory.offset,
		.size = wr->memory.size,
		.access = access,
		.fd = access == MEMORY_WRITE ? wr->fd : wr->reader_fd,
		.device = -1,
	};
}

/* The bytes in front of the data are the header that was asked with. */
static bool is_slot_size(const struct weightd_writer *wr, uint64_t size)
{
	if (wr->data_size != wr->layout.header->data_size || wr->data_size > DIGEST_DATA_MAX)
		return false;
	return size ==
	       (wr->header ? wr->header_size + wr->data_size : digest_slot_size(wr->data_size));
}

/* Room for the digests of all leaves, and in front of them for that of the header. */
static int new_digests(struct weightd_writer *wr)
{
	wr->n_leaves = digest_n_leaves(wr->data_size);
	wr->leaf_done = calloc(wr->n_leaves + 1, sizeof(*wr->leaf_done));
	wr->digests = calloc(wr->n_leaves + 1, sizeof(*wr->digests));
	if (!wr->leaf_done || !wr->digests)
		return -ENOMEM;
	wr->leaves = wr->digests + 1;
	return 0;
}

static int take_slot(struct weightd_writer *wr, struct client_call *call)
{
	const struct wire_create_reply *reply = &call->reply.create;
	const struct memory_request q = {
		.location = reply->location,
		.offset = wr->header_size,
		.size = wr->header ? reply->data_size : reply->slot_size,
		.access = MEMORY_WRITE,
		.fd = call->reply_fds[0],
		.device = -1,
	};
	struct sentence *s = &wr->w->sentence;

	wr->id = reply->writer;
	wr->buffer = reply->buffer;
	wr->owner = getpid();
	wr->data_size = reply->data_size;
	wr->slot_size = reply->slot_size;
	wr->provided = reply->n_parts ? reply->n_parts * WIRE_PART_SIZE : reply->slot_size;
	wr->fd = take_fd(call->reply_fds[0]);
	wr->reader_fd = take_fd(call->reply_fds[1]);
	if (wr->header)
		wr->digests_fd = take_fd(call->reply_fds[2]);
	if (!is_slot_size(wr, reply->slot_size) ||
	    (reply->n_parts && !(call->request.create.flags & WIRE_CREATE_EARLY)))
		return sentence_set(s, -EBADMSG, "%s", strerror(EBADMSG));
	if (new_digests(wr) < 0)
		return sentence_set(s, -ENOMEM, "out of memory");
	return memory_map(&wr->memory, &q, s);
}

int writer_begin(struct weightd_writer *wr, struct client_call *call)
{
	const struct wire_create *create = &call->request.create;
	struct weightd *w = wr->w;
	int r = take_slot(wr, call);

	if (r < 0) {
		client_end(w, WIRE_ABORT, wr->id);
		return sentence_set(&w->sentence, r, "the memory of '%s' cannot be mapped: %s",
				    create->name, w->sentence.text);
	}
	list_append(&w->writers, &wr->held.link);
	memcpy(wr->name, create->name, sizeof(wr->name));
	memcpy(wr->device, create->device, sizeof(wr->device));
	guard_add(&wr->guarded, wr->name, &wr->version, &wr->layout, &wr->memory);
	return 0;
}

static int provide_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_writer *wr = call->subject;

	(void)w;
	return wr->lost ? writer_say_lost(wr) : 0;
}

int writer_provide(struct weightd_writer *wr, uint64_t until, int (*tick)(void *userdata),
		   void *userdata)
{
	struct client_call call = {
		.op = WIRE_PROVIDE,
		.timeout_ms = -1,
		.tick = tick,
		.userdata = userdata,
		.again = provide_again,
		.subject = wr,
		.request.provide = {wr->id, until},
	};
	int r = client_call_run(wr->w, &call);

	if (r < 0)
		return r;
	if (call.reply.provide.done < wr->provided || call.reply.provide.done > wr->slot_size)
		return sentence_set(&wr->w->sentence, -EBADMSG, "%s", strerror(EBADMSG));
	wr->provided = call.reply.provide.done;
	return 0;
}

static int abort_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_writer *wr = call->subject;

	if (wr->committed)
		return sentence_set(&w->sentence, -EALREADY, "this writer has published already");
	return wr->lost;
}

int weightd_writer_abort(struct weightd_writer *wr)
{
	struct client_call call = {
		.op = WIRE_ABORT,
		.again = abort_again,
		.subject = wr,
		.request.abort.id = wr->id,
	};
	int r;

	if (wr->version || wr->committed || wr->aborted)
		return sentence_set(&wr->w->sentence, -EALREADY,
				    "this writer has published or was aborted already");
	r = wr->lost ? 0 : client_call_run(wr->w, &call);
	/* The version ended with its connection in any case. */
	if (r < 0 && r != -ENOTCONN && r != -ENOENT)
		return r;
	wr->aborted = true;
	return 0;
}

/* On the server. Of a writer a restarted one would keep the memory for a while, for us to resume it. */
static void writer_detach(struct weightd_writer *wr)
{
	struct sentence saved = wr->w->sentence;

	if (!wr->version && !wr->committed && !wr->aborted && wr->w->fd >= 0)
		(void)weightd_writer_abort(wr);
	if (!wr->aborted)
		client_end(wr->w, WIRE_DETACH, wr->id);
	wr->w->sentence = saved;
}

void weightd_writer_free(struct weightd_writer *wr)
{
	struct sentence ignored; /* after a failure nothing runs any more */

	if (!wr)
		return;
	/* A child inherits the mapping of a published version, not that of an unpublished one. */
	if (wr->version || wr->owner == getpid()) {
		(void)memory_synchronize(&wr->memory, WEIGHTD_ALL_STREAMS, &ignored);
		guard_remove(&wr->guarded);
		memory_unmap(&wr->memory);
	}
	wr->memory = (struct memory){0};
	writer_detach(wr);
	client_writer_free(wr);
}

void *weightd_writer_data(const struct weightd_writer *wr, uint64_t *ret_size)
{
	if (ret_size)
		*ret_size = wr->data_size;
	return wr->memory.data;
}

int weightd_writer_fd(const struct weightd_writer *wr, int *ret_fd)
{
	struct sentence *s = &wr->w->sentence;
	int fd, r;

	if (!memory_has_descriptor(&wr->memory))
		return sentence_set(s, -EOPNOTSUPP,
				    "the bytes are cuda-ipc memory, which has no descriptor");
	r = writer_check_open(wr);
	if (r < 0)
		return r;
	fd = fcntl(wr->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return sentence_set(s, -errno,
				    "the descriptor of the bytes cannot be duplicated: %s",
				    strerror(errno));
	*ret_fd = fd;
	return 0;
}

uint32_t weightd_writer_n_tensors(const struct weightd_writer *wr)
{
	return wr->layout.header->n_tensors;
}

/*
 * With the memory of the tensor that the given layout ties it to; by the name `alias` that only
 * that one has.
 */
static int get_tied(const struct weightd_writer *wr, uint32_t index, uint32_t home,
		    const struct layout_tensor *alias, struct weightd_tensor *ret)
{
	const struct layout *given = &wr->adoption.given;
	struct weightd_tensor t = {.size = sizeof(t)}, at = {.size = sizeof(at)};
	int r = tensor_get(&wr->layout, wr->memory.data, index, ret); /* checks ret->size */

	if (r == 0)
		r = tensor_get(&wr->layout, wr->memory.data, index, &t);
	if (r == 0)
		r = tensor_get(&wr->layout, wr->memory.data, home, &at);
	if (r < 0)
		return r;
	t.size = ret->size;
	t.data = at.data;
	t.offset = at.offset;
	t.tied_to = home;
	if (alias) {
		t.name = layout_tensor_name(given, alias);
		t.unit = layout_tensor_unit(given, alias);
	}
	memcpy(ret, &t, ret->size);
	return 0;
}

int weightd_writer_tensor(const struct weightd_writer *wr, uint32_t index,
			  struct weightd_tensor *ret)
{
	uint32_t home;

	if (!wr->adoption.tied || index >= wr->layout.header->n_tensors)
		return tensor_get(&wr->layout, wr->memory.data, index, ret);
	home = adoption_home(&wr->adoption, index);
	return home == index ? tensor_get(&wr->layout, wr->memory.data, index, ret)
			     : get_tied(wr, index, home, NULL, ret);
}

int weightd_writer_find(const struct weightd_writer *wr, const char *name,
			struct weightd_tensor *ret)
{
	const struct layout_tensor *alias;
	uint32_t index;

	if (layout_find(&wr->layout, name, strlen(name), &index) == 0)
		return weightd_writer_tensor(wr, index, ret);
	if (adoption_find(&wr->adoption, name, strlen(name), &index, &alias) == 0)
		return get_tied(wr, index, index, alias, ret);
	return -ENOENT;
}

const uint8_t *writer_digest(const struct weightd_writer *wr)
{
	return wr->digest;
}

static void leaf_has_digest(struct weightd_writer *wr, uint64_t leaf)
{
	wr->leaf_done[leaf] = true;
	if (wr->on_digest)
		wr->on_digest(wr->on_digest_data);
}

void weightd_writer_digest_leaf(struct weightd_writer *wr, uint64_t leaf)
{
	struct sentence ignored; /* publish fails the same way, and reports it */

	if (leaf >= wr->n_leaves || wr->version)
		return;
	if (memory_digest(&wr->memory, wr->data_size, leaf, 1, &wr->leaves[leaf], &ignored) == 0)
		leaf_has_digest(wr, leaf);
}

void weightd_writer_digest_bytes(struct weightd_writer *wr, uint64_t leaf, const void *bytes)
{
	uint64_t left = wr->data_size - leaf * DIGEST_LEAF_SIZE;

	if (leaf >= wr->n_leaves || wr->version)
		return;
	hash128(bytes, left < DIGEST_LEAF_SIZE ? left : DIGEST_LEAF_SIZE, wr->leaves[leaf]);
	leaf_has_digest(wr, leaf);
}

/* Handles a failure between making the mapping read-only and publishing: makes the bytes writable again. */
static int undo_publish(struct weightd_writer *wr, int r)
{
	const struct memory_request q = request_of(wr, MEMORY_WRITE);
	struct sentence *s = &wr->w->sentence;
	struct sentence said = *s;

	if (r == -EBUSY && wr->memory.location.memory == WIRE_MEMORY_HOST) {
		char holders[SENTENCE_MAX / 2];

		holders_of(wr->fd, holders, sizeof(holders));
		if (holders[0])
			(void)sentence_set(s, r, "%.250s; it is mapped writable by %s", said.text,
					   holders);
	}
	/* Sealed before it failed: nothing can be written any more, and trying again needs no digests. */
	if (fd_is_sealed(wr->fd))
		return r;
	for (uint64_t i = 0; i < wr->n_leaves; i++)
		wr->leaf_done[i] = false;
	said = *s;
	/* A failure leaves it read-only; the caller has the publish error by then. */
	(void)memory_protect(&wr->memory, &q, s);
	*s = said;
	return r;
}

/* Finishes the publish on a new connection. */
static int publish_again(struct weightd *w, struct client_call *call)
{
	struct weightd_writer *wr = call->subject;

	(void)w;
	if (wr->lost)
		return writer_say_lost(wr);
	call->reply.publish.version = wr->committed;
	return wr->committed != 0;
}

/* Digests the remaining leaves in runs: a GPU is fast if it gets many at once. */
static int digest_rest(struct weightd_writer *wr, struct sentence *s)
{
	uint64_t first = 0, end;
	int r = 0;

	for (; r == 0 && first < wr->n_leaves; first = end) {
		end = first;
		while (end < wr->n_leaves && !wr->leaf_done[end])
			end++;
		r = memory_digest(&wr->memory, wr->data_size, first, end - first,
				  wr->leaves + first, s);
		while (end < wr->n_leaves && wr->leaf_done[end])
			end++;
	}
	return r;
}

static int copy_tensor(struct weightd_writer *wr, const struct layout_tensor *from,
		       const struct layout_tensor *to, struct sentence *s)
{
	cleanup(freep) char *bytes = malloc(DIGEST_LEAF_SIZE);
	uint64_t n;
	int r = 0;

	if (!bytes)
		return sentence_set(s, -ENOMEM, "out of memory");
	for (uint64_t at = 0; r == 0 && at < to->n_bytes; at += n) {
		n = to->n_bytes - at < DIGEST_LEAF_SIZE ? to->n_bytes - at : DIGEST_LEAF_SIZE;
		r = memory_read(&wr->memory, from->offset + at, bytes, n, s);
		if (r == 0)
			r = memory_write(&wr->memory, to->offset + at, bytes, n, s);
	}
	for (uint64_t leaf = to->offset / DIGEST_LEAF_SIZE;
	     to->n_bytes && leaf <= (to->offset + to->n_bytes - 1) / DIGEST_LEAF_SIZE; leaf++)
		wr->leaf_done[leaf] = false;
	return r;
}

/* Gives their bytes to the tensors that the version has on their own, and the caller as ties. */
static int copy_tied(struct weightd_writer *wr, struct sentence *s)
{
	const struct adoption *a = &wr->adoption;
	const struct layout_tensor *tensors = wr->layout.tensors;
	int r = 0;

	for (uint32_t i = 0; a->tied && r == 0 && i < wr->layout.header->n_tensors; i++)
		if (adoption_home(a, i) != i && layout_untied(&wr->layout, i) == i)
			r = copy_tensor(wr, &tensors[adoption_home(a, i)], &tensors[i], s);
	return r;
}

/* All of it at `offset` of a file. */
static int put_bytes(int fd, const void *bytes, uint64_t size, uint64_t offset)
{
	const char *p = bytes;
	ssize_t n;

	for (; size > 0; size -= (uint64_t)n, p += n, offset += (uint64_t)n) {
		n = pwrite(fd, p, size, (off_t)offset);
		if (n < 0 && errno == EINTR)
			n = 0;
		if (n < 0)
			return -errno;
	}
	return 0;
}

/* The header in front of the data of an image, and all digests in their own memfd; or the digests behind the data. */
static int put_digests(struct weightd_writer *wr, struct sentence *s)
{
	int r;

	if (!wr->header)
		return memory_write(&wr->memory, digest_leaves_offset(wr->data_size), wr->leaves,
				    wr->n_leaves * HASH_SIZE, s);
	hash128(wr->header, wr->header_size, wr->digests[0]);
	r = put_bytes(wr->fd, wr->header, wr->header_size, 0);
	if (r == 0)
		r = put_bytes(wr->digests_fd, wr->digests, digest_table_size(wr->data_size), 0);
	return r < 0 ? sentence_set(s, r, "%s", strerror(-r)) : 0;
}

int writer_digest_all(struct weightd_writer *wr, struct sentence *s)
{
	int r = wr->memory.access == MEMORY_WRITE ? copy_tied(wr, s) : 0;

	if (r == 0)
		r = digest_rest(wr, s);
	if (r == 0)
		digest_root((const void *)wr->leaves, wr->n_leaves, wr->digest);
	return r;
}

static int fill_publish(struct weightd_writer *wr, struct wire_publish *publish)
{
	struct sentence *s = &wr->w->sentence;
	int r = writer_digest_all(wr, s);

	/* Read-only: another publish has put them there, and the bytes are the same since. */
	if (r == 0 && wr->memory.access == MEMORY_WRITE)
		r = put_digests(wr, s);
	if (r < 0)
		return sentence_set(s, r, "the bytes cannot be digested: %s", s->text);
	publish->writer = wr->id;
	publish->flags = WIRE_PUBLISH_DIGEST;
	memcpy(publish->digest, wr->digest, HASH_SIZE);
	return 0;
}

static int writer_publish(struct weightd_writer *wr)
{
	struct client_call call = {
		.op = WIRE_PUBLISH,
		.timeout_ms = -1,
		.again = publish_again,
		.subject = wr,
	};
	const struct memory_request q = request_of(wr, MEMORY_READ);
	struct sentence *s = &wr->w->sentence;
	int r = wr->committed ? 0 : fill_publish(wr, &call.request.publish);

	if (r < 0)
		return r;
	r = memory_protect(&wr->memory, &q, s);
	if (r < 0)
		return sentence_set(s, r, "the bytes cannot be made read-only: %s", s->text);
	if (!wr->committed) {
		r = client_call_run(wr->w, &call);
		if (r < 0)
			return undo_publish(wr, r);
	}
	wr->version = wr->committed ? wr->committed : call.reply.publish.version;
	wr->fd = fd_close(wr->fd);
	wr->digests_fd = fd_close(wr->digests_fd);
	free(take_ptr(wr->header));
	return 0;
}

/* A lease of the connection before is none of this one. */
static int share_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_writer *wr = call->subject;

	if (wr->lost)
		return writer_say_lost(wr);
	call->reply.publish.version = wr->committed;
	return wr->committed ? 1 : sentence_set(&w->sentence, -ESTALE, "weightd was restarted");
}

static bool has_bytes_of(const struct weightd_writer *wr, struct weightd_buffer *b)
{
	cleanup(freep) void *header = NULL;

	if (b->memory.location.memory != WIRE_MEMORY_HOST ||
	    b->memory.offset != wr->memory.offset || b->memory.size != wr->memory.size ||
	    memcmp(b->memory.data, wr->memory.data, wr->memory.size) != 0)
		return false;
	if (!wr->header)
		return true;
	header = malloc(wr->header_size);
	return header && buffer_read_header(b, header) == 0 &&
	       !memcmp(header, wr->header, wr->header_size);
}

int writer_publish_shared(struct weightd_writer *wr, struct weightd_buffer *same)
{
	struct client_call call = {
		.op = WIRE_PUBLISH_SHARED,
		.timeout_ms = -1,
		.again = share_again,
		.subject = wr,
	};
	struct wire_publish_shared *request = &call.request.publish_shared;
	struct wire_publish filled;
	int r = fill_publish(wr, &filled);

	if (r < 0)
		return r;
	if (!has_bytes_of(wr, same))
		return sentence_set(&wr->w->sentence, -EXDEV, "its bytes differ");
	request->writer = wr->id;
	request->lease = same->lease;
	memcpy(request->digest, filled.digest, HASH_SIZE);
	r = client_call_run(wr->w, &call);
	if (r < 0)
		return r;
	wr->version = call.reply.publish.version;
	guard_remove(&wr->guarded);
	memory_unmap(&wr->memory);
	wr->fd = fd_close(wr->fd);
	wr->reader_fd = fd_close(wr->reader_fd);
	wr->digests_fd = fd_close(wr->digests_fd);
	free(take_ptr(wr->header));
	return 0;
}

int weightd_writer_publish_on(struct weightd_writer *wr, void *stream, uint64_t *ret_version)
{
	struct sentence *s = &wr->w->sentence;
	int r;

	if (wr->version || wr->aborted)
		return sentence_set(
			s, -EALREADY,
			"this writer has published or was aborted already; create another");
	if (wr->owner != getpid())
		return sentence_set(s, -ECHILD, "this writer belongs to the parent process");
	if (wr->lost)
		return writer_say_lost(wr);
	r = memory_synchronize(&wr->memory, stream, s);
	if (r < 0)
		return sentence_set(s, r, "the bytes may be incomplete: %s", s->text);
	r = writer_publish(wr);
	if (r == 0 && ret_version)
		*ret_version = wr->version;
	return r;
}

int weightd_writer_publish(struct weightd_writer *wr, uint64_t *ret_version)
{
	return weightd_writer_publish_on(wr, WEIGHTD_ALL_STREAMS, ret_version);
}
