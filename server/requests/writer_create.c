#include "server/requests/writer_create.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/codec.h"
#include "server/backend/backend.h"
#include "server/base/fault.h"
#include "server/base/threads/async_close.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/requests/eviction.h"
#include "server/requests/held.h"
#include "server/requests/reader_pause.h"
#include "server/requests/store_room.h"
#include "server/state/server.h"
#include "server/state/session.h"

CLEANUP_POINTER(struct writer, writer_free);

/* Memory with which an early create is answered: what a client fills while the next part is made. */
#define EARLY_SIZE (16 * MIB)

static void answer_provide(struct writer *w)
{
	struct wire_reply reply = {
		.provide.done = slot_is_provided(w->slot) ? w->slot->size
							  : w->slot->memory.progress.done,
	};

	writer_leave_work(w);
	if (session_reply(w->session, w->op, &reply, NULL, 0) < 0)
		writer_free(w);
}

void writer_create_answer(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct wire_reply reply = {
		.create =
			{
				.writer = w->id,
				.buffer = b->id,
				.version = b->next_version,
				.data_size = w->slot->data_size,
				.slot_size = w->slot->size,
				.flags = buffer_flags(b),
				.n_parts = slot_is_provided(w->slot)
						   ? 0
						   : (uint32_t)(w->slot->memory.progress.done /
								WIRE_PART_SIZE),
				.location = w->slot->memory.location,
			},
	};
	bool is_image = w->slot->data_offset;
	int fds[3] = {w->slot->memory.fd, slot_reader(w->slot), w->slot->digests.fd};

	writer_leave_work(w);
	if (fds[1] < 0) {
		session_fail(w->session, -EMFILE, "weightd is out of descriptors; try again");
		writer_free(w);
		return;
	}
	if (session_reply(w->session, w->op, &reply, fds, is_image ? 3 : 2) < 0)
		writer_free(w);
	else
		w->handed_out = true;
}

static void fail_to_keep(struct writer *w, int r)
{
	session_fail(w->session, r == -ENOTCONN ? -ENOTRECOVERABLE : r,
		     "the service manager does not keep the memory of '%s' (%s), so it cannot be "
		     "created; restart weightd",
		     w->buffer->name, r == -ENOTCONN ? "it is gone" : strerror(-r));
	writer_free(w);
}

/* In place, what the client has is torn if it dies, and what it has not is as it was: so that is committed. */
static void writer_hand_out(struct writer *w)
{
	struct buffer *b = w->buffer;

	if (w->target) {
		b->state = HEAD_UPDATING;
		buffer_save(b);
		fault_point("update-committed");
	}
	if (w->op == WIRE_PROVIDE)
		answer_provide(w);
	else
		writer_create_answer(w);
	fault_point("create-answered");
}

static void writer_on_kept(struct barrier *barrier, int r)
{
	struct writer *w = writer_take_back(container_of(barrier, struct writer, barrier));

	if (!w)
		return;
	fault_point("create-kept");
	if (r < 0) {
		fail_to_keep(w, r);
		return;
	}
	if (slot_is_lost(w->slot)) {
		writer_fail_for_loss(w);
		writer_free(w);
		return;
	}
	writer_hand_out(w);
}

/* In this order, so that recovery can identify all that it finds. */
static void writer_keep(struct writer *w)
{
	struct buffer *b = w->buffer;
	int r;

	if (!store_room_take(b->server, w->uid, &w->room)) {
		store_room_fail(w->session);
		writer_free(w);
		return;
	}
	w->kept = true;
	fault_point("create-provided");
	buffer_save(b);
	fault_point("create-saved");
	buffer_keep(b);
	kept_memfd_keep(&w->table->memfd, b->store_uid);
	slot_keep(w->slot);
	fault_point("create-stored");
	r = barrier_start(&w->barrier, &b->server->store, b->store_uid, writer_on_kept);
	if (r == 0)
		writer_set_busy(w);
	else
		fail_to_keep(w, r);
}

/* Waits for memory that is being freed there by a user. False: there is none. */
static bool writer_await_free(struct writer *w, uid_t uid, void (*over)(struct freeing_wait *))
{
	struct buffer *b = w->buffer;

	if (!freeing_await(&b->server->freeings, &w->wait, uid, b->device, over))
		return false;
	writer_set_busy(w);
	return true;
}

