#include "server/buffers/paused_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/lease.h"
#include "server/buffers/version.h"
#include "server/buffers/waiter.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* A session that has paused and waits until the update is over. */
struct paused_reader {
	struct list link; /* server::paused_readers */
	struct session *session;
	struct lease *lease;
	struct timer timer;
	bool resumed; /* on no list: the answer is due */
};

static void paused_reader_free(struct paused_reader *p)
{
	timer_stop(&p->timer);
	list_remove(&p->link);
	p->session->paused_reader = NULL;
	free(p);
}

void paused_reader_forget(struct session *s)
{
	if (s->paused_reader)
		paused_reader_free(s->paused_reader);
}

static void paused_reader_answer(struct session *s, struct lease *lease)
{
	const struct version *v = lease->version;
	const struct buffer *b = v->buffer;
	struct wire_reply reply = {0};

	lease->paused = false;
	if (lease->evicted) {
		session_fail(s, -EUCLEAN,
			     "'%s' on %s was updated while this process read it: it did not pause "
			     "in time; attach it again",
			     b->name, b->device);
		return;
	}
	if (v->why == WIRE_END_LOST) {
		session_fail(s, -EOWNERDEAD,
			     "'%s@%" PRIu64 "' on %s is lost: the process that held its memory died",
			     b->name, v->number, b->device);
		return;
	}
	if (b->state == HEAD_TORN) {
		session_fail(s, -EUCLEAN, "'%s' on %s is torn: its writer died; update it again",
			     b->name, b->device);
		return;
	}
	if (b->removed) {
		session_fail(s, -ESTALE, "'%s' on %s was removed", b->name, b->device);
		return;
	}
	reply.pause = (struct wire_pause_reply){
		.version = v->number,
		.flags = version_flags_for(v, s->features),
	};
	memcpy(reply.pause.layout_hash, v->table->hash, WIRE_HASH_SIZE);
	memcpy(reply.pause.digest, v->digest, WIRE_HASH_SIZE);
	(void)session_reply(s, WIRE_PAUSE, &reply, NULL, 0);
}

static void paused_reader_on_timeout(struct timer *timer)
{
	struct paused_reader *p = container_of(timer, struct paused_reader, timer);
	struct session *s = p->session;
	const struct buffer *b = p->lease->version->buffer;

	paused_reader_free(p); /* the lease stays paused: its reader will ask again */
	session_fail(s, -ETIMEDOUT, "'%s' on %s is still being updated", b->name, b->device);
}

void paused_reader_new(struct session *s, struct lease *lease, const struct wire_pause *pause)
{
	struct buffer *b = lease->version->buffer;
	struct paused_reader *p;

	if (buffer_shown_state(b) != HEAD_UPDATING || lease->evicted) {
		paused_reader_answer(s, lease);
		return;
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		session_fail(s, -ENOMEM, "weightd is out of memory");
		return;
	}
	p->session = s;
	p->lease = lease;
	timer_init(&p->timer, paused_reader_on_timeout);
	if (pause->timeout_ms >= 0)
		timer_start(&s->server->loop, &p->timer,
			    num_now_ns() + (uint64_t)pause->timeout_ms * 1000000);
	list_append(&s->server->paused_readers, &p->link);
	s->paused_reader = p;
	lease->paused = true;
	fault_point("pause-taken");
	paused_readers_changed(b);
}

/* In a turn of its user. */
static void paused_reader_go_on(struct session *s)
{
	struct paused_reader *p = s->paused_reader;
	struct lease *lease;

	if (!p || !p->resumed)
		return;
	lease = p->lease;
	paused_reader_free(p);
	paused_reader_answer(s, lease);
	fault_point("pause-answered");
}

void paused_readers_resume(struct buffer *b)
{
	struct paused_reader *p, *tmp;
	struct version *v;
	struct lease *l;

	/* A pause was for this update: the next one asks again. */
	list_for_each(v, &b->versions, link)
		list_for_each(l, &v->leases, version_link)
			l->paused = false;
	list_for_each_safe(p, tmp, &b->server->paused_readers, link) {
		if (p->lease->version->buffer != b)
			continue;
		list_remove(&p->link);
		timer_stop(&p->timer);
		p->resumed = true;
		session_wake(p->session, paused_reader_go_on);
	}
	waiters_notify(b);
}

bool paused_reader_is_missing(const struct buffer *b, const struct lease *l)
{
	return !l->evicted && !(b->exclusive && l->paused) && l->session != b->writer->session;
}

unsigned paused_readers_n_missing(const struct buffer *b)
{
	const struct version *v;
	const struct lease *l;
	unsigned n = 0;

	list_for_each(v, &b->versions, link)
		list_for_each(l, &v->leases, version_link)
			n += paused_reader_is_missing(b, l);
	return n;
}

void paused_readers_changed(struct buffer *b)
{
	struct writer *w = b->writer;

	/* Not within the request that is being answered: it may be the writer's own. */
	if (w && w->pausing && !w->slot && w->session)
		timer_start(&b->server->loop, &w->timer, 0);
}
