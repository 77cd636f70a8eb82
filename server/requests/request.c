#include "server/requests/request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "ipc/base/release.h"
#include "ipc/device.h"
#include "server/backend/placement.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/base/program.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/event.h"
#include "server/buffers/lease.h"
#include "server/buffers/lost_memory.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/probe.h"
#include "server/buffers/publication.h"
#include "server/buffers/retention.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/buffers/waiter.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/requests/creation.h"
#include "server/requests/event_watch.h"
#include "server/requests/group_join.h"
#include "server/requests/group_request.h"
#include "server/requests/held.h"
#include "server/requests/listing.h"
#include "server/requests/lookup.h"
#include "server/requests/writer_create.h"
#include "server/requests/writer_files.h"
#include "server/requests/writer_publish.h"
#include "server/state/access.h"
#include "server/state/buffer_names.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* False: the request was answered with an error. */
static bool greet(struct session *s, const struct wire_hello *hello)
{
	char file[WIRE_TEXT_SIZE / 2];

	if (hello->version != WIRE_VERSION) {
		session_fail(s, -EPROTONOSUPPORT,
			     "weightd " RELEASE
			     " (%s) speaks version %d of the protocol, the client version %u; "
			     "use the same release of both",
			     program_file(file, sizeof(file)) < 0 ? "file unknown" : file,
			     WIRE_VERSION, hello->version);
		return false;
	}
	s->greeted = true;
	s->features = hello->features;
	log_debug("session of pid %d uid %u: %s", s->peer.pid, s->peer.uid,
		  buffer_name_ok(hello->program) ? hello->program : "(a program)");
	return true;
}

static void request_hello(struct session *s, const struct wire_request *m, const int *fds)
{
	struct wire_reply reply = {0};

	(void)fds;
	if (!greet(s, &m->hello))
		return;
	session_fill_hello(s, &reply.hello);
	(void)session_reply(s, WIRE_HELLO, &reply, NULL, 0);
}

static void request_ping(struct session *s, const struct wire_request *m, const int *fds)
{
	struct server *server = s->server;
	struct wire_reply reply = {
		.ping =
			{
				.instance = server->instance,
				.uptime_ns = num_now_ns() - server->started_ns,
				.n_buffers = server->n_buffers,
				.n_sessions = server->n_sessions,
				.n_leases = server->n_leases,
				.n_bytes = server->n_slot_bytes,
				.pid = (uint32_t)getpid(),
			},
	};

	(void)m;
	(void)fds;
	(void)CODEC_PUT_STRING(reply.ping.release, RELEASE);
	(void)session_reply(s, WIRE_PING, &reply, NULL, 0);
}

static void request_create(struct session *s, const struct wire_request *m, const int *fds)
{
	creation_start(s, m, fds[0]);
}

static void request_publish(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->publish.writer);

	(void)fds;
	if (w)
		writer_publish(w, &m->publish);
	else
		session_fail(s, -ENOENT, "this connection has no such writer");
}

static void request_publish_shared(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->publish_shared.writer);
	struct lease *lease = lease_find(s, m->publish_shared.lease);

	(void)fds;
	if (w && lease)
		writer_publish_shared(w, lease->version, m->publish_shared.digest);
	else
		session_fail(s, -ENOENT, "this connection has no such %s", w ? "lease" : "writer");
}

static void request_provide(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->provide.writer);

	(void)fds;
	if (w)
		writer_provide_more(w, m->provide.until);
	else
		session_fail(s, -ENOENT, "this connection has no such writer");
}

static void request_abort(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->abort.id);
	struct wire_reply reply = {0};

	(void)fds;
	if (!w) {
		session_fail(s, -ENOENT, "this connection has no such writer");
		return;
	}
	writer_abandon(w);
	(void)session_reply(s, WIRE_ABORT, &reply, NULL, 0);
}

/* True if the buffer can be read now; else the request was answered with an error. */
static bool is_readable(struct session *s, const struct buffer *b)
{
	enum head_state state = buffer_shown_state(b);

	if (state == HEAD_UPDATING)
		session_fail(s, -EAGAIN, "'%s' on %s is being updated; wait for its next version",
			     b->name, b->device);
	else if (state == HEAD_TORN)
		session_fail(s, -EUCLEAN,
			     "'%s' on %s is torn: its writer died in the middle of an update; update it "
			     "again, or remove it (weightctl rm %s)",
			     b->name, b->device, b->name);
	else
		return true;
	return false;
}

