#include "server/buffers/writer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/base/threads/async_close.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/event.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/reaper.h"
#include "server/buffers/retention.h"
#include "server/buffers/version.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/state/in_work.h"
#include "server/state/server.h"
#include "server/state/session.h"

/*
 * The memory of a version that will never be: the client may still have it mapped, and so it leaves like
 * any other.
 */
static void writer_release_slot(struct writer *w)
{
	struct version *v = w->version;

	if (!w->slot)
		return;
	if (!w->kept && !w->handed_out) {
		slot_free(take_ptr(w->slot));
		return;
	}
	w->version = NULL;
	v->slot = take_ptr(w->slot);
	v->table = take_ptr(w->table);
	v->files = take_ptr(w->files);
	v->writer = w->id;
	v->uid = w->uid;
	v->pid = w->pid;
	v->ended_ns = buffer_now_ns();
	v->why = WIRE_END_DROPPED;
	version_add(v, w->buffer);
}

void writer_leave_target(struct writer *w)
{
	slot_shut(w->slot);
	w->slot = NULL;
	w->target->rewriting = false;
	w->target = NULL;
}

/* The client may have written any part in place, if it had the descriptor. */
static void writer_tear_target(struct writer *w)
{
	struct buffer *b = w->buffer;
	bool ended = w->target->ended_ns; /* its memory was lost */

	writer_leave_target(w);
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
	async_close_memfd(&w->buffer->server->freer, w->uid, w->layout.fd);
	layout_table_unref(w->table);
	version_files_unref(w->files);
	version_files_unref(w->new_files);
	quota_refund(&w->charge);
	store_release(&w->room);
	writer_leave_work(w);
	free(w->version);
	free(w);
}

struct writer *writer_free(struct writer *w)
{
	struct buffer *b = w->buffer;
	bool updated = w->pausing, kept = w->kept;

	assert(!w->busy);
	list_remove(&w->link);
	timer_stop(&w->timer);
	layout_validation_deinit(&w->layout);
	if (w->pausing && !w->slot)
		PROBE(quiesce, w, PROBE_GAVE_UP, paused_readers_n_missing(b));
	if (w->target)
		writer_tear_target(w);
	b->writer = NULL;
	writer_release_slot(w);
	writer_destroy(w);
	if (kept || updated) {
		fault_point("abort-begun");
		buffer_save(b);
		fault_point("abort-saved");
	}
	if (updated) {
		buffer_flip(b);
		paused_readers_resume(b);
	}
	reaper_reap(b);
	if (buffer_has_name(b) && b->next_version == 1)
		buffer_drop(b); /* it was made for this writer alone */
	buffer_unref(b);
	return NULL;
}

void writer_abandon(struct writer *w)
{
	list_remove(&w->link);
	w->session = NULL;
	w->job.cancelled = true;
	if (freeing_wait_stop(&w->wait))
		w->busy = false;
	/* A writer that survives weightd waits for its client in the successor. */
	if (!w->busy && !w->buffer->server->stopping)
		writer_free(w);
}

void writer_end(struct writer *w)
{
	assert(!w->session);
	if (barrier_stop(&w->barrier) || freeing_wait_stop(&w->wait))
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

void writer_set_busy(struct writer *w)
{
	w->busy = true;
	in_work_begin(w->buffer->server, w->uid, &w->work);
}

void writer_leave_work(struct writer *w)
{
	in_work_end(w->buffer->server, &w->work);
}

void writer_submit(struct writer *w, struct worker *worker, int (*step)(struct job *),
		   void (*done)(struct job *, int))
{
	writer_set_busy(w);
	worker_submit(worker, &w->job, w->uid, step, done);
}

struct writer *writer_take_back(struct writer *w)
{
	w->busy = false;
	if (w->session)
		return w;
	return w->buffer->server->stopping ? NULL : writer_free(w);
}

void writer_distrust(struct writer *w)
{
	w->spoiled |= w->reused;
}

void writer_disown(struct writer *w, uid_t uid)
{
	w->spoiled |= uid != w->uid;
}

void writer_fail_for_loss(struct writer *w)
{
	session_fail(
		w->session, -EOWNERDEAD,
		"the memory of '%s' on %s was lost with the process that held it; create it again",
		w->buffer->name, w->buffer->device);
}

void writer_aim(struct writer *w, struct version *target)
{
	w->target = target;
	w->target->rewriting = true;
	w->slot = target->slot;
	w->state_before = w->buffer->state;
}

struct writer *writer_blank(struct buffer *b, uint64_t id)
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
	w->version->buffer = b; /* it gets a reference when it is published */
	timer_init(&w->timer, NULL);
	w->id = id;
	layout_validation_init(&w->layout);
	w->buffer = b;
	buffer_ref(b);
	b->writer = w;
	return w;
}

/* --- return after a restart --- */

static void writer_on_not_back(struct timer *timer)
{
	struct writer *w = container_of(timer, struct writer, timer);

	log_warning("the writer of '%s' on %s (pid %d uid %u) did not return in time",
		    w->buffer->name, w->buffer->device, w->pid, w->uid);
	writer_free(w);
}

int writer_recover(struct buffer *buffer, const struct manifest_writer *saved, struct slot *slot,
		   struct layout_table *table, struct version_files *files)
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
	w->data_offset = slot->data_offset;
	w->table = table;
	w->files = files;
	w->kept = true;
	w->handed_out = true;
	w->reused = saved->flags & MANIFEST_RECYCLED;
	w->spoiled = saved->flags & MANIFEST_SPOILED;
	if (in_place) {
		w->pausing = true;
		writer_aim(w, buffer_current(buffer));
	}
	timer_init(&w->timer, writer_on_not_back);
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
