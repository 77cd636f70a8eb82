#include "server/writer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "server/audit.h"
#include "server/base/log.h"
#include "server/buffer.h"
#include "server/buffer_commit.h"
#include "server/device_usage.h"
#include "server/event.h"
#include "server/fault.h"
#include "server/layout_table.h"
#include "server/lease.h"
#include "server/probe.h"
#include "server/publication.h"
#include "server/reader_pause.h"
#include "server/reaper.h"
#include "server/retention.h"
#include "server/server.h"
#include "server/session.h"
#include "server/slot.h"
#include "server/slot_reuse.h"

/* io_uring lets go of registered buffers up to 300 ms after its ring was closed. */
#define SEAL_TIMEOUT_NS 1000000000u
#define SEAL_RETRY_NS 10000000u

/*
 * The memory of a version that will never be: the client may still have it mapped, and so it leaves like
 * any other.
 */
static void let_slot_go(struct writer *w)
{
	struct version *v = w->version;

	if (!w->slot)
		return;
	if (!w->kept) {
		slot_free(take_ptr(w->slot));
		return;
	}
	w->version = NULL;
	v->slot = take_ptr(w->slot);
	v->table = take_ptr(w->table);
	v->writer = w->id;
	v->uid = w->uid;
	v->pid = w->pid;
	v->ended_ns = buffer_now_ns();
	v->why = WIRE_END_DROPPED;
	version_add(v, w->buffer);
}

/* The version that was written in place is readers' again. */
static void leave_target(struct writer *w)
{
	slot_shut(w->slot);
	w->slot = NULL;
	w->target->rewriting = false;
	w->target = NULL;
}

/* It has written in place, who knows what; if it could. */
static void tear(struct writer *w)
{
	struct buffer *b = w->buffer;
	bool ended = w->target->ended_ns; /* its memory was lost */

	leave_target(w);
	if (!buffer_has_name(b) || ended)
		return;
	if (!w->handed_out) {
		b->state = w->state_before;
		return;
	}
	b->state = HEAD_TORN;
	fault_point("torn-begun");
	buffer_audit(b, AUDIT_TORN, w->session ? &w->session->peer : NULL, b->current);
	event_of_buffer(WIRE_EVENT_TORN, b);
}

static void writer_destroy(struct writer *w)
{
	async_close_memfd(&w->buffer->server->worker, w->layout.fd);
	layout_table_unref(w->table);
	quota_refund(&w->charge);
	free(w->version);
	free(w);
}

static struct writer *writer_free(struct writer *w)
{
	struct buffer *b = w->buffer;
	bool updated = w->pausing, kept = w->kept;

	assert(!w->busy);
	list_remove(&w->link);
	timer_stop(&w->timer);
	layout_validation_deinit(&w->layout);
	if (w->pausing && !w->slot)
		PROBE(quiesce, w, PROBE_GAVE_UP, reader_pause_n_missing(b));
	if (w->target)
		tear(w);
	b->writer = NULL;
	let_slot_go(w);
	writer_destroy(w);
	if (kept || updated) {
		fault_point("abort-begun");
		buffer_save(b);
		fault_point("abort-saved");
	}
	if (updated) {
		buffer_flip(b);
		reader_pause_end(b);
	}
	reaper_reap(b);
	if (buffer_has_name(b) && b->next_version == 1)
		buffer_drop(b); /* it was made for this writer alone */
	buffer_unref(b);
	return NULL;
}
CLEANUP_POINTER(struct writer, writer_free);

void writer_abandon(struct writer *w)
{
	list_remove(&w->link);
	w->session = NULL;
	w->job.cancelled = true;
	/* What survives us waits for its client in our successor. */
	if (!w->busy && !w->buffer->server->stopping)
		writer_free(w);
}

void writer_end(struct writer *w)
{
	assert(!w->session);
	if (barrier_stop(&w->barrier))
		w->busy = false;
	if (!w->busy)
		writer_free(w);
}

struct writer *writer_find(struct session *session, uint64_t id)
{
	struct writer *w;

	list_for_each(w, &session->writers, link)
		if (w->id == id)
			return w;
	return NULL;
}

static void submit(struct writer *w, struct worker *worker, int (*step)(struct job *),
		   void (*done)(struct job *, int))
{
	w->busy = true;
	worker_submit(worker, &w->job, step, done);
}

