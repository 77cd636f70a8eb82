#include "server/recovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/lost_memory.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/group_recovery.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/restart/inherit.h"
#include "server/state/server.h"

/* A buffer that is being recovered. */
struct patient {
	struct server *server;
	struct inherit *in;
	struct recovery *result;
	struct buffer *buffer;
	const struct manifest_record *record;
	bool is_dead[MANIFEST_VERSIONS]; /* versions with memory that died with its holder */
};

static void recovery_drop(struct patient *p, enum store_kind kind, uint64_t id)
{
	inherit_drop(p->in, &p->server->store, p->buffer->store_uid, kind, id);
}

/* Each table once, however many versions have it. */
static int find_table(struct patient *p, uint64_t id, uid_t uid, struct layout_table **ret)
{
	struct list *lists[] = {&p->buffer->versions, &p->buffer->leaving};
	struct version *v;
	int fd, r;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(v, lists[i], link)
			if (v->table->memfd.id == id) {
				*ret = layout_table_ref(v->table);
				return 0;
			}
	fd = inherit_take(p->in, STORE_TABLE, id);
	if (fd < 0)
		return -ENOENT;
	r = layout_table_recover(p->server, uid, id, fd, ret);
	if (r < 0) {
		inherit_give_back(p->in, STORE_TABLE, id, fd);
		return r;
	}
	(*ret)->memfd.store_uid = p->buffer->store_uid;
	store_adopt(&p->server->store);
	return 0;
}

/* Likewise; those of version or writer 0, none. */
static int find_files(struct patient *p, uint64_t id, uid_t uid, struct version_files **ret)
{
	struct list *lists[] = {&p->buffer->versions, &p->buffer->leaving};
	struct version *v;
	int fd, r;

	*ret = NULL;
	if (!id)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(v, lists[i], link)
			if (version_files_id(v->files) == id) {
				*ret = version_files_ref(v->files);
				return 0;
			}
	fd = inherit_take(p->in, STORE_FILES, id);
	if (fd < 0)
		return -ENOENT;
	r = version_files_recover(p->server, uid, id, fd, ret);
	if (r < 0) {
		inherit_give_back(p->in, STORE_FILES, id, fd);
		return r;
	}
	(*ret)->memfd.store_uid = p->buffer->store_uid;
	store_adopt(&p->server->store);
	return 0;
}

static int find_slot(struct patient *p, const struct slot_saved *saved, struct slot **ret)
{
	struct slot_place place = buffer_place(p->buffer);
	int fd = inherit_take(p->in, STORE_SLOT, saved->id);
	int r;

	if (fd < 0)
		return -ENOENT;
	r = slot_recover(&place, saved, fd, ret);
	if (r < 0)
		inherit_give_back(p->in, STORE_SLOT, saved->id, fd);
	else
		store_adopt(&p->server->store);
	return r;
}

/* Those of an image. A published version must have them sealed, or is served without. */
static int find_digests(struct patient *p, struct slot *s, bool is_published)
{
	int fd = inherit_take(p->in, STORE_DIGESTS, s->id);
	int r = fd < 0 ? -ENOENT : slot_recover_digests(s, fd, is_published);

	if (r == 0)
		store_adopt(&p->server->store);
	else if (fd >= 0)
		inherit_give_back(p->in, STORE_DIGESTS, s->id, fd);
	return r;
}

/* A version is served without what it has lost of this. */
static void recover_companions(struct patient *p, const struct manifest_version *e,
			       const struct manifest_companions *beside, struct version *v)
{
	const struct buffer *b = p->buffer;

	if (beside->data_offset && find_digests(p, v->slot, v->number) < 0) {
		if (v->has_digest && !e->ended_ns)
			log_error("the digests of '%s@%" PRIu64
				  "' on %s are lost: it is served, and cannot be verified",
				  b->name, e->number, b->device);
		v->has_digest = false;
	}
	if (find_files(p, beside->files, e->uid, &v->files) < 0 && !e->ended_ns)
		log_error("the files of '%s@%" PRIu64 "' on %s are lost: it is served without them",
			  b->name, e->number, b->device);
}

