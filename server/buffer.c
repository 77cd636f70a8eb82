#include "server/buffer.h"

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
#include "server/event.h"
#include "server/fault.h"
#include "server/layout_table.h"
#include "server/probe.h"
#include "server/reader_pause.h"
#include "server/reaper.h"
#include "server/server.h"
#include "server/slot.h"
#include "server/slot_reuse.h"
#include "server/writer.h"

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
	if (b->kept) {
		/* The manifest goes last: while it is there, recovery knows what the rest is. */
		store_remove(&b->server->store, STORE_HEAD, b->id);
		store_remove(&b->server->store, STORE_MANIFEST, b->id);
	}
	if (b->head)
		(void)munmap(b->head, HEAD_SIZE);
	(void)manifest_free(b->manifest);
	(void)fd_close(b->manifest_fd);
	(void)fd_close(b->head_fd);
	(void)fd_close(b->head_reader_fd);
	quota_refund(&b->charge);
	quota_refund(&b->descriptors);
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
	b->id = id;
	b->next_version = 1;
	b->manifest_fd = -1;
	b->head_fd = -1;
	b->head_reader_fd = -1;
	list_init(&b->link);
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

/* The memory of a head page, whatever it says: it is written anew. */
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

bool buffer_has_name(const struct buffer *b)
{
	return !b->removed;
}

