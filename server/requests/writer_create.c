#include "server/requests/writer_create.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/backend/backend.h"
#include "server/base/async_close.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/device_usage.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/requests/reader_pause.h"
#include "server/requests/store_room.h"
#include "server/state/server.h"
#include "server/state/session.h"

CLEANUP_POINTER(struct writer, writer_free);

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
				.location = w->slot->memory.location,
			},
	};
	bool is_image = w->slot->data_offset;
	int fds[3] = {w->slot->memory.fd, slot_reader(w->slot), w->slot->digests.fd};

	if (fds[1] < 0) {
		session_fail(w->session, -EMFILE, "weightd is out of descriptors; try again");
		writer_free(w);
		return;
	}
	if (session_reply(w->session, is_image ? WIRE_CREATE_IMAGE : WIRE_CREATE, &reply, fds,
			  is_image ? 3 : 2) < 0)
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

	w->kept = true;
	store_release(&w->room); /* all of it is put before anything else can be */
	fault_point("create-provided");
	buffer_save(b);
	fault_point("create-saved");
	buffer_keep(b);
	kept_memfd_keep(&w->table->memfd);
	slot_keep(w->slot);
	fault_point("create-stored");
	r = barrier_start(&w->barrier, &b->server->store, writer_on_kept);
	w->busy = r == 0;
	if (r == 0)
		return;
	fail_to_keep(w, r);
}

static int writer_provide_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? -ECANCELED : slot_provide(w->slot);
}

/* How the host gets more memory for weightd, in a sentence that has named the limit, if there is one. */
static const char *way_to_memory(const struct backend_memory *m)
{
	return m->limit[0] ? "raise that limit (MemoryMax= of a unit)" : "give weightd more memory";
}

static void fail_for_memory(struct writer *w)
{
	const struct backend_memory *m = &w->slot->memory;
	char needs[NUM_SIZE_MAX], missing[NUM_SIZE_MAX];

	if (m->why[0]) {
		session_fail(w->session, -ENOMEM,
			     "'%s' on %s %s; remove a buffer or an old version there (weightctl rm), "
			     "write in place of the current one (--replace), or end a program that "
			     "uses that GPU",
			     w->buffer->name, w->buffer->device, m->why);
		return;
	}
	session_fail(w->session, -ENOMEM,
		     "'%s' on %s needs %s, %s more than %s%s; remove a buffer or an old version "
		     "(weightctl rm), write in place of the current one (--replace), or %s",
		     w->buffer->name, w->buffer->device, num_format_size(needs, w->slot->size),
		     num_format_size(missing, m->progress.missing),
		     m->limit[0] ? "the limit of a cgroup leaves: " : "this machine has free",
		     m->limit, way_to_memory(m));
}

static struct worker *providing_worker(const struct writer *w)
{
	return w->buffer->backend->worker(w->buffer->server);
}

static void writer_provide_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	if (r == -ENOMEM &&
	    buffers_evict(w->buffer->server, w->buffer->device, w->slot->memory.progress.missing)) {
		writer_submit(w, providing_worker(w), writer_provide_step,
			      writer_provide_done); /* behind the freeing of what was evicted */
		return;
	}
	if (r == 0) {
		writer_keep(w);
		return;
	}
	if (r == -ENOMEM)
		fail_for_memory(w);
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