static struct version *wanted_version(const struct buffer *b, uint64_t number)
{
	return number ? buffer_version(b, number) : buffer_current(b);
}

/* True if the client can open the layout and map the version; else the request was answered with an error. */
static bool form_is_known(struct session *s, const struct version *v)
{
	bool is_image = v->slot->data_offset;
	char file[WIRE_TEXT_SIZE / 4];

	if (s->features & WIRE_FEATURE_IMAGE || !(is_image || v->table->needs_images))
		return true;
	session_fail(s, -EPROTONOSUPPORT,
		     "'%s@%" PRIu64
		     "' %s, which the libweightd of this program does not support; restart "
		     "the program with the libweightd of release " RELEASE ", that of %s",
		     v->buffer->name, v->number,
		     is_image ? "is a file" : "has its tensors without room between them",
		     program_file(file, sizeof(file)) < 0 ? "weightd" : file);
	return false;
}

/* The version that an attach asks for. NULL: the request was answered with an error. */
static struct version *find_version(struct session *s, struct buffer *b,
				    const struct wire_attach *attach)
{
	struct version *v = wanted_version(b, attach->version);

	if (v && lost_memory_check(v->slot))
		v = wanted_version(b, attach->version);
	if (attach->buffer && attach->buffer != b->id)
		session_fail(s, -ESTALE, "'%s' on %s was removed and made anew", b->name, b->device);
	else if (!is_readable(s, b))
		return NULL;
	else if (!v && attach->version)
		session_fail(s, -ENOENT, "'%s' on %s has no version %" PRIu64, b->name, b->device,
			     attach->version);
	else if (!v)
		session_fail(s, -ENODATA,
			     b->next_version > 1 ? "'%s' on %s has no version left; load it again"
						 : "'%s' on %s has not been published yet",
			     b->name, b->device);
	else if (!form_is_known(s, v))
		return NULL; /* before its layout is compared: the client's program must end in any case */
	else if (attach->flags & WIRE_ATTACH_CHECK_LAYOUT &&
		 memcmp(attach->layout_hash, v->table->hash, WIRE_HASH_SIZE))
		session_fail(s, -EPROTOTYPE,
			     "the layout of '%s@%" PRIu64 "' on %s is not the requested one",
			     b->name, v->number, b->device);
	else
		return v;
	return NULL;
}

/* True for a buffer of the owner that an attach asks for; else the request was answered with an error. */
static bool owner_ok(struct session *s, const struct buffer *b, const struct wire_attach *attach)
{
	if (!(attach->flags & WIRE_ATTACH_OWNER) || attach->owner == b->access.uid)
		return true;
	lookup_refuse(s, b, "attach as another user's");
	session_fail(
		s, -EPERM,
		"'%s' on %s belongs to uid %u, not to uid %u as demanded; use another name, or "
		"have an administrator remove it (weightctl rm) or give it away (weightctl chown)",
		b->name, b->device, b->access.uid, attach->owner);
	return false;
}

static void request_attach(struct session *s, const struct wire_request *m, const int *fds)
{
	struct buffer *b = lookup_buffer(s, m->attach.name, m->attach.device, ACCESS_READ);
	struct version *v = b && owner_ok(s, b, &m->attach) ? find_version(s, b, &m->attach) : NULL;
	struct wire_reply reply = {0};
	struct lease *lease;
	int out[3];
	int r;

	(void)fds;
	if (!v)
		return;
	out[1] = buffer_head(b);
	out[2] = slot_reader(v->slot);
	if (out[1] < 0 || out[2] < 0) {
		session_fail(s, -EMFILE, "weightd is out of descriptors; try again");
		return;
	}
	if (!held_allows(s, v))
		return;
	r = lease_new(s, v, server_next_id(s->server), &lease);
	if (r != 0) {
		session_fail_quota(s, r, "leases; detach some");
		return;
	}
	reply.attach = (struct wire_attach_reply){
		.lease = lease->id,
		.buffer = b->id,
		.version = v->number,
		.data_size = v->slot->data_size,
		.slot_size = v->slot->size,
		.flags = version_flags_for(v, s->features),
		.uid = s->features & WIRE_FEATURE_OWNER ? b->access.uid : 0,
		.location = v->slot->memory.location,
	};
	memcpy(reply.attach.layout_hash, v->table->hash, WIRE_HASH_SIZE);
	memcpy(reply.attach.digest, v->digest, WIRE_HASH_SIZE);
	fault_point("attach-leased");
	out[0] = v->table->memfd.fd;
	if (s->greets)
		session_fill_hello(s, &reply.hello_attach.hello);
	r = session_reply(s, s->greets ? WIRE_HELLO_ATTACH : WIRE_ATTACH, &reply, out, 3);
	PROBE(attach, lease);
	if (r < 0)
		lease_free(lease);
	fault_point("attach-answered");
}