/* Returns it to the store's keeping: for a descriptor that cannot be used. */
static void return_slot(struct patient *p, struct slot *s)
{
	if (slot_has_digests(s)) {
		inherit_give_back(p->in, STORE_DIGESTS, s->id, take_fd(s->digests.reader_fd));
		store_disown(&p->server->store);
	}
	inherit_give_back(p->in, STORE_SLOT, s->id, take_fd(s->probe_fd));
	s->kept = false;
	store_disown(&p->server->store);
	slot_free(s);
}

static void return_table(struct patient *p, struct layout_table *t)
{
	if (t && t->memfd.n_refs == 1) {
		inherit_give_back(p->in, STORE_TABLE, t->memfd.id, take_fd(t->memfd.fd));
		t->memfd.kept = false;
		store_disown(&p->server->store);
	}
	layout_table_unref(t);
}

/* A published version must be sealed, unless its buffer has it otherwise, and have its layout and all of its memory. */
static int check_version(const struct patient *p, const struct manifest_version *e,
			 const struct slot *s, const struct layout_table *t)
{
	bool unsealed_ok = p->buffer->exclusive || p->buffer->reusable || e->number == 0;

	if (!s->sealed && !s->backend->opaque && !unsealed_ok)
		return -EBADMSG;
	if (!slot_is_provided(s) && e->number)
		return -EBADMSG;
	if (t->data_size != s->data_size || memcmp(t->hash, e->layout_hash, sizeof(t->hash)))
		return -EBADMSG;
	return 0;
}

static int recover_version(struct patient *p, const struct manifest_version *e)
{
	struct server *server = p->server;
	struct version *v = version_blank();
	struct manifest_companions beside = manifest_companions(p->buffer->manifest, &e->companions);
	struct slot_saved saved = {
		.id = e->slot,
		.form = {.data_size = e->data_size, .data_offset = beside.data_offset},
		.huge_bytes = e->huge_bytes,
		.map_size = e->map_size,
		.handle = e->handle,
		.uid = e->uid,
	};
	int r;

	if (!v)
		return -ENOMEM;
	r = find_slot(p, &saved, &v->slot);
	if (r == 0)
		r = find_table(p, e->table, e->uid, &v->table);
	if (r == 0)
		r = check_version(p, e, v->slot, v->table);
	if (r == 0 && !e->ended_ns)
		r = quota_charge_anyway(&server->quota, e->uid, QUOTA_VERSIONS, 1, &v->charge);
	if (r < 0) {
		if (v->slot)
			return_slot(p, v->slot);
		return_table(p, v->table);
		free(v);
		return r;
	}
	v->number = e->number;
	v->writer = e->writer;
	v->published_ns = e->published_ns;
	v->ended_ns = e->ended_ns;
	v->why = (enum wire_end)e->why;
	v->uid = e->uid;
	v->pid = (pid_t)e->pid;
	v->generation = e->generation;
	v->has_digest = e->flags & MANIFEST_DIGEST;
	/* Its readers are not back yet. */
	v->last_reader = e->reader - 1;
	v->orphan = e->reader;
	recover_companions(p, e, &beside, v);
	if (v->has_digest)
		memcpy(v->digest, e->digest, sizeof(v->digest));
	version_add(v, p->buffer);
	(void)slot_watch(v->slot); /* else an attach sees the loss */
	return 0;
}

static void recovery_report_lost(struct patient *p, const struct manifest_version *e, int r)
{
	const struct buffer *b = p->buffer;

	if ((r == -ENOENT || r == -EOWNERDEAD) && e->ended_ns)
		return; /* it was being freed */
	if (r == -EOWNERDEAD) {
		buffer_audit(b, AUDIT_LOSE, NULL, e->number);
		return;
	}
	log_error("'%s@%" PRIu64 "' on %s is lost: %s", b->name, e->number, b->device,
		  r == -ENOENT
			  ? "the service manager has not kept all of it; check if its store's size "
			    "(FileDescriptorStoreMax=) was lowered"
		  : r == -EBADMSG ? "its memory or layout is not the published one"
				  : strerror(-r));
}

static void recover_versions(struct patient *p)
{
	for (unsigned i = 0; i < p->record->n_versions; i++) {
		const struct manifest_version *e = &p->record->versions[i];
		int r = e->flags & MANIFEST_HELD ? recover_version(p, e) : 0;

		fault_point("recovery-version");
		p->is_dead[i] = r == -EOWNERDEAD;
		if (r < 0)
			recovery_report_lost(p, e, r);
		else if (e->flags & MANIFEST_HELD && !e->ended_ns)
			p->result->n_versions++;
	}
}