/* The buffer's own layout, if it is the same: then one memfd serves both. */
static int take_table(struct writer *w)
{
	const struct layout_header *h = &w->layout.header;
	struct version *newest = buffer_newest(w->buffer);
	struct server *server = w->buffer->server;
	int r;

	if (newest && has_layout_of(w, newest)) {
		w->table = layout_table_ref(newest->table);
		async_close_memfd(&server->worker, take_fd(w->layout.fd));
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

/* Room in the store for two more, the digests of an image, and a new buffer's own two. */
static int reserve_store_room(struct writer *w)
{
	unsigned n = (w->buffer->kept ? 2u : 4u) + (w->data_offset ? 1u : 0);

	return store_room_reserve(w->session, n, &w->room);
}

/* 0, or the request was answered with an error. */
static int writer_allocate(struct writer *w)
{
	struct slot_place place = buffer_place(w->buffer);
	struct slot_form form = form_of(w);
	struct buffer *b = w->buffer;
	int r;

	r = slot_new(&place, w->uid, &form, &w->slot);
	if (r == QUOTA_EXCEEDED) {
		session_fail(w->session, -EDQUOT,
			     "uid %u may not hold that many bytes or descriptors", w->uid);
		return -EDQUOT;
	}
	if (r < 0) {
		session_fail(w->session, r, "no memory for '%s' on %s: %s", b->name, b->device,
			     strerror(-r));
		return r;
	}
	writer_submit(w, providing_worker(w), writer_provide_step, writer_provide_done);
	return 0;
}

static int writer_await_free_step(struct job *job)
{
	(void)job; /* the worker frees one thing after the other: all before us is free */
	return JOB_DONE;
}

static void writer_await_free_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	(void)r; /* there was nothing to do */
	if (w && writer_allocate(w) < 0)
		writer_free(w);
}

/* 0, or the request was answered with an error. */
static int start_providing(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *spare;
	int r = reserve_store_room(w);

	if (r < 0)
		return r;
	if (!providing_worker(w)) {
		session_fail(w->session, -EAGAIN, "weightd cannot start another thread; try again");
		return -EAGAIN;
	}
	spare = slot_reuse_find(b, w->uid, w->table->data_size);
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
	writer_submit(w, providing_worker(w), writer_await_free_step, writer_await_free_done);
	return 0;
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
	uint64_t room = w->n_free + buffer_bytes(b) + buffers_kept_bytes(server, b->device) +
			buffers_bytes_being_freed(server, b->device);
	const struct backend_memory *m = &w->measured;
	char needed[NUM_SIZE_MAX], missing[NUM_SIZE_MAX];

	if (needs <= room)
		return 0;
	session_fail(w->session, -ENOMEM,
		     "'%s' on %s needs %s, %s more than is free there without its present versions, "
		     "which stay%s%s; remove other buffers (weightctl rm), or %s",
		     b->name, b->device, num_format_size(needed, needs),
		     num_format_size(missing, needs - room),
		     m->limit[0] ? ", by the limit of a cgroup: " : "", m->limit, way_to_memory(m));
	return -ENOMEM;
}

static int check_quota(struct writer *w)
{
	struct slot_form form = form_of(w);
	uint64_t needs = slot_form_charge(&form);

	if (needs <= quota_left(&w->buffer->server->quota, w->uid, QUOTA_BYTES) +
			     buffer_charged_bytes(w->buffer, w->uid))
		return 0;
	session_fail(w->session, -EDQUOT,
		     "uid %u may not hold that many bytes; the present versions of '%s' stay; "
		     "remove other buffers (weightctl rm), or raise bytes= in [limits] of "
		     "weightd.conf",
		     w->uid, w->buffer->name);
	return -EDQUOT;
}

static void writer_measure_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	/* A device that does not answer is found out by providing, too. */
	if ((r == 0 && check_room(w) < 0) || check_quota(w) < 0)
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
	(void)reaper_look(
		b->server->reaper); /* versions that no process holds must not be in the way */
	if (r != 0) {
		session_fail_quota(w->session, r, "bytes or descriptors");
		return -EDQUOT;
	}
	if (b->n_versions + b->n_leaving >= BUFFER_VERSIONS_MAX) {
		session_fail(w->session, -EDQUOT,
			     "%u versions of '%s' are held by readers; let some go",
			     b->n_versions + b->n_leaving, b->name);
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

	return job->cancelled ? -ECANCELED : layout_validation_step(&w->layout);
}

static void writer_check_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	if (!w)
		return;
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

void writer_create_start(struct session *session, struct buffer *buffer,
			 const struct wire_create *create, uint64_t data_offset, int layout_fd)
{
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
	w->cookie = create->cookie;
	w->uid = session->peer.uid;
	w->pid = session->peer.pid;
	w->keep = create->keep;
	w->flags = create->flags;
	w->data_offset = data_offset;
	w->policy = create->policy;
	w->timeout_ms = create->timeout_ms;
	list_append(&session->writers, &w->link);
	r = charge_version(w);
	if (r != 0) {
		session_fail_quota(session, r, "versions; remove some (weightctl rm)");
		return;
	}
	r = layout_validation_open(&w->layout, layout_fd);
	if (r < 0) {
		session_fail(session, r,
			     "the layout must come as a sealed memfd of at most 1 GiB: %s",
			     strerror(-r));
		return;
	}
	writer_submit(w, &server->worker, writer_check_step, writer_check_done);
	w = NULL; /* the session's list has it */
}