static int writer_provide_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? -ECANCELED : slot_provide(w->slot, w->provide_until);
}

/* How the host gets more memory for weightd, in a sentence that has named the limit, if there is one. */
static const char *way_to_memory(const struct backend_memory *m)
{
	if (m->nodes[0])
		return "name more nodes (--numa, numactl)";
	return m->limit[0] ? "raise that limit (MemoryMax= of a unit)" : "give weightd more memory";
}

/* The end of a sentence: "needs 2 GB, 1 GB more than". */
static const char *memory_left(const struct backend_memory *m)
{
	if (m->nodes[0])
		return "is free on NUMA nodes ";
	return m->limit[0] ? "the limit of a cgroup leaves: " : "this machine has free";
}

static void fail_for_memory(struct writer *w, const struct eviction *e)
{
	const struct backend_memory *m = &w->slot->memory;
	char needs[NUM_SIZE_MAX], missing[NUM_SIZE_MAX], withheld[192], held[HELD_TEXT_MAX];

	eviction_explain(e, withheld, sizeof(withheld));
	(void)held_describe(w->buffer->server, w->buffer->device, HELD_BEFORE, held);
	if (m->why[0]) {
		session_fail(w->session, -ENOMEM,
			     "'%s' on %s %s%s; remove a buffer or an old version there (weightctl "
			     "rm), write in place of the current one (--replace), or end a program "
			     "that uses that GPU%s",
			     w->buffer->name, w->buffer->device, m->why, withheld, held);
		return;
	}
	session_fail(w->session, -ENOMEM,
		     "'%s' on %s needs %s, %s more than %s%s%s; remove a buffer or an old version "
		     "(weightctl rm), write in place of the current one (--replace), or %s%s",
		     w->buffer->name, w->buffer->device, num_format_size(needs, w->slot->size),
		     num_format_size(missing, m->progress.missing), memory_left(m),
		     m->nodes[0] ? m->nodes : m->limit, withheld, way_to_memory(m), held);
}

static struct worker *providing_worker(const struct writer *w)
{
	return w->buffer->backend->worker(w->buffer->server);
}

static void writer_provide_done(struct job *job, int r);

static void writer_provide(struct writer *w)
{
	writer_submit(w, providing_worker(w), writer_provide_step, writer_provide_done);
}

static void writer_on_room(struct freeing_wait *wait)
{
	struct writer *w = writer_take_back(container_of(wait, struct writer, wait));

	if (w)
		writer_provide(w);
}

/* True when memory may get free, for which the writer waits: evicting is for memory that is short without. */
static bool writer_await_room(struct writer *w, struct eviction *e)
{
	bool is_first = !w->has_waited;

	w->has_waited = true;
	if (is_first && writer_await_free(w, FREEING_BY_ALL, writer_on_room))
		return true;
	if (!store_room_stands(e->server, w->uid, &w->room) ||
	    !eviction_run(e, w->slot->memory.progress.missing))
		return false;
	if (!writer_await_free(w, FREEING_BY_ALL, writer_on_room))
		writer_provide(w);
	return true;
}

static void writer_provide_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));
	struct eviction e;

	if (!w)
		return;
	e = (struct eviction){.server = w->buffer->server,
			      .uid = w->uid,
			      .device = w->buffer->device};
	if (r == -ENOMEM && writer_await_room(w, &e))
		return;
	if (r == 0) {
		if (w->kept)
			writer_hand_out(w);
		else
			writer_keep(w);
		return;
	}
	if (r == -ENOMEM)
		fail_for_memory(w, &e);
	else
		session_fail(w->session, r, "no memory for '%s' on %s: %s", w->buffer->name,
			     w->buffer->device,
			     w->slot->memory.why[0] ? w->slot->memory.why : strerror(-r));
	writer_free(w);
}

static bool has_layout_of(const struct writer *w, const struct version *v)
{
	const struct layout_header *h = &w->layout.header;

	return !memcmp(v->table->hash, h->hash, WIRE_HASH_SIZE) &&
	       v->table->data_size == h->data_size;
}

void writer_provide_more(struct writer *w, uint64_t until)
{
	w->op = WIRE_PROVIDE;
	w->provide_until = until;
	if (slot_is_provided(w->slot))
		answer_provide(w);
	else
		writer_provide(w);
}