static void request_detach(struct session *s, const struct wire_request *m, const int *fds)
{
	struct lease *lease = lease_find(s, m->detach.id);
	struct wire_reply reply = {0};

	(void)fds;
	if (!lease) {
		session_fail(s, -ENOENT, "this connection has no such lease");
		return;
	}
	lease_free(lease);
	fault_point("detach-freed");
	(void)session_reply(s, WIRE_DETACH, &reply, NULL, 0);
}

static void request_wait(struct session *s, const struct wire_request *m, const int *fds)
{
	struct buffer *b = buffer_find(s->server, m->wait.name, lookup_device(m->wait.device));
	struct wire_wait wait = m->wait;
	struct wire_reply reply = {0};
	int r;

	(void)fds;
	if (b && !lookup_buffer(s, b->name, b->device, ACCESS_READ))
		return;
	if (b && waiter_is_served(b, m->wait.version)) {
		reply.wait.version = b->current;
		(void)session_reply(s, WIRE_WAIT, &reply, NULL, 0);
		return;
	}
	(void)CODEC_PUT_STRING(wait.device,
			       lookup_device(m->wait.device)); /* it was as long before */
	r = waiter_new(s, &wait);
	if (r < 0)
		session_fail(s, r, "weightd is out of memory");
}

static void request_list(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	listing_answer(s, &m->list);
}

static void request_drop(struct session *s, const struct wire_request *m, const int *fds)
{
	const char *device = lookup_device(m->drop.device);
	struct buffer *b = buffer_find(s->server, m->drop.name, device);
	struct wire_reply reply = {0};
	struct version *v;

	(void)fds;
	if (!b) {
		session_fail(s, -ENOENT, "there is no buffer '%s' on %s", m->drop.name, device);
		return;
	}
	if (!access_owns(&b->access, &s->peer)) {
		lookup_refuse(s, b, "remove");
		session_fail(s, -EACCES, "uid %u may not remove '%s'; its owner is uid %u",
			     s->peer.uid, b->name, b->access.uid);
		return;
	}
	if (m->drop.version) {
		v = buffer_version(b, m->drop.version);
		if (!v) {
			session_fail(s, -ENOENT, "'%s' on %s has no version %" PRIu64, b->name,
				     b->device, m->drop.version);
			return;
		}
		if (v->number == b->current) {
			session_fail(s, -EBUSY,
				     "'%s@%" PRIu64
				     "' is the current version; publish another one or roll back "
				     "first, or remove the buffer (weightctl rm %s)",
				     b->name, v->number, b->name);
			return;
		}
		buffer_audit(b, AUDIT_DROP, &s->peer, v->number);
		buffer_drop_version(b, v, WIRE_END_DROPPED);
	} else {
		buffer_audit(b, AUDIT_DROP, &s->peer, 0);
		buffer_drop(b);
	}
	(void)session_reply(s, WIRE_DROP, &reply, NULL, 0);
}

/*
 * A lease from before a restart is there already: limits do not count, for as many leases as there were. 0, or the
 * request was answered with an error.
 */
static int lease_again(struct session *s, struct version *v, uint64_t id, struct lease **ret)
{
	struct manifest *m = v->buffer->manifest;
	int r;

	if (!m->n_strangers && v->slot->uid != s->peer.uid && !held_allows(s, v))
		return -EDQUOT;
	r = m->n_strangers ? lease_renew(s, v, id, ret) : lease_new(s, v, id, ret);
	if (r != 0) {
		session_fail_quota(s, r, "leases; detach some");
		return -EDQUOT;
	}
	if (m->n_strangers)
		m->n_strangers--;
	return 0;
}