/* What was done for it is over. NULL when nobody waits for it any more, and then the writer is gone too. */
static struct writer *take_back(struct writer *w)
{
	w->busy = false;
	if (w->session)
		return w;
	return w->buffer->server->stopping ? NULL : writer_free(w);
}

/* --- keeping --- */

void writer_save(const struct writer *w, struct manifest_writer *ret)
{
	if (!w->kept)
		return;
	*ret = (struct manifest_writer){
		.id = w->id,
		.cookie = w->cookie,
		.slot = w->slot ? w->slot->id : 0,
		.table = w->table ? w->table->id : 0,
		.data_size = w->slot ? w->slot->data_size : 0,
		.huge_bytes = w->slot ? w->slot->memory.progress.huge : 0,
		.uid = w->uid,
		.pid = (uint32_t)w->pid,
		.keep = w->keep,
		.flags = (w->target ? MANIFEST_IN_PLACE : 0) | (w->reused ? MANIFEST_RECYCLED : 0) |
			 (w->spoiled ? MANIFEST_SPOILED : 0),
		.map_size = w->slot ? w->slot->memory.location.map_size : 0,
	};
	if (w->slot)
		memcpy(ret->handle, w->slot->memory.location.handle, sizeof(ret->handle));
}

void writer_distrust(struct writer *w)
{
	w->spoiled |= w->reused;
}

void writer_answer(struct writer *w)
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
	int fds[2] = {w->slot->memory.fd, slot_reader(w->slot)};

	if (fds[1] < 0) {
		session_fail(w->session, -EMFILE, "weightd is out of descriptors; try again");
		writer_free(w);
		return;
	}
	if (session_reply(w->session, WIRE_CREATE, &reply, fds, 2) < 0)
		writer_free(w);
	else
		w->handed_out = true;
}

static void fail_to_keep(struct writer *w, int r)
{
	session_fail(w->session, r == -ENOTCONN ? -ENOTRECOVERABLE : r,
		     "the service manager does not keep the memory of '%s' (%s), and without that nothing "
		     "is made; start weightd anew",
		     w->buffer->name, r == -ENOTCONN ? "it is gone" : strerror(-r));
	writer_free(w);
}

static void fail_for_loss(struct writer *w)
{
	session_fail(
		w->session, -EOWNERDEAD,
		"the memory of '%s' on %s was lost with the process that held it; create it again",
		w->buffer->name, w->buffer->device);
}

/* In place, what the client has is torn if it dies, and what it has not is as it was: so that is committed. */
static void hand_out(struct writer *w)
{
	struct buffer *b = w->buffer;

	if (w->target) {
		b->state = HEAD_UPDATING;
		buffer_save(b);
		fault_point("update-committed");
	}
	writer_answer(w);
	fault_point("create-answered");
}

static void on_kept(struct barrier *barrier, int r)
{
	struct writer *w = take_back(container_of(barrier, struct writer, barrier));

	if (!w)
		return;
	fault_point("create-kept");
	if (r < 0) {
		fail_to_keep(w, r);
		return;
	}
	if (slot_is_lost(w->slot)) {
		fail_for_loss(w);
		writer_free(w);
		return;
	}
	hand_out(w);
}

/* In this order, so that recovery knows all that it finds. */
static void keep(struct writer *w)
{
	struct buffer *b = w->buffer;
	int r;

	w->kept = true;
	fault_point("create-provided");
	buffer_save(b);
	fault_point("create-saved");
	buffer_keep(b);
	layout_table_keep(w->table);
	slot_keep(w->slot);
	fault_point("create-stored");
	r = barrier_start(&w->barrier, &b->server->store, on_kept);
	w->busy = r == 0;
	if (r == 0)
		return;
	fail_to_keep(w, r);
}

/* --- providing --- */

static int provide_step(struct job *job)
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