/* The buffer's own layout, if it is the same: then one memfd serves both. */
static int take_table(struct writer *w)
{
	const struct layout_header *h = &w->layout.header;
	struct version *newest = buffer_newest(w->buffer);
	struct server *server = w->buffer->server;
	int r;

	if (newest && has_layout_of(w, newest)) {
		w->table = layout_table_ref(newest->table);
		async_close_memfd(&server->freer, w->uid, take_fd(w->layout.fd));
		return 0;
	}
	r = layout_table_new(server, w->uid, w->layout.fd, h, &w->table);
	if (r != 0)
		return r;
	w->layout.fd = -1;
	return 0;
}

/* The form of the slot that is made. */
static struct slot_form form_of(const struct writer *w)
{
	return (struct slot_form){
		.data_size = w->table->data_size,
		.data_offset = w->data_offset,
	};
}

/*
 * Room in the store for the slot, the digests of an image, a new layout, and a new buffer's own two. 0, or the request
 * was answered with an error.
 */
static int reserve_store_room(struct writer *w, bool has_slot, unsigned n_ending)
{
	unsigned n_charged = (w->buffer->kept ? 0 : 2u) + (w->table->memfd.kept ? 0 : 1u);
	struct slot_form form = form_of(w);
	const struct store_need need = {
		.n = n_charged + (has_slot ? 0 : slot_form_descriptors(&form)),
		.n_charged = n_charged,
		.n_ending = n_ending,
	};

	return w->room.store ? 0 : store_room_reserve(w->session, &need, &w->room);
}

/* 0, or the request was answered with an error. */
static int writer_allocate(struct writer *w)
{
	struct slot_place place = buffer_place(w->buffer);
	struct slot_form form = form_of(w);
	struct buffer *b = w->buffer;
	int r;

	place.numa = &w->session->numa;
	r = slot_new(&place, w->uid, &form, &w->slot);
	if (r == QUOTA_EXCEEDED) {
		session_fail(w->session, -EDQUOT, "uid %u may not hold that many " SESSION_MEMORY,
			     w->uid);
		return -EDQUOT;
	}
	if (r < 0) {
		session_fail(w->session, r, "no memory for '%s' on %s: %s", b->name, b->device,
			     strerror(-r));
		return r;
	}
	writer_provide(w);
	return 0;
}

static void writer_on_free(struct freeing_wait *wait)
{
	struct writer *w = writer_take_back(container_of(wait, struct writer, wait));

	if (w && writer_allocate(w) < 0)
		writer_free(w);
}

/* 0, or the request was answered with an error. */
static int start_providing(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *spare;
	int r;

	if (!providing_worker(w)) {
		session_fail(w->session, -EAGAIN, "weightd cannot start another thread; try again");
		return -EAGAIN;
	}
	spare = slot_reuse_find(b, w->uid, w->table->data_size);
	/* Providing looks for the memory of the others. */
	r = spare && !w->table->memfd.kept
		    ? store_room_check_memory(w->session, b->name, w->table->memfd.size)
		    : 0;
	if (r == 0)
		r = reserve_store_room(w, spare, 0);
	if (r < 0)
		return r;
	if (spare) {
		w->slot = take_ptr(spare->slot);
		w->reused = true;
		w->kept = true; /* in one commit with it: a slot in the store must have an owner */
		version_free(spare);
		fault_point("recycle-taken");
		writer_keep(w);
		return 0;
	}
	/* The memory that was freed for it is charged to its owner until it is free. */
	return writer_await_free(w, w->uid, writer_on_free) ? 0 : writer_allocate(w);
}

static void writer_give_up(struct writer *w, int error, const char *why)
{
	struct session *session = w->session;
	struct buffer *b = w->buffer;

	buffer_ref(b);
	writer_free(w); /* first: so that the client finds the buffer as it was */
	if (session)
		session_fail(session, error, "'%s' on %s cannot be updated: %s", b->name, b->device,
			     why);
	buffer_unref(b);
}

static void writer_on_readers_paused(struct writer *w)
{
	struct buffer *b = w->buffer;

	timer_stop(&w->timer);
	if (b->exclusive) {
		int r;

		writer_aim(w, buffer_current(b));
		r = slot_open(w->slot);
		if (r < 0) {
			writer_leave_target(w);
			writer_give_up(w, r, strerror(-r));
			return;
		}
		writer_keep(w);
		return;
	}
	if (start_providing(w) < 0)
		writer_free(w);
}

