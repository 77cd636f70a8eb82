#include "server/requests/writer_publish.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/lease.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/publication.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/requests/store_room.h"
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
	enum wire_op op = w->op;
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
	(void)session_reply(session, op, &reply, NULL, 0); /* the version stands either way */
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

/* Else the request was answered with an error. */
static bool is_filled(struct writer *w)
{
	if (slot_is_provided(w->slot))
		return can_be_published(w);
	session_fail(w->session, -EBUSY,
		     "'%s' cannot be published: parts of its memory are still to be provided",
		     w->buffer->name);
	return false;
}

static void begin_publish(struct writer *w, enum wire_op op, const uint8_t *digest)
{
	w->op = op;
	w->has_digest = digest;
	memset(w->digest, 0, sizeof(w->digest));
	if (digest)
		memcpy(w->digest, digest, sizeof(w->digest));
	w->publish_began_ns = num_now_ns();
	fault_point("publish-begun");
}

void writer_publish(struct writer *w, const struct wire_publish *publish)
{
	if (!is_filled(w))
		return;
	begin_publish(w, WIRE_PUBLISH,
		      publish->flags & WIRE_PUBLISH_DIGEST ? publish->digest : NULL);
	writer_submit(w, &w->buffer->server->sealer, writer_seal_step, writer_seal_done);
}

/* --- In the memory of another version ---------------------------------------------------------- */

static bool can_share(const struct writer *w, const struct version *v, const uint8_t *digest)
{
	const struct buffer *b = w->buffer;

	return !b->exclusive && !b->reusable && b->backend->memory == WIRE_MEMORY_HOST &&
	       v->slot->backend == b->backend && v->slot->sealed && v->has_digest &&
	       v->slot->data_offset == w->slot->data_offset && v->slot->size == w->slot->size &&
	       !memcmp(v->table->hash, w->table->hash, sizeof(v->table->hash)) &&
	       !memcmp(v->digest, digest, sizeof(v->digest)) &&
	       b->n_versions + b->n_leaving < BUFFER_VERSIONS_MAX;
}

/* The memory that the client has filled, and may have mapped still, leaves like that of an aborted write. */
static int replace_slot(struct writer *w, struct slot *slot)
{
	struct version *v = version_blank();

	if (!v)
		return -ENOMEM;
	v->slot = w->slot;
	v->table = layout_table_ref(w->table);
	v->uid = w->uid;
	v->pid = w->pid;
	v->ended_ns = buffer_now_ns();
	v->why = WIRE_END_DROPPED;
	version_add(v, w->buffer);
	w->slot = slot;
	return 0;
}

static void writer_on_shared(struct barrier *barrier, int r)
{
	struct writer *w = writer_take_back(container_of(barrier, struct writer, barrier));

	if (!w)
		return;
	fault_point("share-kept");
	if (r == 0) {
		writer_submit(w, &w->buffer->server->sealer, writer_seal_step, writer_seal_done);
		return;
	}
	writer_leave_work(w);
	session_fail(w->session, -ENOTRECOVERABLE,
		     "the service manager does not keep the memory of '%s' (%s); restart weightd",
		     w->buffer->name, strerror(-r));
	writer_free(w);
}

/* 0, or the request was answered with an error. */
static int share_slot(struct writer *w, const struct version *v)
{
	const struct store_need need = {.n = v->slot->data_offset ? 2 : 1};
	struct slot_place place = buffer_place(w->buffer);
	struct slot *slot = NULL;
	int r = store_room_reserve(w->session, &need, &w->room);

	if (r < 0)
		return r;
	r = slot_new_shared(&place, w->uid, v->slot, w->slot, &slot);
	if (r == 0 && !store_room_take(w->buffer->server, w->uid, &w->room))
		r = -EDQUOT;
	else if (r == 0)
		r = replace_slot(w, slot);
	if (r == 0)
		return 0;
	slot_free(slot);
	store_release(&w->room);
	session_fail(w->session, r, "'%s' cannot share memory: %s", w->buffer->name, strerror(-r));
	return r;
}

/* In this order, so that recovery can identify all that it finds. */
void writer_publish_shared(struct writer *w, const struct version *v, const uint8_t *digest)
{
	struct buffer *b = w->buffer;

	if (!is_filled(w))
		return;
	if (!can_share(w, v, digest)) {
		session_fail(w->session, -EXDEV,
			     "'%s' cannot have the memory of '%s@%" PRIu64
			     "': it differs from that, or is not sealed host memory",
			     b->name, v->buffer->name, v->number);
		return;
	}
	if (share_slot(w, v) < 0)
		return;
	begin_publish(w, WIRE_PUBLISH_SHARED, digest);
	buffer_save(b);
	fault_point("share-saved");
	slot_keep(w->slot);
	fault_point("share-stored");
	if (barrier_start(&w->barrier, &b->server->store, b->store_uid, writer_on_shared) == 0)
		writer_set_busy(w);
	else
		writer_on_shared(&w->barrier, -ENOTCONN);
}
