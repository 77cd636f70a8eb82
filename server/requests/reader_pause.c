#include "server/requests/reader_pause.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/event.h"
#include "server/buffers/lease.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/reaper.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/slot.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/session_kill.h"

#define LOOK_AGAIN_NS 10000000u

/* True while readers from before a restart may be at work that have not returned. */
static bool may_have_strangers(const struct buffer *b)
{
	const struct version *v = buffer_current(b);

	/* Readers that returned hold it too: where others died, they seem to live. */
	return b->manifest->n_strangers > 0 && num_now_ns() < b->grace_ns && v &&
	       slot_is_held(v->slot);
}

static bool anybody_holds(struct buffer *b)
{
	struct version *v;

	list_for_each(v, &b->versions, link)
		if (slot_is_held(v->slot))
			return true;
	return false;
}

/* Ends all versions: the next one takes their room. */
static void end_versions(struct buffer *b)
{
	struct version *v, *tmp;

	list_for_each_safe(v, tmp, &b->versions, link)
		version_end(v, WIRE_END_REWRITTEN);
	b->current = 0;
	b->state = HEAD_EMPTY;
	fault_point("replace-begun");
	buffer_save(b);
	fault_point("replace-committed");
	reaper_reap(b);
}

/* `n_readers` have not made room. */
static void reader_pause_go_on(struct writer *w, unsigned n_readers)
{
	struct buffer *b = w->buffer;

	PROBE(quiesce, w, PROBE_GOES_ON, n_readers);
	if (b->exclusive) {
		/*
		 * Readers from before a restart may not have returned, and read on: on return they
		 * find that they were passed over.
		 */
		if (b->manifest->n_strangers > 0)
			b->passed_over = b->current;
		fault_point("update-paused");
	} else {
		w->pausing = false;
		slot_reuse_forget(b);
		end_versions(b);
		buffer_flip(b);
		paused_readers_resume(b); /* readers that paused instead of letting go were evicted */
	}
	w->pause_ops->go_on(w);
}

static void describe_readers(const struct buffer *b, char *text, size_t size)
{
	const struct version *v;
	const struct lease *l;
	size_t n = 0;

	text[0] = '\0';
	list_for_each(v, &b->versions, link)
		list_for_each(l, &v->leases, version_link)
			if (paused_reader_is_missing(b, l) && n + 40 < size)
				n += (size_t)snprintf(text + n, size - n, "%spid %d of uid %u",
						      n ? ", " : "", l->session->peer.pid,
						      l->session->peer.uid);
}

/* weightd may signal processes of its own user, and all as root; else the reader is only evicted. */
static void kill_reader(const struct writer *w, const struct lease *l)
{
	int r;

	if (w->uid != 0 && w->uid != l->session->peer.uid)
		return;
	if (l->session->peer.pid == w->pid)
		return;
	r = session_kill(l->session);
	if (r < 0)
		log_warning("pid %d of uid %u cannot be killed: %s", l->session->peer.pid,
			    l->session->peer.uid, strerror(-r));
}

/* Once for each connection, however many leases it has. */
static void tell_eviction(const struct writer *w, struct lease *l)
{
	if (l->session->evicted)
		return;
	l->session->evicted = true;
	buffer_audit(w->buffer, AUDIT_EVICT_READER, &l->session->peer, l->version->number);
	event_of_version(WIRE_EVENT_EVICTED, l->version);
	if (w->policy == WIRE_POLICY_KILL)
		kill_reader(w, l);
}

/* How many leases. */
static unsigned evict_readers(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *v;
	struct lease *l;
	unsigned n = 0;

	b->passed_over = b->current; /* a restart would lose it if only the leases had it */
	list_for_each(v, &b->versions, link) {
		list_for_each(l, &v->leases, version_link)
			l->session->evicted = false;
		list_for_each(l, &v->leases, version_link) {
			if (!paused_reader_is_missing(b, l))
				continue;
			l->evicted = true;
			n++;
			fault_point("update-evicted");
			tell_eviction(w, l);
		}
	}
	return n;
}

static void reader_pause_time_is_up(struct writer *w)
{
	char readers[256], why[320];

	if (w->policy != WIRE_POLICY_WAIT) {
		reader_pause_go_on(w, evict_readers(w));
		return;
	}
	describe_readers(w->buffer, readers, sizeof(readers));
	(void)snprintf(why, sizeof(why), "its readers did not %s in time: %s",
		       w->buffer->exclusive ? "pause" : "let go",
		       readers[0] ? readers : "processes that have it mapped without a lease");
	w->pause_ops->give_up(w, -ETIMEDOUT, why);
}

static bool is_time_up(const struct writer *w)
{
	return w->pause_deadline_ns && num_now_ns() >= w->pause_deadline_ns;
}

static void reader_pause_look(struct writer *w)
{
	struct buffer *b = w->buffer;
	uint64_t next = num_now_ns() + LOOK_AGAIN_NS;

	if (b->removed) {
		w->pause_ops->give_up(w, -ESTALE, "it was removed");
		return;
	}
	if (b->exclusive && !buffer_current(b)) {
		w->pause_ops->give_up(
			w, -EOWNERDEAD,
			"its memory was lost with the process that held it; create it again");
		return;
	}
	/* An earlier writer can go on writing after its timeout, or after its connection ended. */
	if (b->exclusive && slot_has_writer(buffer_current(b)->slot) > 0) {
		if (is_time_up(w))
			w->pause_ops->give_up(w, -EBUSY,
					      "an earlier writer still has it mapped writable");
		else
			timer_start(&b->server->loop, &w->timer, next);
		return;
	}
	if (paused_readers_n_missing(b) == 0 &&
	    !(b->exclusive ? may_have_strangers(b) : anybody_holds(b))) {
		reader_pause_go_on(w, 0);
		return;
	}
	if (is_time_up(w)) {
		reader_pause_time_is_up(w);
		return;
	}
	/* The end of a lease calls us; that of a mapping does not. */
	if (paused_readers_n_missing(b) > 0 && w->pause_deadline_ns)
		next = w->pause_deadline_ns;
	if (paused_readers_n_missing(b) == 0 || w->pause_deadline_ns)
		timer_start(&b->server->loop, &w->timer, next);
}

static void reader_pause_on_time(struct timer *timer)
{
	reader_pause_look(container_of(timer, struct writer, timer));
}

void reader_pause_start(struct writer *w, const struct reader_pause_ops *ops)
{
	struct buffer *b = w->buffer;

	writer_leave_work(w);
	w->pause_ops = ops;
	w->pausing = true;
	w->pause_began_ns = num_now_ns();
	w->pause_deadline_ns = w->timeout_ms < 0
				       ? 0
				       : w->pause_began_ns + (uint64_t)w->timeout_ms * 1000000;
	timer_init(&w->timer, reader_pause_on_time);
	event_of_buffer(WIRE_EVENT_UPDATING, b);
	buffer_audit(b, AUDIT_UPDATE_BEGIN, &w->session->peer, b->current);
	buffer_flip(b);
	PROBE(quiesce, w, PROBE_ASKED, paused_readers_n_missing(b));
	fault_point("update-asked");
	timer_start(&b->server->loop, &w->timer, 0);
}
