#include "server/buffer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/codec.h"
#include "server/server.h"

static bool name_char_ok(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool buffer_name_ok(const char *name)
{
	if (!name_char_ok(name[0]))
		return false;
	for (const char *p = name; *p; p++)
		if (!name_char_ok(*p) && !strchr("._/:-", *p))
			return false;
	return true;
}

struct buffer *buffer_find(struct server *server, const char *name, const char *device)
{
	struct buffer *b;

	list_for_each(b, &server->buffers, link)
		if (!strcmp(b->name, name) && !strcmp(b->device, device))
			return b;
	return NULL;
}

/* The page is ours to write through the mapping; all descriptors that leave are read-only. */
static int head_new(struct buffer *b)
{
	cleanup(fd_closep) int fd = -1;
	void *page;
	int r = fd_memfd("weightd-head", HEAD_SIZE, &fd);

	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0 || fchmod(fd, 0400) < 0)
		return -errno;
	r = fd_reopen_readonly(fd, &b->head_fd);
	if (r < 0)
		return r;
	page = mmap(NULL, HEAD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return -errno;
	b->head = page;
	head_init(b->head, b->id);
	return 0;
}

static struct buffer *buffer_free(struct buffer *b)
{
	assert(list_empty(&b->versions) && !b->writer);
	if (b->head)
		(void)munmap(b->head, HEAD_SIZE);
	(void)fd_close(b->head_fd);
	quota_refund(&b->charge);
	free(b);
	return NULL;
}
CLEANUP_POINTER(struct buffer, buffer_free);

int buffer_new(struct server *server, const char *name, const char *device,
	       const struct backend *backend, const struct access *access, struct buffer **ret)
{
	cleanup(buffer_freep) struct buffer *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->server = server;
	b->id = server_next_id(server);
	b->backend = backend;
	b->access = *access;
	b->keep = (uint32_t)server->config.keep;
	b->next_version = 1;
	b->head_fd = -1;
	list_init(&b->link);
	list_init(&b->versions);
	r = CODEC_PUT_STRING(b->name, name);
	if (r == 0)
		r = CODEC_PUT_STRING(b->device, device);
	if (r == 0)
		r = quota_charge(&server->quota, access->uid, QUOTA_BUFFERS, 1, &b->charge);
	if (r == 0)
		r = head_new(b);
	if (r != 0)
		return r;
	b->n_refs = 1;
	list_append(&server->buffers, &b->link);
	server->n_buffers++;
	*ret = take_ptr(b);
	return 0;
}

void buffer_ref(struct buffer *b)
{
	b->n_refs++;
}

void buffer_unref(struct buffer *b)
{
	if (--b->n_refs == 0)
		buffer_free(b);
}

bool buffer_has_name(const struct buffer *b)
{
	return !list_empty(&b->link);
}

struct version *buffer_newest(const struct buffer *b)
{
	return list_last(&b->versions, struct version, link);
}

struct version *buffer_version(const struct buffer *b, uint64_t number)
{
	struct version *v;

	list_for_each(v, &b->versions, link)
		if (v->number == number)
			return v;
	return NULL;
}

static void version_free(struct version *v)
{
	struct buffer *b = v->buffer;

	slot_free(v->slot);
	closer_close_memfd(&b->server->closer, v->layout_fd);
	quota_refund(&v->charge);
	free(v);
	buffer_unref(b);
}

/* Takes the version out of the list, and frees it unless somebody reads it. */
static void version_unlink(struct version *v)
{
	list_remove(&v->link);
	v->buffer->n_versions--;
	if (v->n_leases == 0)
		version_free(v);
}

/* True for a version that only its place in the list holds, and that is not the newest. */
static bool is_only_kept(const struct version *v)
{
	return v->n_leases == 0 && v != buffer_newest(v->buffer);
}

static struct version *oldest_kept(const struct buffer *b)
{
	struct version *v;

	list_for_each(v, &b->versions, link)
		if (is_only_kept(v))
			return v;
	return NULL;
}

static void buffer_trim(struct buffer *b)
{
	struct version *v;

	while (b->n_versions > b->keep && (v = oldest_kept(b)))
		version_unlink(v);
}

void buffer_publish(struct buffer *b, struct version *v)
{
	struct head_record record = {
		.version = b->next_version++,
		.slot = v->slot->id,
		.data_size = v->slot->data_size,
		.published_ns = v->published_ns,
	};

	memcpy(record.layout_hash, v->layout_hash, sizeof(record.layout_hash));
	memcpy(record.digest, v->digest, sizeof(record.digest));
	v->number = record.version;
	v->buffer = b;
	buffer_ref(b);
	list_append(&b->versions, &v->link);
	b->n_versions++;
	head_publish(b->head, &record);
	buffer_trim(b);
}

void buffer_drop(struct buffer *b)
{
	struct version *v, *tmp;

	list_remove(&b->link);
	b->server->n_buffers--;
	head_set_state(b->head, HEAD_GONE);
	list_for_each_safe(v, tmp, &b->versions, link)
		version_unlink(v);
	buffer_unref(b);
}

static uint64_t kept_bytes(const struct server *server)
{
	struct version *v;
	struct buffer *b;
	uint64_t size = 0;

	list_for_each(b, &server->buffers, link)
		list_for_each(v, &b->versions, link)
			if (is_only_kept(v))
				size += v->slot->size;
	return size;
}

bool buffers_evict(struct server *server, uint64_t missing)
{
	struct version *oldest = NULL;
	struct buffer *b;

	if (kept_bytes(server) < missing)
		return false;
	list_for_each(b, &server->buffers, link) {
		struct version *v = oldest_kept(b);

		if (v && (!oldest || v->published_ns < oldest->published_ns))
			oldest = v;
	}
	if (!oldest)
		return false;
	version_unlink(oldest);
	return true;
}

void version_pin(struct version *v)
{
	v->n_leases++;
}

void version_unpin(struct version *v)
{
	assert(v->n_leases > 0);
	if (--v->n_leases > 0)
		return;
	if (list_empty(&v->link))
		version_free(v);
	else
		buffer_trim(v->buffer);
}

void version_drop(struct version *v)
{
	version_unlink(v);
}
