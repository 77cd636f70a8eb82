#include "server/buffers/buffer_commit.h"

#include <string.h>

#include "server/buffers/buffer.h"
#include "server/buffers/held_charge.h"
#include "server/buffers/probe.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/state/server.h"

enum head_state buffer_shown_state(const struct buffer *b)
{
	return b->writer && b->writer->pausing && !b->removed ? HEAD_UPDATING : b->state;
}

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

static bool has_files(const struct buffer *b, uint64_t id)
{
	const struct writer *w = b->writer;
	struct version *v;

	list_for_each(v, &b->leaving, link)
		if (version_files_id(v->files) == id)
			return true;
	list_for_each(v, &b->versions, link)
		if (version_files_id(v->files) == id)
			return true;
	return w && w->kept && (version_files_id(w->files) == id || w->other_files == id);
}

/* An entry for files that a writer had and nobody has, if the store may still have them. */
static unsigned leave_files(struct buffer *b, uint64_t id, struct manifest_version *ret)
{
	if (!id || has_files(b, id) || !store_is_behind(&b->server->store))
		return 0;
	*ret = (struct manifest_version){.ended_ns = buffer_now_ns(), .why = WIRE_END_DROPPED};
	manifest_set_companions(b->manifest, &ret->companions,
				(struct manifest_companions){.files = id});
	return 1;
}

/*
 * Copies entries of versions without memory. The oldest are dropped. A version that was never
 * published is dropped at once, unless the store may still have its slot.
 */
static void copy_history(struct buffer *b, const struct manifest_record *old,
			 struct manifest_record *r)
{
	unsigned room = MANIFEST_VERSIONS - b->n_versions - b->n_leaving;
	const struct manifest_version *from[MANIFEST_VERSIONS + 2];
	struct manifest_companions of_writer = manifest_companions(b->manifest,
								   &old->writer.companions);
	struct manifest_version left[2];
	unsigned n_left = 0, n = 0;

	for (unsigned i = 0; i < old->n_versions; i++) {
		const struct manifest_version *e = &old->versions[i];
		const struct version *v = e->flags & MANIFEST_HELD ? find_by_slot(b, e->slot) : NULL;

		if (!(v && v->number == e->number) &&
		    (e->number || store_is_behind(&b->server->store)))
			from[n++] = e;
	}
	/* Behind the others, so that they are not dropped for want of room. */
	n_left += leave_files(b, of_writer.files, &left[n_left]);
	n_left += leave_files(b, of_writer.other_files, &left[n_left]);
	for (unsigned i = 0; i < n_left; i++)
		from[n++] = &left[i];
	for (unsigned i = n > room ? n - room : 0; i < n; i++) {
		struct manifest_version *e = &r->versions[r->n_versions++];

		*e = *from[i];
		if (!e->ended_ns) {
			e->ended_ns = buffer_now_ns();
			/* In place the same slot gets another number. */
			e->why = find_by_slot(b, e->slot) ? WIRE_END_REWRITTEN : WIRE_END_LOST;
		}
		e->flags &= ~MANIFEST_HELD;
	}
}

/* True for a slot with a handle, which is copied: it has no companions. */
static bool copy_handle(const struct slot *s, uint8_t *ret)
{
	if (s->backend->memory != WIRE_MEMORY_CUDA_IPC)
		return false;
	memcpy(ret, s->memory.location.handle, WIRE_HANDLE_SIZE);
	return true;
}

static void copy_version(const struct version *v, struct manifest_record *r)
{
	struct manifest_version *e = &r->versions[r->n_versions++];

	*e = (struct manifest_version){
		.number = v->number,
		.slot = v->slot->id,
		.table = v->table->memfd.id,
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
		.reader = v->holder + 1,
		.map_size = v->slot->memory.location.map_size,
	};
	if (!copy_handle(v->slot, e->handle))
		manifest_set_companions(
			v->buffer->manifest, &e->companions,
			(struct manifest_companions){.data_offset = v->slot->data_offset,
						     .files = version_files_id(v->files)});
	memcpy(e->layout_hash, v->table->hash, sizeof(e->layout_hash));
	memcpy(e->digest, v->digest, sizeof(e->digest));
}

/* Sorts by number. The list is nearly sorted: the newest is last. */
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

static void copy_writer(const struct writer *w, struct manifest_writer *ret)
{
	if (!w->kept)
		return;
	*ret = (struct manifest_writer){
		.id = w->id,
		.cookie = w->cookie,
		.slot = w->slot ? w->slot->id : 0,
		.table = w->table ? w->table->memfd.id : 0,
		.data_size = w->slot ? w->slot->data_size : 0,
		.huge_bytes = w->slot ? w->slot->memory.progress.huge : 0,
		.uid = w->uid,
		.pid = (uint32_t)w->pid,
		.keep = w->keep,
		.flags = (w->target ? MANIFEST_IN_PLACE : 0) | (w->reused ? MANIFEST_RECYCLED : 0) |
			 (w->spoiled ? MANIFEST_SPOILED : 0),
		.map_size = w->slot ? w->slot->memory.location.map_size : 0,
	};
	if (w->slot && !copy_handle(w->slot, ret->handle))
		manifest_set_companions(
			w->buffer->manifest, &ret->companions,
			(struct manifest_companions){.data_offset = w->slot->data_offset,
						     .files = version_files_id(w->files),
						     .other_files = w->other_files});
}

void buffer_save(struct buffer *b)
{
	const struct manifest_record *old = manifest_current(b->manifest);
	struct manifest_record *r = manifest_begin(b->manifest);
	struct version *v;

	tally_change(b);
	held_settle(b);
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
		copy_writer(b->writer, &r->writer);
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