/* A version in the making: if it is not all there, it was not acknowledged, and is nothing. */
static void recover_writer(struct patient *p)
{
	const struct manifest_writer *saved = &p->record->writer;
	struct manifest_companions beside = manifest_companions(p->buffer->manifest,
								&saved->companions);
	struct slot_saved of_slot = {
		.id = saved->slot,
		.form = {.data_size = saved->data_size, .data_offset = beside.data_offset},
		.huge_bytes = saved->huge_bytes,
		.map_size = saved->map_size,
		.handle = saved->handle,
		.uid = saved->uid,
	};
	bool in_place = saved->flags & MANIFEST_IN_PLACE;
	struct version *current = buffer_current(p->buffer);
	struct slot *slot = NULL;
	struct layout_table *table = NULL;
	struct version_files *files = NULL;
	int r;

	if (!saved->id)
		return;
	if (in_place)
		r = current && current->slot->id == saved->slot ? 0 : -ENOENT;
	else
		r = find_slot(p, &of_slot, &slot);
	if (r == 0 && beside.data_offset)
		r = find_digests(p, slot, false);
	if (r == 0 && slot_has_writer(slot ? slot : current->slot) == 0)
		r = -ESRCH; /* every process that could write it is dead */
	if (r == 0)
		r = find_table(p, saved->table, saved->uid, &table);
	if (r == 0)
		r = find_files(p, beside.files, saved->uid, &files);
	if (r == 0)
		r = writer_recover(p->buffer, saved, in_place ? current->slot : slot, table, files);
	if (r == 0) {
		(void)slot_watch(in_place ? current->slot : slot);
		p->result->n_writers++;
		return;
	}
	slot_free(slot);
	layout_table_unref(table);
	version_files_unref(files);
	/* Its other half may have been on the way to the store, or out of it; or it was spoiled. */
	if (!in_place) {
		recovery_drop(p, STORE_SLOT, saved->slot);
		recovery_drop(p, STORE_DIGESTS, saved->slot);
	}
	recovery_drop(p, STORE_TABLE, saved->table);
}

/* Written in place, without a writer now: the content is unknown. */
static void check_state(struct buffer *b)
{
	if (b->state != HEAD_UPDATING || b->writer)
		return;
	b->state = HEAD_TORN;
	buffer_audit(b, AUDIT_TORN, NULL, b->current);
}

static bool should_exist(const struct manifest_version *e)
{
	return !e->ended_ns || e->why == WIRE_END_LOST;
}

/* True if a version that should exist, and does not, has this slot: then the slot stays where it is. */
static bool is_missed(const struct patient *p, uint64_t slot)
{
	for (unsigned i = 0; i < p->record->n_versions; i++)
		if (p->record->versions[i].slot == slot && should_exist(&p->record->versions[i]))
			return true;
	return false;
}

/* Drops files, unless a version that should exist has them, and does not, or cannot use them. */
static void drop_files(struct patient *p, uint64_t id)
{
	if (!id)
		return;
	for (unsigned i = 0; i < p->record->n_versions; i++) {
		const struct manifest_version *e = &p->record->versions[i];

		if (manifest_companions(p->buffer->manifest, &e->companions).files == id &&
		    should_exist(e) && !p->is_dead[i])
			return;
	}
	recovery_drop(p, STORE_FILES, id);
}

/*
 * Drops what is left of ended versions: the service manager may not have received the last messages
 * about them. The descriptors that existing versions need were taken before.
 */
static void drop_rest(struct patient *p)
{
	const struct manifest *m = p->buffer->manifest;
	struct manifest_companions of_writer = manifest_companions(m, &p->record->writer.companions);

	if (p->record->writer.id) {
		drop_files(p, of_writer.files);
		drop_files(p, of_writer.other_files);
	}
	for (unsigned i = 0; i < p->record->n_versions; i++) {
		const struct manifest_version *e = &p->record->versions[i];

		drop_files(p, manifest_companions(m, &e->companions).files);
		if (!p->is_dead[i] && (!e->ended_ns || is_missed(p, e->slot)))
			continue;
		recovery_drop(p, STORE_SLOT, e->slot);
		recovery_drop(p, STORE_DIGESTS, e->slot);
		recovery_drop(p, STORE_TABLE, e->table);
	}
}