static const struct reader_pause_ops pause_ops = {
	.go_on = writer_on_readers_paused,
	.give_up = writer_give_up,
};

static int writer_measure_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? -ECANCELED : w->buffer->backend->measure(&w->measured, &w->n_free);
}

/*
 * Refuses a version that cannot fit even when all that may be freed for it is free, while the
 * versions that it is to replace still exist. Providing decides about all others. 0, or the request
 * was answered with an error.
 */
static int check_room(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct server *server = b->server;
	struct slot_form form = form_of(w);
	uint64_t needs = slot_form_charge(&form);
	uint64_t room = w->n_free + buffer_bytes(b) + buffers_bytes_being_freed(server, b->device);
	uint64_t replaced = buffer_charged(b, w->uid).bytes;
	const struct backend_memory *m = &w->measured;
	struct eviction e = {
		.server = server,
		.uid = w->uid,
		.device = b->device,
		.adds = needs > replaced ? needs - replaced : 0,
		.except = b,
	};
	char needed[NUM_SIZE_MAX], missing[NUM_SIZE_MAX], withheld[192], held[HELD_TEXT_MAX];

	if (needs <= room)
		return 0;
	room += eviction_room(&e, needs - room);
	if (needs <= room)
		return 0;
	eviction_explain(&e, withheld, sizeof(withheld));
	session_fail(w->session, -ENOMEM,
		     "'%s' on %s needs %s, %s more than is free there without its present versions, "
		     "which stay%s%s%s; remove other buffers (weightctl rm), or %s%s",
		     b->name, b->device, num_format_size(needed, needs),
		     num_format_size(missing, needs - room),
		     m->limit[0] ? ", by the limit of a cgroup: " : "", m->limit, withheld,
		     way_to_memory(m), held_describe(server, b->device, HELD_BEFORE, held));
	return -ENOMEM;
}

static int check_quota(struct writer *w)
{
	struct slot_form form = form_of(w);
	uint64_t needs = slot_form_charge(&form);
	struct charged replaced = buffer_charged(w->buffer, w->uid);
	const struct quota *q = &w->buffer->server->quota;
	const char *what;

	if (needs > quota_left(q, w->uid, QUOTA_BYTES) + replaced.bytes)
		what = "bytes";
	else if (slot_form_descriptors(&form) >
		 quota_left(q, w->uid, QUOTA_DESCRIPTORS) + replaced.descriptors)
		what = "descriptors";
	else
		return 0;
	session_fail(w->session, -EDQUOT,
		     "uid %u may not hold that many %s; the present versions of '%s' stay; "
		     "remove other buffers (weightctl rm), or raise %s= in [limits] of weightd.conf",
		     w->uid, what, w->buffer->name, what);
	return -EDQUOT;
}

/* Descriptors in the store that go with the versions. */
static unsigned n_ending(const struct buffer *b)
{
	const struct version *v;
	unsigned n = 0;

	list_for_each(v, &b->versions, link)
		n += 1 + slot_has_digests(v->slot);
	return n;
}

static void writer_measure_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	/* A device that does not answer is found out by providing, too. */
	if ((r == 0 && check_room(w) < 0) || check_quota(w) < 0 ||
	    reserve_store_room(w, false, n_ending(w->buffer)) < 0)
		writer_free(w);
	else
		reader_pause_start(w, &pause_ops);
}

/*
 * Checks a version that replaces the existing ones; `newest` is one of these. 0, or the request was
 * answered with an error.
 */
static int start_measuring(struct writer *w, const struct version *newest)
{
	if (!providing_worker(w)) {
		session_fail(w->session, -EAGAIN, "weightd cannot start another thread; try again");
		return -EAGAIN;
	}
	w->measured = (struct backend_memory){
		.server = w->buffer->server,
		.location = newest->slot->memory.location,
		.fd = -1,
	};
	writer_submit(w, providing_worker(w), writer_measure_step, writer_measure_done);
	return 0;
}

static int fail_for_layout(struct writer *w, const struct version *newest)
{
	struct buffer *b = w->buffer;

	session_fail(w->session, -EPROTOTYPE,
		     b->exclusive
			     ? "the layout differs from that of '%s@%" PRIu64 "' on %s, which is "
			       "written in place; remove the buffer first"
			     : "the layout differs from that of '%s@%" PRIu64
			       "' on %s; ask for a new "
			       "layout (weightctl load --new-layout), or remove the buffer first",
		     b->name, newest->number, b->device);
	return -EPROTOTYPE;
}

