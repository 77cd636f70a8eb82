#include "server/buffers/buffer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/codec.h"
#include "server/backend/backend.h"
#include "server/buffers/reaper.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/state/buffer_names.h"
#include "server/state/server.h"

uint64_t buffer_now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void buffer_audit(const struct buffer *b, enum audit_action action, const struct channel_peer *peer,
		  uint64_t version)
{
	audit(&(struct audit){.action = action,
			      .peer = peer,
			      .buffer = b->name,
			      .device = b->device,
			      .version = version});
}

struct buffer *buffer_find(struct server *server, const char *name, const char *device)
{
	struct buffer *b;

	list_for_each(b, &server->buffers, link)
		if (!strcmp(b->name, name) && !strcmp(b->device, device))
			return b;
	return NULL;
}

struct buffer *buffer_find_id(struct server *server, uint64_t id)
{
	struct buffer *b;

	list_for_each(b, &server->buffers, link)
		if (b->id == id)
			return b;
	return NULL;
}

/* --- making and freeing --- */

static int map_head(struct buffer *b)
{
	void *page = mmap(NULL, HEAD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, b->head_fd, 0);

	if (page == MAP_FAILED)
		return -errno;
	b->head = page;
	return 0;
}

/* The page is ours to write through the mapping; all descriptors that leave are read-only. */
static int head_new(struct buffer *b)
{
	int r = fd_memfd("weightd-head", HEAD_SIZE, &b->head_fd);

	if (r < 0)
		return r;
	if (fcntl(b->head_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0 ||
	    fchmod(b->head_fd, 0400) < 0)
		return -errno;
	r = fd_reopen_readonly(b->head_fd, &b->head_reader_fd);
	if (r == 0)
		r = map_head(b);
	if (r == 0)
		head_init(b->head, b->id);
	return r;
}

static struct buffer *buffer_free(struct buffer *b)
{
	assert(list_empty(&b->versions) && list_empty(&b->leaving) && !b->writer);
	list_remove(&b->link);
	tally_forget(b);
	reaper_forget(b);
	if (b->kept) {
		/* The manifest is removed last: while it is there, recovery can identify the rest. */
		store_remove(&b->server->store, b->store_uid, STORE_HEAD, b->id);
		store_remove(&b->server->store, b->store_uid, STORE_MANIFEST, b->id);
	}
	if (b->head)
		(void)munmap(b->head, HEAD_SIZE);
	(void)manifest_free(b->manifest);
	(void)fd_close(b->manifest_fd);
	(void)fd_close(b->head_fd);
	(void)fd_close(b->head_reader_fd);
	quota_refund(&b->charge);
	quota_refund(&b->descriptors);
	server_count_object(b->server, -1);
	free(b);
	return NULL;
}
CLEANUP_POINTER(struct buffer, buffer_free);

static struct buffer *buffer_blank(struct server *server, uint64_t id)
{
	struct buffer *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->server = server;
	server_count_object(server, 1);
	b->id = id;
	b->next_version = 1;
	b->manifest_fd = -1;
	b->head_fd = -1;
	b->head_reader_fd = -1;
	list_init(&b->link);
	list_init(&b->tally_link);
	list_init(&b->reap_link);
	list_init(&b->versions);
	list_init(&b->leaving);
	return b;
}

/* In the order of ids, in which they are listed, page by page. After a restart new ids may be the lower ones. */
static void give_name(struct buffer *b)
{
	struct list *at = &b->server->buffers;

	while (at->prev != &b->server->buffers &&
	       container_of(at->prev, struct buffer, link)->id > b->id)
		at = at->prev;
	list_append(at, &b->link);
	b->n_refs = 1;
	b->server->n_buffers++;
}

int buffer_new(struct server *server, const char *name, const char *device,
	       const struct backend *backend, const struct access *access, struct buffer **ret)
{
	cleanup(buffer_freep) struct buffer *b = buffer_blank(server, server_next_id(server));
	int r;

	if (!b)
		return -ENOMEM;
	b->backend = backend;
	b->access = *access;
	b->store_uid = access->uid;
	b->keep = (uint32_t)server->config.keep;
	r = CODEC_PUT_STRING(b->name, name);
	if (r == 0)
		r = CODEC_PUT_STRING(b->device, device);
	if (r == 0)
		r = quota_charge(&server->quota, access->uid, QUOTA_BUFFERS, 1, &b->charge);
	if (r == 0)
		r = quota_charge(&server->quota, access->uid, QUOTA_DESCRIPTORS, 2, &b->descriptors);
	if (r == 0)
		r = head_new(b);
	if (r == 0)
		r = manifest_new(b->id, &b->manifest, &b->manifest_fd);
	if (r != 0)
		return r;
	give_name(b);
	*ret = take_ptr(b);
	return 0;
}

int buffer_chown(struct buffer *b, uid_t uid)
{
	struct quota *q = &b->server->quota;
	struct charge buffer = {0}, descriptors = {0};
	int r = quota_charge_anyway(q, uid, QUOTA_BUFFERS, 1, &buffer);

	if (r == 0)
		r = quota_charge_anyway(q, uid, QUOTA_DESCRIPTORS, 2, &descriptors);
	if (r < 0) {
		quota_refund(&buffer);
		return r;
	}
	quota_refund(&b->charge);
	quota_refund(&b->descriptors);
	b->charge = buffer;
	b->descriptors = descriptors;
	b->access.uid = uid;
	return 0;
}

/* Maps a head page. Its content does not matter: it is rewritten. */
static int recover_head(struct buffer *b, int head_fd)
{
	int seals = fcntl(head_fd, F_GET_SEALS);
	uint64_t size;
	int r = fd_size(head_fd, &size);

	if (r < 0)
		return r;
	if (size != HEAD_SIZE || seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EBADMSG;
	b->head_fd = head_fd;
	r = map_head(b);
	if (r == 0)
		r = head_ok(b->head, b->id) ? 0 : -EBADMSG;
	b->head_fd = -1; /* the caller's until all is well; the mapping keeps the page */
	return r;
}

static void read_record(struct buffer *b, const struct manifest_record *r)
{
	memcpy(b->name, r->name, sizeof(b->name));
	memcpy(b->device, r->device, sizeof(b->device));
	b->access = (struct access){.uid = r->uid, .gid = r->gid, .mode = r->mode & 0777};
	b->store_uid = r->uid;
	b->generation = r->generation;
	b->keep = r->keep;
	b->exclusive = r->flags & MANIFEST_EXCLUSIVE;
	b->reusable = r->flags & MANIFEST_REUSABLE;
	b->removed = r->flags & MANIFEST_REMOVED;
	b->state = (enum head_state)r->state;
	b->next_version = r->next_version;
	b->passed_over = r->passed_over;
	b->current = r->current;
}

int buffer_recover(struct server *server, uint64_t id, struct manifest *m, int head_fd,
		   struct buffer **ret)
{
	cleanup(buffer_freep) struct buffer *b = buffer_blank(server, id);
	int r;

	if (!b)
		return -ENOMEM;
	read_record(b, manifest_current(m));
	r = buffer_name_ok(b->name)
		    ? backend_find(b->device, manifest_current(m)->flags & MANIFEST_IPC, &b->backend)
		    : -EBADMSG;
	if (r == 0)
		r = recover_head(b, head_fd);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, b->access.uid, QUOTA_BUFFERS, 1, &b->charge);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, b->access.uid, QUOTA_DESCRIPTORS, 2,
					&b->descriptors);
	if (r < 0)
		return r;
	b->manifest = m;
	m->n_strangers += m->n_leases;
	m->n_leases = 0;
	b->kept = true;
	b->head_fd = head_fd;
	give_name(b);
	*ret = take_ptr(b);
	return 0;
}