static void recovery_settle(struct patient *p)
{
	struct server *server = p->server;
	struct buffer *b = p->buffer;

	lost_memory_fall_back(b);
	check_state(b);
	if (b->manifest->n_strangers > 0)
		b->grace_ns = num_now_ns() + server->config.resume_timeout_s * 1000000000;
	fault_point("recovery-before-save");
	buffer_save(b);
	fault_point("recovery-before-head");
	buffer_flip(b);
	buffer_audit(b, AUDIT_RECOVER, NULL, b->current);
	reaper_start(server->reaper);
	if (b->removed || (b->next_version == 1 && !b->writer))
		buffer_drop(b); /* once more: it was going */
	else
		p->result->n_buffers++;
}

static void recovery_quarantine(uint64_t id, const char *name, int r, uint32_t abi)
{
	audit(&(struct audit){.action = AUDIT_QUARANTINE, .buffer = name, .result = r});
	if (r == -EPROTONOSUPPORT)
		log_error("a buffer's manifest (%016" PRIx64
			  ") has format %u and this weightd supports %d: it is kept and not "
			  "served; start the release that wrote it",
			  id, abi, MANIFEST_ABI);
	else if (name)
		log_error("buffer '%s' (%016" PRIx64 ") is kept and not served: %s", name, id,
			  r == -ENOENT   ? "its head page is missing"
			  : r == -EEXIST ? "another buffer has that name"
					 : strerror(-r));
	else
		log_error("a buffer's manifest (%016" PRIx64 ") is kept and not served: %s", id,
			  r == -EBADMSG ? "it is damaged" : strerror(-r));
}

/* 0, or what is wrong with it: then nothing of it was taken. */
static int recover_buffer(struct patient *p, uint64_t id, struct manifest *m)
{
	const struct manifest_record *record = manifest_current(m);
	int head_fd, r;

	if (!(record->flags & MANIFEST_REMOVED) &&
	    buffer_find(p->server, record->name, record->device))
		return -EEXIST;
	head_fd = inherit_take(p->in, STORE_HEAD, id);
	if (head_fd < 0)
		return -ENOENT;
	r = buffer_recover(p->server, id, m, head_fd, &p->buffer);
	if (r < 0) {
		inherit_give_back(p->in, STORE_HEAD, id, head_fd);
		return r;
	}
	store_adopt(&p->server->store);
	store_adopt(&p->server->store);
	p->record = record;
	recover_versions(p);
	recover_writer(p);
	fault_point("recovery-writer");
	drop_rest(p);
	recovery_settle(p);
	return 0;
}

/* Made, or removed, when we were killed: its manifest is first in the store and last out of it. */
static bool is_going(const struct manifest_record *record)
{
	return record->next_version == 1 || record->flags & MANIFEST_REMOVED;
}

static void recover_manifest(struct patient *p, uint64_t id, int fd)
{
	struct manifest *m = NULL;
	uint32_t abi = 0;
	int r = manifest_open(fd, id, &m, &abi);

	if (r == 0)
		r = recover_buffer(p, id, m);
	if (r == 0) {
		(void)fd_close(fd);
		return;
	}
	if (r == -ENOENT && is_going(manifest_current(m))) {
		uid_t uid = manifest_current(m)->uid;

		(void)manifest_free(m);
		(void)fd_close(fd);
		store_adopt(&p->server->store);
		store_remove(&p->server->store, uid, STORE_MANIFEST, id);
		return;
	}
	recovery_quarantine(id, m ? manifest_current(m)->name : NULL, r, abi);
	(void)manifest_free(m);
	inherit_give_back(p->in, STORE_MANIFEST, id, fd);
}

void recovery_run(struct server *server, struct inherit *in, struct recovery *ret)
{
	*ret = (struct recovery){0};
	for (unsigned i = 0; i < in->n; i++) {
		struct patient p = {.server = server, .in = in, .result = ret};
		enum store_kind kind;
		uint64_t id;

		if (in->items[i].fd < 0 || !store_parse_name(in->items[i].name, &kind, &id) ||
		    kind != STORE_MANIFEST)
			continue;
		fault_point("recovery-buffer");
		recover_manifest(&p, id, take_fd(in->items[i].fd));
	}
	ret->n_jobs = group_recovery_run(server, in);
	ret->n_quarantined = inherit_leave(in, &server->store);
}
