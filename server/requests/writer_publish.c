#include "server/requests/writer_publish.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/lease.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/publication.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/slot.h"
#include "server/state/audit.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* io_uring releases registered buffers up to 300 ms after its ring was closed. */
#define SEAL_TIMEOUT_NS 1000000000u
#define SEAL_RETRY_NS 10000000u

static int writer_seal_step(struct job *job)
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
			     "'%s' cannot be published: parts of its memory were removed; create "
			     "it again",
			     name);
	else
		session_fail(w->session, r, "'%s' cannot be sealed: %s", name, strerror(-r));
	w->spoiled = r != -EBUSY;
}

/* Fills in the writer's version; in place it is the existing one. */
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
		struct version_files *old = v->files;

		v->files = w->files;
		w->files = old;
		writer_leave_target(w);
		return;
	}
	v->slot = take_ptr(w->slot);
	v->table = take_ptr(w->table);
	v->files = take_ptr(w->files);
	v->charge = w->charge;
	w->charge = (struct charge){0};
}

/* Everything that can fail is before buffer_publish(), which is the flip. */
static void writer_commit(struct writer *w)
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
	paused_readers_resume(b);
}

/* Else the request was answered with an error. */
static bool can_be_published(struct writer *w)
{
	if (slot_is_lost(w->slot)) {
		writer_fail_for_loss(w);
		return false;
	}
	if (!w->spoiled && buffer_has_name(w->buffer))
		return true;
	session_fail(w->session, -ESTALE,
		     "'%s' was removed while it was written, or got another owner or other "
		     "permissions, or its memory is spoiled; create it again",
		     w->buffer->name);
	return false;
}

static void writer_seal_done(struct job *job, int r)
{
	struct writer *w = writer_take_back(container_of(job, struct writer, job));

	if (!w)
		return;
	writer_leave_work(w);
	if (r < 0)
		fail_to_seal(w, r);
	else if (can_be_published(w))
		writer_commit(w);
}

void writer_publish(struct writer *w, const struct wire_publish *publish)
{
	if (!w->kept) {
		session_fail(w->session, -EBUSY,
			     "'%s' cannot be published: parts of its memory are still to be provided",
			     w->buffer->name);
		return;
	}
	if (!can_be_published(w))
		return;
	w->has_digest = publish->flags & WIRE_PUBLISH_DIGEST;
	memset(w->digest, 0, sizeof(w->digest));
	if (w->has_digest)
		memcpy(w->digest, publish->digest, sizeof(w->digest));
	w->publish_began_ns = num_now_ns();
	fault_point("publish-begun");
	writer_submit(w, &w->buffer->server->sealer, writer_seal_step, writer_seal_done);
}