static void provide_done(struct job *job, int r)
{
	struct writer *w = take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	if (r == -ENOMEM &&
	    buffers_evict(w->buffer->server, w->buffer->device, w->slot->memory.progress.missing)) {
		submit(w, providing_worker(w), provide_step,
		       provide_done); /* behind the freeing of what was evicted */
		return;
	}
	if (r == 0) {
		keep(w);
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
	r = layout_table_new(server, w->uid, w->layout.fd, w->layout.size, &w->table);
	if (r != 0)
		return r;
	w->layout.fd = -1;
	w->table->n_tensors = h->n_tensors;
	w->table->data_size = h->data_size;
	memcpy(w->table->hash, h->hash, WIRE_HASH_SIZE);
	return 0;
}

/* Room in the store for two more, and for a new buffer's own two. */
static int make_store_room(struct writer *w)
{
	struct store *store = &w->buffer->server->store;
	unsigned n = w->buffer->kept ? 2 : 4;

	if (store_is_expected(store) && !store_works(store)) {
		session_fail(w->session, -ENOTRECOVERABLE,
			     "the service manager that kept the memory of this weightd is gone: nothing "
			     "new is made; start weightd anew");
		return -ENOTRECOVERABLE;
	}
	while (!store_has_room(store, n) && buffers_evict(w->buffer->server, NULL, 0))
		;
	if (store_has_room(store, n))
		return 0;
	session_fail(w->session, -EDQUOT,
		     "the service manager keeps %u descriptors for weightd already, of %u; remove a "
		     "buffer (weightctl rm), or raise FileDescriptorStoreMax= and [store] max",
		     store->n_kept, store->max);
	return -EDQUOT;
}

/* 0, or the client was told why not. */
static int allocate(struct writer *w)
{
	struct buffer *b = w->buffer;
	int r;

	r = slot_new(b, w->uid, w->table->data_size, &w->slot);
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
	submit(w, providing_worker(w), provide_step, provide_done);
	return 0;
}

static int free_step(struct job *job)
{
	(void)job; /* the worker frees one thing after the other: all before us is free */
	return JOB_DONE;
}

static void free_done(struct job *job, int r)
{
	struct writer *w = take_back(container_of(job, struct writer, job));

	(void)r; /* there was nothing to do */
	if (w && allocate(w) < 0)
		writer_free(w);
}

/* 0, or the client was told why not. */
static int start_providing(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *spare;
	int r = make_store_room(w);

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
		w->kept = true; /* with it, in one commit: the slot is in the store and must be somebody's */
		version_free(spare);
		fault_point("recycle-taken");
		keep(w);
		return 0;
	}
	/* What made room for it is charged to its owner until it is free. */
	submit(w, providing_worker(w), free_step, free_done);
	return 0;
}

/* --- pausing, see reader_pause.c --- */

static void aim(struct writer *w, struct version *target)
{
	w->target = target;
	w->target->rewriting = true;
	w->slot = target->slot;
	w->state_before = w->buffer->state;
}

void writer_go_on(struct writer *w)
{
	struct buffer *b = w->buffer;

	timer_stop(&w->timer);
	if (b->exclusive) {
		int r;

		aim(w, buffer_current(b));
		r = slot_open(w->slot);
		if (r < 0) {
			leave_target(w);
			writer_give_up(w, r, strerror(-r));
			return;
		}
		keep(w);
		return;
	}
	if (start_providing(w) < 0)
		writer_free(w);
}

void writer_give_up(struct writer *w, int error, const char *why)
{
	struct session *session = w->session;
	struct buffer *b = w->buffer;

	buffer_ref(b);
	writer_free(w); /* first: who is told finds the buffer as it was */
	if (session)
		session_fail(session, error, "'%s' on %s cannot be updated: %s", b->name, b->device,
			     why);
	buffer_unref(b);
}

/* --- measuring --- */

static int measure_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? -ECANCELED : w->buffer->backend->measure(&w->measured, &w->n_free);
}

/*
 * Refuses what cannot fit even when all that may be freed for it is free, while the versions that it is to
 * replace are still there. What may fit is found out by providing. 0, or the client was told why not.
 */
static int check_room(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct server *server = b->server;
	uint64_t needs = digest_slot_size(w->table->data_size);
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
	uint64_t needs = digest_slot_size(w->table->data_size);

	if (needs <= quota_left(&w->buffer->server->quota, w->uid, QUOTA_BYTES) +
			     buffer_charged_bytes(w->buffer, w->uid))
		return 0;
	session_fail(
		w->session, -EDQUOT,
		"uid %u may not hold that many bytes; the present versions of '%s' stay; remove "
		"other buffers (weightctl rm), or have bytes= raised in [limits] of weightd.conf",
		w->uid, w->buffer->name);
	return -EDQUOT;
}

static void measure_done(struct job *job, int r)
{
	struct writer *w = take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	/* A device that does not answer is found out by providing, too. */
	if ((r == 0 && check_room(w) < 0) || check_quota(w) < 0)
		writer_free(w);
	else
		reader_pause_start(w);
}

/*
 * Before the versions there are, of which `newest` is one, are replaced. 0, or the client was told
 * why not.
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
	submit(w, providing_worker(w), measure_step, measure_done);
	return 0;
}

/* --- checking --- */

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