/* A writer's connection ended with the server before us. */
static void request_resume(struct session *s, const struct wire_request *m, const int *fds)
{
	uint64_t id = m->resume.id;
	struct wire_reply reply = {0};
	struct lease *lease;
	struct buffer *b;
	struct version *v;

	(void)fds;
	list_for_each(b, &s->server->buffers, link) {
		if (b->writer && b->writer->id == id && writer_adopt(b->writer, s)) {
			reply.resume.buffer = b->id;
			fault_point("resume-adopted");
			(void)session_reply(s, WIRE_RESUME, &reply, NULL, 0);
			return;
		}
		list_for_each(v, &b->versions, link) {
			if (v->writer != id || v->uid != s->peer.uid)
				continue;
			if (lease_again(s, v, id, &lease) < 0)
				return;
			reply.resume.buffer = b->id;
			reply.resume.version = v->number;
			fault_point("resume-published");
			(void)session_reply(s, WIRE_RESUME, &reply, NULL, 0);
			PROBE(attach, lease);
			return;
		}
	}
	session_fail(s, -ESTALE,
		     "the version of this writer no longer exists: it was removed, or the writer "
		     "returned too late; create it again");
}

/* A reader's likewise. What it maps may have ended meanwhile: it holds it all the same. */
static struct version *find_mapped(const struct buffer *b, uint64_t number)
{
	struct list *lists[] = {(struct list *)&b->versions, (struct list *)&b->leaving};
	struct version *v;

	if (b->exclusive)
		return buffer_newest(b); /* there is one slot, whatever its number was */
	for (int i = 0; i < 2; i++)
		list_for_each(v, lists[i], link)
			if (v->number == number && v != b->spare)
				return v;
	return NULL;
}

static void request_renew(struct session *s, const struct wire_request *m, const int *fds)
{
	struct buffer *b = buffer_find_id(s->server, m->renew.buffer);
	struct version *v = b && m->renew.version ? find_mapped(b, m->renew.version) : NULL;
	struct wire_reply reply = {0};
	struct lease *lease;

	(void)fds;
	if (!v) {
		session_fail(s, -ESTALE, "the mapped version no longer exists; attach again");
		return;
	}
	if (!access_allows(&b->access, &s->peer, ACCESS_READ)) {
		/* Without its name: ids can be guessed. */
		session_fail(s, -EACCES, "uid %u may no longer read the version that it maps",
			     s->peer.uid);
		return;
	}
	if (!form_is_known(s, v))
		return;
	if (lease_again(s, v, server_next_id(s->server), &lease) < 0)
		return;
	lease->evicted = b->exclusive && m->renew.version <= b->passed_over;
	reply.renew.lease = lease->id;
	fault_point("renew-leased");
	(void)session_reply(s, WIRE_RENEW, &reply, NULL, 0);
	PROBE(attach, lease);
}

/* The newest version older than the current one. */
static struct version *one_before(const struct buffer *b)
{
	struct version *v, *found = NULL;

	list_for_each(v, &b->versions, link)
		if (v->number < b->current)
			found = v;
	return found;
}

static void request_rollback(struct session *s, const struct wire_request *m, const int *fds)
{
	struct buffer *b = lookup_buffer(s, m->rollback.name, m->rollback.device, ACCESS_WRITE);
	uint64_t number = m->rollback.version;
	struct wire_reply reply = {0};
	struct version *v;

	(void)fds;
	if (!b)
		return;
	v = number ? buffer_version(b, number) : one_before(b);
	if (!v && number) {
		session_fail(s, -ENOENT, "'%s' on %s does not keep version %" PRIu64 " (any more)",
			     b->name, b->device, number);
		return;
	}
	if (!v) {
		session_fail(s, -ENOENT, "'%s' on %s keeps no version older than %" PRIu64, b->name,
			     b->device, b->current);
		return;
	}
	if (!is_readable(s, b))
		return;
	if (v->number != b->current) {
		buffer_rollback(b, v);
		buffer_audit(b, AUDIT_ROLLBACK, &s->peer, v->number);
	}
	reply.rollback.version = v->number;
	(void)session_reply(s, WIRE_ROLLBACK, &reply, NULL, 0);
	waiters_notify(b);
}