void buffer_keep(struct buffer *b)
{
	struct store *store = &b->server->store;

	if (b->kept)
		return;
	b->kept = true;
	(void)store_put(store, STORE_MANIFEST, b->id, b->manifest_fd); /* the barrier behind tells */
	(void)store_put(store, STORE_HEAD, b->id, b->head_fd);
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

bool buffer_only_keeps(const struct buffer *b, const struct version *v)
{
	return v->n_leases == 0 && v->number != b->current;
}

/* The oldest that may go; if `must_free` says so, one whose memory nobody holds. */
static struct version *oldest_kept(const struct buffer *b, bool must_free)
{
	struct version *v;

	list_for_each(v, &b->versions, link)
		if (buffer_only_keeps(b, v) && !(must_free && slot_is_held(v->slot)))
			return v;
	return NULL;
}

/* Ends versions beyond `keep`; the caller saves. True when there were some. */
static bool trim(struct buffer *b)
{
	struct version *v;
	bool some = false;

	while (b->n_versions > b->keep && (v = oldest_kept(b, false))) {
		version_end(v, WIRE_END_KEEP);
		some = true;
	}
	return some;
}

static void reap_or_wait(struct buffer *b)
{
	if (buffer_reap(b))
		reaper_start(&b->server->reaper);
}

void buffer_trim(struct buffer *b)
{
	if (!trim(b))
		return;
	fault_point("trim-begun");
	buffer_save(b);
	fault_point("trim-committed");
	reap_or_wait(b);
}

bool buffer_reap(struct buffer *b)
{
	struct version *v, *tmp;
	bool waits = false;

	buffer_ref(b);
	list_for_each_safe(v, tmp, &b->leaving, link)
		if (!version_reap(v))
			waits |= v->n_leases == 0;
	buffer_unref(b);
	return waits;
}

void buffer_publish(struct buffer *b, struct version *v)
{
	v->number = b->next_version++;
	v->generation = b->generation;
	version_add(v, b);
	b->current = v->number;
	b->state = HEAD_READY;
	event_of_version(WIRE_EVENT_PUBLISHED, v); /* told in the next round, when it is true */
	(void)trim(b);
	fault_point("publish-sealed");
	buffer_save(b);
	fault_point("publish-committed");
	buffer_flip(b);
	fault_point("publish-flipped");
	reaper_soon(&b->server->reaper); /* not now: the writer waits for its answer */
}

void buffer_rollback(struct buffer *b, struct version *v)
{
	b->current = v->number;
	fault_point("rollback-begun");
	buffer_save(b);
	fault_point("rollback-committed");
	buffer_flip(b);
	fault_point("rollback-flipped");
	event_of_version(WIRE_EVENT_ROLLED_BACK, v);
}

void buffer_drop_version(struct buffer *b, struct version *v, enum wire_end why)
{
	version_end(v, why);
	fault_point("drop-begun");
	buffer_save(b);
	fault_point("drop-committed");
	reader_pause_check(b);
	reap_or_wait(b);
}

void buffer_rewrite(struct buffer *b, struct version *v)
{
	v->why = WIRE_END_REWRITTEN; /* the number that was, not the memory */
	event_of_version(WIRE_EVENT_VERSION_GONE, v);
	v->why = WIRE_END_NONE;
	v->number = b->next_version++;
	b->current = v->number;
	b->state = HEAD_READY;
	fault_point("rewrite-finished");
	buffer_save(b);
	b->manifest->n_strangers = 0; /* passed_over, just committed, knows them */
	fault_point("rewrite-committed");
	buffer_flip(b);
	fault_point("rewrite-flipped");
	event_of_version(WIRE_EVENT_PUBLISHED, v);
}

enum head_state buffer_shown_state(const struct buffer *b)
{
	return b->writer && b->writer->pausing && !b->removed ? HEAD_UPDATING : b->state;
}

void buffer_drop(struct buffer *b)
{
	struct version *v, *tmp;

	b->removed = true;
	list_remove(&b->link);
	list_append(&b->server->removed, &b->link);
	b->server->n_buffers--;
	quota_refund(&b->charge); /* its descriptors stay charged until they are free */
	event_of_buffer(WIRE_EVENT_REMOVED, b);
	list_for_each_safe(v, tmp, &b->versions, link)
		version_end(v, WIRE_END_DROPPED);
	b->state = HEAD_GONE;
	slot_reuse_forget(b);
	fault_point("remove-begun");
	buffer_save(b);
	fault_point("remove-committed");
	buffer_flip(b);
	reader_pause_end(b); /* there is nothing to wait for any more */
	reader_pause_check(b);
	reap_or_wait(b);
	buffer_unref(b);
}

static bool is_on(const struct buffer *b, const char *device)
{
	return !device || !strcmp(b->device, device);
}

uint64_t buffers_kept_bytes(const struct server *server, const char *device)
{
	struct version *v;
	struct buffer *b;
	uint64_t size = 0;

	list_for_each(b, &server->buffers, link) {
		if (!is_on(b, device))
			continue;
		list_for_each(v, &b->versions, link)
			if (buffer_only_keeps(b, v))
				size += v->slot->size;
		if (b->spare)
			size += b->spare->slot->size;
	}
	return size;
}

static uint64_t bytes_of(const struct slot *s, bool being_freed)
{
	if (!s || gpu_free_is_over(&s->gpu_free) || gpu_free_has_begun(&s->gpu_free) != being_freed)
		return 0;
	/* On a GPU nothing before there is memory, and then what it takes there. */
	return s->backend->opaque ? s->memory.location.map_size : s->size;
}

uint64_t buffer_bytes(const struct buffer *b)
{
	const struct version *v;
	uint64_t size = 0;

	list_for_each(v, &b->versions, link)
		size += bytes_of(v->slot, false);
	list_for_each(v, &b->leaving, link)
		size += bytes_of(v->slot, false);
	return size;
}

uint64_t buffer_charged_bytes(const struct buffer *b, uid_t uid)
{
	const struct version *v;
	uint64_t size = 0;

	list_for_each(v, &b->versions, link)
		size += v->slot && v->slot->uid == uid ? v->slot->charge.amount : 0;
	list_for_each(v, &b->leaving, link)
		size += v->slot && v->slot->uid == uid ? v->slot->charge.amount : 0;
	return size;
}

static uint64_t bytes_in(const struct list *buffers, const char *device, bool being_freed)
{
	const struct version *v;
	const struct buffer *b;
	uint64_t size = 0;

	list_for_each(b, buffers, link) {
		if (!is_on(b, device))
			continue;
		list_for_each(v, &b->versions, link)
			size += bytes_of(v->slot, being_freed);
		list_for_each(v, &b->leaving, link)
			size += bytes_of(v->slot, being_freed);
		if (b->writer && !b->writer->target && b->writer->kept)
			size += bytes_of(b->writer->slot, being_freed);
	}
	return size;
}

uint64_t buffers_bytes(const struct server *server, const char *device)
{
	return bytes_in(&server->buffers, device, false) + bytes_in(&server->removed, device, false);
}

uint64_t buffers_bytes_being_freed(const struct server *server, const char *device)
{
	return bytes_in(&server->buffers, device, true) + bytes_in(&server->removed, device, true);
}

bool buffers_evict(struct server *server, const char *device, uint64_t missing)
{
	struct version *oldest = NULL;
	struct buffer *b;

	if (buffers_kept_bytes(server, device) < missing)
		return false;
	if (slot_reuse_evict(server, device))
		return true;
	list_for_each(b, &server->buffers, link) {
		struct version *v = is_on(b, device) ? oldest_kept(b, true) : NULL;

		if (v && (!oldest || v->published_ns < oldest->published_ns))
			oldest = v;
	}
	if (!oldest)
		return false;
	buffer_drop_version(oldest->buffer, oldest, WIRE_END_MEMORY);
	return true;
}

/* --- the manifest and the head --- */

static struct version *find_by_slot(const struct buffer *b, uint64_t slot)
{
	struct version *v;

	list_for_each(v, &b->leaving, link)
		if (v->slot->id == slot)
			return v;
	list_for_each(v, &b->versions, link)
		if (v->slot->id == slot)
			return v;
	return NULL;
}

/*
 * What the manifest remembers of versions that have no memory any more. The oldest are forgotten; those that
 * never were published at once, unless the store has not heard yet that they are gone.
 */
static void copy_history(const struct buffer *b, const struct manifest_record *old,
			 struct manifest_record *r)
{
	unsigned room = MANIFEST_VERSIONS - b->n_versions - b->n_leaving;
	const struct manifest_version *from[MANIFEST_VERSIONS];
	unsigned n = 0;

	for (unsigned i = 0; i < old->n_versions; i++) {
		const struct manifest_version *e = &old->versions[i];
		const struct version *v = e->flags & MANIFEST_HELD ? find_by_slot(b, e->slot) : NULL;

		if (!(v && v->number == e->number) &&
		    (e->number || store_is_behind(&b->server->store)))
			from[n++] = e;
	}
	for (unsigned i = n > room ? n - room : 0; i < n; i++) {
		struct manifest_version *e = &r->versions[r->n_versions++];

		*e = *from[i];
		if (!e->ended_ns) {
			e->ended_ns = buffer_now_ns();
			/* In place the same slot goes on under another number. */
			e->why = find_by_slot(b, e->slot) ? WIRE_END_REWRITTEN : WIRE_END_LOST;
		}
		e->flags &= ~MANIFEST_HELD;
	}
}

static void copy_version(const struct version *v, struct manifest_record *r)
{
	struct manifest_version *e = &r->versions[r->n_versions++];

	*e = (struct manifest_version){
		.number = v->number,
		.slot = v->slot->id,
		.table = v->table->id,
		.writer = v->writer,
		.data_size = v->slot->data_size,
		.huge_bytes = v->slot->memory.progress.huge,
		.n_tensors = v->table->n_tensors,
		.published_ns = v->published_ns,
		.ended_ns = v->ended_ns,
		.flags = MANIFEST_HELD | (v->has_digest ? MANIFEST_DIGEST : 0),
		.why = v->why,
		.uid = v->uid,
		.pid = (uint32_t)v->pid,
		.generation = v->generation,
		.map_size = v->slot->memory.location.map_size,
	};
	memcpy(e->handle, v->slot->memory.location.handle, sizeof(e->handle));
	memcpy(e->layout_hash, v->table->hash, sizeof(e->layout_hash));
	memcpy(e->digest, v->digest, sizeof(e->digest));
}

/* By number. Nearly sorted already: the newest comes last. */
static void sort_versions(struct manifest_record *r)
{
	for (unsigned i = 1; i < r->n_versions; i++)
		for (unsigned j = i; j > 0 && r->versions[j].number < r->versions[j - 1].number;
		     j--) {
			struct manifest_version swapped = r->versions[j];

			r->versions[j] = r->versions[j - 1];
			r->versions[j - 1] = swapped;
		}
}

void buffer_save(struct buffer *b)
{
	const struct manifest_record *old = manifest_current(b->manifest);
	struct manifest_record *r = manifest_begin(b->manifest);
	struct version *v;

	memcpy(r->name, b->name, sizeof(r->name));
	memcpy(r->device, b->device, sizeof(r->device));
	r->current = b->current;
	r->next_version = b->next_version;
	r->passed_over = b->passed_over;
	r->uid = b->access.uid;
	r->gid = b->access.gid;
	r->mode = b->access.mode;
	r->generation = b->generation;
	r->keep = b->keep;
	r->flags = (b->removed ? MANIFEST_REMOVED : 0) | (b->exclusive ? MANIFEST_EXCLUSIVE : 0) |
		   (b->reusable ? MANIFEST_REUSABLE : 0) |
		   (b->backend->memory == WIRE_MEMORY_CUDA_IPC ? MANIFEST_IPC : 0);
	r->state = b->state;
	r->writer = (struct manifest_writer){0};
	if (b->writer)
		writer_save(b->writer, &r->writer);
	copy_history(b, old, r);
	list_for_each(v, &b->leaving, link)
		copy_version(v, r);
	list_for_each(v, &b->versions, link)
		copy_version(v, r);
	sort_versions(r);
	manifest_commit(b->manifest);
}

void buffer_flip(struct buffer *b)
{
	const struct version *v = buffer_current(b);
	enum head_state state = buffer_shown_state(b);
	uint64_t before = head_version(head_current(b->head));
	struct head_record record;

	if (!v) {
		if (head_set(b->head, b->current, state))
			head_waker_wake(b);
		return;
	}
	record = (struct head_record){
		.version = v->number,
		.slot = v->slot->id,
		.data_size = v->slot->data_size,
		.published_ns = v->published_ns,
	};
	memcpy(record.layout_hash, v->table->hash, sizeof(record.layout_hash));
	memcpy(record.digest, v->digest, sizeof(record.digest));
	if (!head_publish(b->head, &record, state))
		return;
	PROBE(flip, b, before);
	head_waker_wake(b);
}