/* The layout is fine. 0, or the client was told why not. */
static int proceed(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *newest = buffer_newest(b);
	int r;

	/* Before it is charged: the client may ask again with the layout that there is. */
	if (newest && !has_layout_of(w, newest) &&
	    (b->exclusive || !(w->flags & WIRE_CREATE_NEW_LAYOUT)))
		return fail_for_layout(w, newest);
	r = take_table(w);
	(void)reaper_look(&b->server->reaper); /* what nobody holds any more is not in the way */
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
		reader_pause_start(w);
		return 0;
	}
	if (newest && w->flags & WIRE_CREATE_REPLACE)
		return start_measuring(w, newest);
	return start_providing(w);
}

static int check_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? -ECANCELED : layout_validation_step(&w->layout);
}

static void check_done(struct job *job, int r)
{
	struct writer *w = take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	if (r == 0)
		r = proceed(w);
	else if (w->layout.check.why)
		session_fail(w->session, r, "the layout is refused at entry %u: %s",
			     w->layout.check.at, w->layout.check.why);
	else
		session_fail(w->session, r, "the layout cannot be checked: %s", strerror(-r));
	if (r < 0)
		writer_free(w);
}

/* NULL: out of memory. Belongs to the buffer, and to nobody else yet. */
static struct writer *writer_blank(struct buffer *b, uint64_t id)
{
	struct writer *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->version = version_blank();
	if (!w->version) {
		free(w);
		return NULL;
	}
	list_init(&w->link);
	w->version->buffer = b; /* whose reference it gets when it is one */
	timer_init(&w->timer, NULL);
	w->id = id;
	layout_validation_init(&w->layout);
	w->buffer = b;
	buffer_ref(b);
	b->writer = w;
	return w;
}

/* For the version it is to become; in place that is the one there is. */
static int charge_version(struct writer *w)
{
	const struct buffer *b = w->buffer;

	if (b->exclusive && buffer_newest(b))
		return 0;
	return quota_charge(&b->server->quota, w->uid, QUOTA_VERSIONS, 1, &w->charge);
}

void writer_new(struct session *session, struct buffer *buffer, const struct wire_create *create,
		int layout_fd)
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
	submit(w, &server->worker, check_step, check_done);
	w = NULL; /* the session's list has it */
}

/* --- coming back --- */

static void on_not_back(struct timer *timer)
{
	struct writer *w = container_of(timer, struct writer, timer);

	log_warning("the writer of '%s' on %s (pid %d uid %u) did not come back in time",
		    w->buffer->name, w->buffer->device, w->pid, w->uid);
	writer_free(w);
}

int writer_recover(struct buffer *buffer, const struct manifest_writer *saved, struct slot *slot,
		   struct layout_table *table)
{
	struct server *server = buffer->server;
	struct writer *w = writer_blank(buffer, saved->id);
	bool in_place = saved->flags & MANIFEST_IN_PLACE;
	int r;

	if (!w)
		return -ENOMEM;
	r = in_place
		    ? 0
		    : quota_charge_anyway(&server->quota, saved->uid, QUOTA_VERSIONS, 1, &w->charge);
	if (r < 0) {
		buffer->writer = NULL;
		writer_destroy(w);
		buffer_unref(buffer);
		return r;
	}
	w->cookie = saved->cookie;
	w->uid = saved->uid;
	w->pid = (pid_t)saved->pid;
	w->keep = saved->keep;
	w->slot = slot;
	w->table = table;
	w->kept = true;
	w->handed_out = true;
	w->reused = saved->flags & MANIFEST_RECYCLED;
	w->spoiled = saved->flags & MANIFEST_SPOILED;
	if (in_place) {
		w->pausing = true;
		aim(w, buffer_current(buffer));
	}
	timer_init(&w->timer, on_not_back);
	timer_start(&server->loop, &w->timer,
		    num_now_ns() + server->config.resume_timeout_s * 1000000000);
	return 0;
}

bool writer_bury(struct writer *w)
{
	if (w->session || w->busy || slot_has_writer(w->slot) != 0)
		return false;
	writer_free(w);
	return true;
}

bool writer_adopt(struct writer *w, struct session *session)
{
	if (w->session || w->busy || w->uid != session->peer.uid || slot_open(w->slot) < 0)
		return false;
	timer_stop(&w->timer);
	w->session = session;
	w->pid = session->peer.pid;
	list_append(&session->writers, &w->link);
	return true;
}