static bool may_change_access(struct session *s, const struct buffer *b, const struct wire_access *a)
{
	if (!access_owns(&b->access, &s->peer)) {
		lookup_refuse(s, b, "change");
		session_fail(s, -EACCES, "uid %u may not change '%s'; its owner is uid %u",
			     s->peer.uid, b->name, b->access.uid);
	} else if (a->flags & WIRE_ACCESS_UID && a->uid != b->access.uid &&
		   !access_is_admin(&s->peer))
		session_fail(s, -EPERM, "only an administrator may give '%s' to another user",
			     b->name);
	else if (a->flags & WIRE_ACCESS_GID && a->gid != b->access.gid &&
		 !access_is_admin(&s->peer) && !access_in_group(&s->peer, a->gid))
		session_fail(s, -EPERM, "uid %u is not in group %u", s->peer.uid, a->gid);
	else if (a->flags & WIRE_ACCESS_MODE && a->mode & ~0666u)
		session_fail(s, -EINVAL, "a buffer's mode has r and w bits only: up to 0666");
	else
		return true;
	return false;
}

/* False: out of memory. */
static bool give_away(struct buffer *b, const struct wire_access *a)
{
	bool changes = a->flags & WIRE_ACCESS_UID && a->uid != b->access.uid;

	if (changes && buffer_chown(b, a->uid) < 0)
		return false;
	if (changes && b->writer)
		writer_disown(b->writer, a->uid);
	return true;
}

/* Applies from the next attach on. Versions stay charged to their publishers. */
static void request_access(struct session *s, const struct wire_request *m, const int *fds)
{
	const struct wire_access *a = &m->access;
	const char *device = lookup_device(a->device);
	struct buffer *b = buffer_find(s->server, a->name, device);
	struct wire_reply reply = {0};

	(void)fds;
	if (!b) {
		session_fail(s, -ENOENT, "there is no buffer '%s' on %s", a->name, device);
		return;
	}
	if (!may_change_access(s, b, a))
		return;
	if (!give_away(b, a)) {
		session_fail(s, -ENOMEM, "weightd is out of memory");
		return;
	}
	if (a->flags & WIRE_ACCESS_MODE)
		b->access.mode = a->mode;
	if (a->flags & WIRE_ACCESS_GID)
		b->access.gid = a->gid;
	b->generation++;
	if (b->writer)
		writer_distrust(b->writer);
	fault_point("access-begun");
	buffer_save(b);
	fault_point("access-saved");
	slot_reuse_forget(b);
	event_of_buffer(WIRE_EVENT_ACCESS, b);
	if (a->flags & WIRE_ACCESS_MODE)
		buffer_audit(b, AUDIT_CHMOD, &s->peer, 0);
	if (a->flags & (WIRE_ACCESS_UID | WIRE_ACCESS_GID))
		buffer_audit(b, AUDIT_CHOWN, &s->peer, 0);
	(void)session_reply(s, WIRE_ACCESS, &reply, NULL, 0);
}

static void request_pause(struct session *s, const struct wire_request *m, const int *fds)
{
	struct lease *lease = lease_find(s, m->pause.lease);

	(void)fds;
	if (lease)
		paused_reader_new(s, lease, &m->pause);
	else
		session_fail(s, -ENOENT, "this connection has no such lease");
}

static void request_events(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	event_watch_new(s, &m->events);
}

static void request_stat(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)m;
	(void)fds;
	listing_stat(s);
}

/* A client asks for it that is going to write in this order, or to name what differs. */
static void request_layout(struct session *s, const struct wire_request *m, const int *fds)
{
	const struct wire_layout *layout = &m->layout;
	struct buffer *b = buffer_find(s->server, layout->name, lookup_device(layout->device));
	bool may_read = b && access_allows(&b->access, &s->peer, ACCESS_READ);
	struct wire_reply reply = {0};
	struct version *v;

	(void)fds;
	b = lookup_buffer(s, layout->name, layout->device, may_read ? ACCESS_READ : ACCESS_WRITE);
	if (!b)
		return;
	v = layout->version ? buffer_version(b, layout->version) : buffer_newest(b);
	if (!v) {
		session_fail(s, layout->version ? -ENOENT : -ENODATA,
			     "'%s' on %s does not have that version", b->name, b->device);
		return;
	}
	if (!form_is_known(s, v))
		return;
	reply.layout.version = v->number;
	reply.layout.flags = buffer_flags(b);
	if (s->features & WIRE_FEATURE_IMAGE)
		reply.layout.data_offset = (uint32_t)v->slot->data_offset;
	memcpy(reply.layout.layout_hash, v->table->hash, WIRE_HASH_SIZE);
	(void)session_reply(s, WIRE_LAYOUT, &reply, &v->table->memfd.fd, 1);
}