int buffer_head(struct buffer *b)
{
	int r;

	if (b->head_reader_fd >= 0)
		return b->head_reader_fd;
	r = fd_reopen_readonly(b->head_fd, &b->head_reader_fd);
	if (r < 0)
		return r;
	b->head_fd = fd_close(b->head_fd); /* the store has it */
	return b->head_reader_fd;
}

uint32_t buffer_flags(const struct buffer *b)
{
	return (b->exclusive ? WIRE_BUFFER_EXCLUSIVE : 0) |
	       (b->reusable ? WIRE_BUFFER_REUSABLE : 0) |
	       (b->backend->memory == WIRE_MEMORY_CUDA_IPC ? WIRE_BUFFER_IPC : 0);
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

struct slot_place buffer_place(const struct buffer *b)
{
	return (struct slot_place){.server = b->server,
				   .backend = b->backend,
				   .device = b->device,
				   .buffer = (struct buffer *)b,
				   .store_uid = b->store_uid};
}

bool buffer_has_name(const struct buffer *b)
{
	return !b->removed;
}

bool buffer_only_keeps(const struct buffer *b, const struct version *v)
{
	return v->n_leases == 0 && v->number != b->current;
}

void buffer_keep(struct buffer *b)
{
	struct store *store = &b->server->store;

	if (b->kept)
		return;
	b->kept = true;
	(void)store_put(store, b->store_uid, STORE_MANIFEST, b->id,
			b->manifest_fd); /* the barrier after it reports errors */
	(void)store_put(store, b->store_uid, STORE_HEAD, b->id, b->head_fd);
	b->manifest_fd = fd_close(b->manifest_fd);
	b->head_fd = fd_close(b->head_fd);
}

/* --- versions --- */

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

struct version *buffer_current(const struct buffer *b)
{
	return b->current ? buffer_version(b, b->current) : NULL;
}

bool buffer_is_on(const struct buffer *b, const char *device)
{
	return !device || !strcmp(b->device, device);
}