/* --- sealing --- */

static int seal_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);
	int r;

	if (job->cancelled)
		return -ECANCELED;
	r = w->buffer->exclusive || w->buffer->reusable ? slot_finish(w->slot) : slot_seal(w->slot);
	fault_point("publish-slot-sealed");
	if (r != -EBUSY || num_now_ns() > w->publish_began_ns + SEAL_TIMEOUT_NS)
		return r;
	job->not_before_ns = num_now_ns() + SEAL_RETRY_NS;
	return JOB_LATER;
}

static void fail_to_seal(struct writer *w, int r)
{
	const char *name = w->buffer->name;

	if (r == -EBUSY)
		session_fail(
			w->session, r,
			"'%s' cannot be published: its bytes are still mapped writable, or pinned "
			"by I/O in flight, by the writer or a child of it; unmap them and publish "
			"again",
			name);
	else if (r == -EPERM)
		session_fail(w->session, r,
			     "'%s' cannot be published: the writer has forbidden seals on its memory; "
			     "create it again",
			     name);
	else if (r == -ENODATA)
		session_fail(w->session, r,
			     "'%s' cannot be published: parts of its memory were taken out; create it "
			     "again",
			     name);
	else
		session_fail(w->session, r, "'%s' cannot be sealed: %s", name, strerror(-r));
	w->spoiled = r != -EBUSY;
}

/* What the writer made, as a version; in place it is the one there is. */
static void fill_version(struct writer *w)
{
	struct version *v = w->target ? w->target : take_ptr(w->version);

	v->writer = w->id;
	v->published_ns = buffer_now_ns();
	v->uid = w->uid;
	v->pid = w->pid;
	v->has_digest = w->has_digest;
	memcpy(v->digest, w->digest, sizeof(v->digest));
	if (w->target) {
		leave_target(w);
		return;
	}
	v->slot = take_ptr(w->slot);
	v->table = take_ptr(w->table);
	v->charge = w->charge;
	w->charge = (struct charge){0};
}

/* Everything that can fail comes before buffer_publish(), which is the flip. */
static void commit(struct writer *w)
{
	struct session *session = w->session;
	struct buffer *b = w->buffer;
	bool in_place = w->target;
	struct version *v = in_place ? w->target : w->version;
	struct wire_reply reply = {0};
	struct lease *lease;
	int r = lease_new(session, v, w->id, &lease);

	if (r != 0) {
		session_fail_quota(session, r, "leases; detach some");
		return;
	}
	fill_version(w);
	if (w->keep)
		b->keep = w->keep;
	b->writer = NULL; /* one commit ends the writer and begins the version */
	w->kept = false;
	if (in_place)
		buffer_rewrite(b, v);
	else
		buffer_publish(b, v);
	reply.publish.version = v->number;
	buffer_audit(b, AUDIT_PUBLISH, &session->peer, v->number);
	PROBE(publish, v, w->publish_began_ns);
	PROBE(attach, lease); /* the writer's own */
	w->pausing = false;
	(void)writer_free(w);
	fault_point("publish-answered");
	(void)session_reply(session, WIRE_PUBLISH, &reply, NULL,
			    0); /* the version stands either way */
	reader_pause_end(b);
}

/* Else the client was told why not. */
static bool can_be_published(struct writer *w)
{
	if (slot_is_lost(w->slot)) {
		fail_for_loss(w);
		return false;
	}
	if (!w->spoiled && buffer_has_name(w->buffer))
		return true;
	session_fail(w->session, -ESTALE,
		     "'%s' was removed while it was written, or got other permissions, or its memory "
		     "is spoiled; create it again",
		     w->buffer->name);
	return false;
}

static void seal_done(struct job *job, int r)
{
	struct writer *w = take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	if (r < 0)
		fail_to_seal(w, r);
	else if (can_be_published(w))
		commit(w);
}

void writer_publish(struct writer *w, const struct wire_publish *publish)
{
	if (!can_be_published(w))
		return;
	w->has_digest = publish->flags & WIRE_PUBLISH_DIGEST;
	memset(w->digest, 0, sizeof(w->digest));
	if (w->has_digest)
		memcpy(w->digest, publish->digest, sizeof(w->digest));
	w->publish_began_ns = num_now_ns();
	fault_point("publish-begun");
	submit(w, &w->buffer->server->sealer, seal_step, seal_done);
}