static void request_proof(struct session *s, const struct wire_request *m, const int *fds)
{
	struct lease *lease = lease_find(s, m->proof.id);
	struct wire_reply reply = {0};
	struct version *v;
	int out[2];

	(void)fds;
	if (!lease) {
		session_fail(s, -ENOENT, "this connection has no such lease");
		return;
	}
	v = lease->version;
	if (!v->slot->data_offset) {
		session_fail(s, -EMEDIUMTYPE,
			     "'%s@%" PRIu64 "' has the flat form: its digests are in its slot",
			     v->buffer->name, v->number);
		return;
	}
	if (!v->has_digest || !slot_has_digests(v->slot)) {
		session_fail(s, -ENODATA, "'%s@%" PRIu64 "' has no digests", v->buffer->name,
			     v->number);
		return;
	}
	out[0] = v->slot->digests.reader_fd;
	out[1] = slot_reader(v->slot);
	if (out[1] < 0) {
		session_fail(s, -EMFILE, "weightd is out of descriptors; try again");
		return;
	}
	(void)session_reply(s, WIRE_PROOF, &reply, out, 2);
}

static void request_set_files(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->set_files.id);

	if (w)
		writer_set_files(w, fds[0]);
	else
		session_fail(s, -ENOENT, "this connection has no such writer");
}

/*
 * A version that the session holds. One that still exists goes first; of the others the buffer was perhaps removed since, and
 * made anew by another user. NULL: none.
 */
static struct version *find_leased(const struct session *s, const struct wire_files *files)
{
	struct version *ended = NULL;
	const struct lease *l;

	list_for_each(l, &s->leases, link) {
		struct version *v = l->version;

		if (v->number != files->version || strcmp(v->buffer->name, files->name) != 0 ||
		    strcmp(v->buffer->device, lookup_device(files->device)) != 0)
			continue;
		if (!v->ended_ns)
			return v;
		ended = v;
	}
	return ended;
}

/* One that the client may read, or has. NULL: the request was answered with an error. */
static struct version *find_version_with_files(struct session *s, const struct wire_files *files)
{
	struct buffer *b = buffer_find(s->server, files->name, lookup_device(files->device));
	struct version *v = files->version ? find_leased(s, files) : NULL;

	if (v && v->ended_ns)
		return v;
	if (!v && b)
		v = wanted_version(b, files->version);
	b = lookup_buffer(s, files->name, files->device, ACCESS_READ);
	if (b && !v)
		session_fail(s, files->version ? -ENOENT : -ENODATA,
			     "'%s' on %s does not have that version", b->name, b->device);
	return b ? v : NULL;
}

static void request_files(struct session *s, const struct wire_request *m, const int *fds)
{
	struct version *v = find_version_with_files(s, &m->files);
	struct wire_reply reply = {0};

	(void)fds;
	if (!v)
		return;
	if (!v->files) {
		session_fail(s, -ENODATA, "'%s@%" PRIu64 "' on %s has no files beside its weights",
			     v->buffer->name, v->number, v->buffer->device);
		return;
	}
	reply.files.version = v->number;
	(void)session_reply(s, WIRE_FILES, &reply, &v->files->memfd.fd, 1);
}

static void request_job_create(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	group_request_create(s, &m->job_create);
}

static void request_job_join(struct session *s, const struct wire_request *m, const int *fds)
{
	group_join_start(s, &m->job_join, fds[0]);
}

static void request_job_part(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	group_request_part(s, &m->job_part);
}

static void request_job_description(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	group_request_description(s, &m->job_description);
}

static void request_job_leave(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	group_request_leave(s, &m->job_leave);
}

static void request_job_remove(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	group_request_remove(s, m->job_remove.name);
}

static void request_job_view(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	group_request_view(s, m->job_view.name);
}