/* Continues after a valid layout. 0, or the request was answered with an error. */
static int writer_proceed(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *newest = buffer_newest(b);
	int r;

	/* Before it is charged: the client may ask again with the layout that there is. */
	if (newest && !has_layout_of(w, newest) &&
	    (b->exclusive || !(w->flags & WIRE_CREATE_NEW_LAYOUT)))
		return fail_for_layout(w, newest);
	r = take_table(w);
	w->files = version_files_ref(newest ? newest->files : NULL);
	/* Versions that no process holds must not be in the way, least of all the buffer's own. */
	(void)reaper_look(b->server->reaper);
	reaper_reap(b);
	if (r != 0) {
		session_fail_quota(w->session, r, SESSION_MEMORY);
		return -EDQUOT;
	}
	if (b->n_versions + b->n_leaving >= BUFFER_VERSIONS_MAX) {
		char held[HELD_TEXT_MAX];

		session_fail(w->session, -EDQUOT,
			     "%u versions of '%s' are held by readers; let some go%s",
			     b->n_versions + b->n_leaving, b->name,
			     held_describe_versions(b, ": ", held));
		return -EDQUOT;
	}
	if (newest && b->exclusive) {
		reader_pause_start(w, &pause_ops);
		return 0;
	}
	if (newest && w->flags & WIRE_CREATE_REPLACE)
		return start_measuring(w, newest);
	return start_providing(w);
}

static int writer_check_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? layout_validation_cancel(&w->layout)
			      : layout_validation_step(&w->layout);
}

static void writer_check_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	layout_validation_deinit(&w->layout);
	if (r == 0)
		r = writer_proceed(w);
	else if (w->layout.check.why)
		session_fail(w->session, r, "the layout is refused at entry %u: %s",
			     w->layout.check.at, w->layout.check.why);
	else
		session_fail(w->session, r, "the layout cannot be checked: %s", strerror(-r));
	if (r < 0)
		writer_free(w);
}

/* Charges for the future version; in place that is the existing one. */
static int charge_version(struct writer *w)
{
	const struct buffer *b = w->buffer;

	if (b->exclusive && buffer_newest(b))
		return 0;
	return quota_charge(&b->server->quota, w->uid, QUOTA_VERSIONS, 1, &w->charge);
}

/* Memory of a GPU is made as a whole. */
static bool is_early(const struct writer *w)
{
	return w->flags & WIRE_CREATE_EARLY && w->buffer->backend->memory == WIRE_MEMORY_HOST;
}

void writer_create_start(struct session *session, struct buffer *buffer,
			 const struct wire_request *m, uint64_t data_offset, int layout_fd)
{
	const struct wire_create *create = &m->create;
	struct server *server = session->server;
	cleanup(writer_freep) struct writer *w = NULL;
	int r;

	assert(!buffer->writer);
	w = writer_blank(buffer, server_next_id(server));
	if (!w) {
		session_fail(session, -ENOMEM, "weightd is out of memory");
		if (buffer->next_version == 1)
			buffer_drop(buffer);
		return;
	}
	w->session = session;
	w->op = (enum wire_op)m->header.op;
	w->cookie = create->cookie;
	w->uid = session->peer.uid;
	w->pid = session->peer.pid;
	w->keep = create->keep;
	w->flags = create->flags;
	w->provide_until = is_early(w) ? EARLY_SIZE : UINT64_MAX;
	w->data_offset = data_offset;
	w->policy = create->policy;
	w->timeout_ms = create->timeout_ms;
	list_append(&session->writers, &w->link);
	r = charge_version(w);
	if (r != 0) {
		session_fail_quota(session, r, "versions; remove some (weightctl rm)");
		return;
	}
	r = layout_validation_open(&w->layout, server, w->uid, layout_fd);
	if (r < 0) {
		session_fail(session, r,
			     "the layout must come as a sealed memfd of at most 1 GiB: %s",
			     strerror(-r));
		return;
	}
	writer_submit(w, &server->worker, writer_check_step, writer_check_done);
	w = NULL; /* the session's list has it */
}