static void request_numa(struct session *s, const struct wire_request *m, const int *fds)
{
	char why[PLACEMENT_WHY_SIZE];
	struct wire_reply reply = {0};
	int r = placement_take(&m->numa, &s->numa, why);

	(void)fds;
	if (r < 0)
		session_fail(s, r, "%s", why);
	else
		(void)session_reply(s, WIRE_NUMA, &reply, NULL, 0);
}

static void (*const handlers[WIRE_OP_END])(struct session *, const struct wire_request *,
					   const int *) = {
	[WIRE_HELLO] = request_hello,
	[WIRE_PING] = request_ping,
	[WIRE_CREATE] = request_create,
	[WIRE_PUBLISH] = request_publish,
	[WIRE_ABORT] = request_abort,
	[WIRE_ATTACH] = request_attach,
	[WIRE_DETACH] = request_detach,
	[WIRE_WAIT] = request_wait,
	[WIRE_LIST] = request_list,
	[WIRE_DROP] = request_drop,
	[WIRE_RESUME] = request_resume,
	[WIRE_RENEW] = request_renew,
	[WIRE_ROLLBACK] = request_rollback,
	[WIRE_ACCESS] = request_access,
	[WIRE_PAUSE] = request_pause,
	[WIRE_EVENTS] = request_events,
	[WIRE_STAT] = request_stat,
	[WIRE_LAYOUT] = request_layout,
	[WIRE_CREATE_IMAGE] = request_create,
	[WIRE_PROOF] = request_proof,
	[WIRE_SET_FILES] = request_set_files,
	[WIRE_FILES] = request_files,
	[WIRE_JOB_CREATE] = request_job_create,
	[WIRE_JOB_JOIN] = request_job_join,
	[WIRE_JOB_PART] = request_job_part,
	[WIRE_JOB_DESCRIPTION] = request_job_description,
	[WIRE_JOB_LEAVE] = request_job_leave,
	[WIRE_JOB_REMOVE] = request_job_remove,
	[WIRE_JOB_VIEW] = request_job_view,
	[WIRE_CREATE_OWNED] = request_create,
	[WIRE_CREATE_IMAGE_OWNED] = request_create,
	[WIRE_HELLO_ATTACH] = request_attach, /* behind the greeting */
	[WIRE_PROVIDE] = request_provide,
	[WIRE_PUBLISH_SHARED] = request_publish_shared,
	[WIRE_NUMA] = request_numa,
};

/* The device that a request names, or NULL. */
static const char *device_of(const struct wire_request *m)
{
	switch (m->header.op) {
	case WIRE_CREATE:
	case WIRE_CREATE_IMAGE:
	case WIRE_CREATE_OWNED:
	case WIRE_CREATE_IMAGE_OWNED:
		return m->create.device;
	case WIRE_ATTACH:
	case WIRE_HELLO_ATTACH:
		return m->attach.device;
	case WIRE_WAIT:
		return m->wait.device;
	case WIRE_LIST:
		return m->list.device;
	case WIRE_DROP:
		return m->drop.device;
	case WIRE_ROLLBACK:
		return m->rollback.device;
	case WIRE_ACCESS:
		return m->access.device;
	case WIRE_LAYOUT:
		return m->layout.device;
	case WIRE_FILES:
		return m->files.device;
	default:
		return NULL;
	}
}

/*
 * True for another name of a GPU than the one that all processes share: the request was answered
 * with an error.
 */
static bool refuse_spelling(struct session *s, const struct wire_request *m)
{
	const char *device = device_of(m);
	struct device parsed;

	if (!device || device_parse(device, &parsed) < 0 || device_is_canonical(device))
		return false;
	session_fail(s, -EINVAL,
		     "'%s' can name another GPU in each process; use cuda:GPU-<uuid>, in lower "
		     "case (weightctl devices lists them)",
		     device);
	return true;
}

int request_handle(struct session *s, const struct wire_request *m, const int *fds)
{
	bool greets_too = m->header.op == WIRE_HELLO_ATTACH;

	if (s->greeted == (greets_too || m->header.op == WIRE_HELLO))
		return -EPROTO; /* hello must be first, and once */
	if (greets_too && !greet(s, &m->hello_attach.hello))
		return 0;
	s->greets = greets_too;
	if (!refuse_spelling(s, m))
		handlers[m->header.op](s, m, fds);
	s->greets = false;
	return 0;
}
