#include "server/requests/creation.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/codec.h"
#include "server/backend/backend.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/event.h"
#include "server/buffers/retention.h"
#include "server/buffers/writer.h"
#include "server/requests/lookup.h"
#include "server/requests/writer_create.h"
#include "server/state/access.h"
#include "server/state/buffer_names.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* The key of the limit that a new buffer is beyond. */
static const char *quota_exceeded(const struct session *s)
{
	return quota_left(&s->server->quota, s->peer.uid, QUOTA_BUFFERS) == 0 ? "buffers"
									      : "descriptors";
}

/*
 * Makes the buffer that a create names and that does not exist. NULL: the request was answered with
 * an error.
 */
static struct buffer *make_buffer(struct session *s, const struct wire_create *create)
{
	const char *device = lookup_device(create->device);
	struct access access = {
		.uid = s->peer.uid,
		.gid = s->peer.gid,
		.mode = create->mode ? create->mode & 0666 : (mode_t)s->server->config.mode,
	};
	bool is_ipc = create->flags & WIRE_CREATE_IPC;
	const struct backend *backend;
	struct buffer *b;
	int r;

	if (!buffer_name_ok(create->name))
		session_fail(s, -EINVAL,
			     "a buffer's name is 1 to 127 of A-Z a-z 0-9 . _ / : - and starts with a "
			     "letter or a digit");
	else if ((r = backend_find(device, is_ipc, &backend)) == -EOPNOTSUPP)
		session_fail(s, r,
			     is_ipc ? "%s has no memory with a cudaIpcMemHandle_t; use the default "
				      "kind (without --handle ipc)"
				    : "%s has no memory of the default kind",
			     device);
	else if (r < 0)
		session_fail(
			s, r,
			"there is no device '%s'; use host, or a GPU that weightctl devices lists",
			device);
	else if (!access_may_own(&s->peer))
		session_fail(s, -EPERM,
			     "uid %u stands for every user that this weightd cannot name, and "
			     "cannot own a buffer",
			     s->peer.uid);
	else if (!lookup_name_allowed(s, create->name, device))
		return NULL;
	else if ((r = buffer_new(s->server, create->name, device, backend, &access, &b)) == 0) {
		buffer_audit(b, AUDIT_CREATE, &s->peer, 0);
		return b;
	} else if (r == QUOTA_EXCEEDED)
		session_fail(s, -EDQUOT,
			     "uid %u has too many %s; remove some buffers (weightctl rm), or raise "
			     "%s= in [limits] of weightd.conf",
			     s->peer.uid, quota_exceeded(s), quota_exceeded(s));
	else
		session_fail(s, r, "no room for another buffer: %s", strerror(-r));
	return NULL;
}

/* That of an image; 0: a version of the flat form. */
static uint64_t data_offset_of(const struct wire_request *m)
{
	return m->header.op == WIRE_CREATE ? 0 : m->create_image.data_offset;
}

/* True for a create that is sent again, since its first answer was lost; which is answered then. */
static bool answer_again(struct session *s, struct writer *w, const struct wire_request *m)
{
	if (!w || w->cookie != m->create.cookie || w->data_offset != data_offset_of(m) ||
	    !writer_adopt(w, s))
		return false;
	w->op = (enum wire_op)m->header.op;
	writer_create_answer(w);
	return true;
}

/* The owner that a create is for: the client's user, unless it names one. */
static uid_t owner_of(const struct session *s, const struct wire_request *m)
{
	bool is_named = m->header.op == WIRE_CREATE_OWNED || m->header.op == WIRE_CREATE_IMAGE_OWNED;

	return is_named ? m->create_owned.owner : s->peer.uid;
}

/*
 * True for a buffer of the owner that the client means: its versions can be removed and written by that user. Else the
 * request was answered with an error.
 */
static bool owner_ok(struct session *s, const struct wire_request *m, const struct buffer *b)
{
	uid_t owner = owner_of(s, m);

	if (b && b->access.uid != owner) {
		lookup_refuse(s, b, "write as another user's");
		session_fail(s, -EPERM,
			     "'%s' on %s belongs to uid %u, not to uid %u; name uid %u as its owner "
			     "(--owner) to publish in that user's buffer, or use another name",
			     b->name, b->device, b->access.uid, owner, b->access.uid);
		return false;
	}
	if (b || owner == s->peer.uid)
		return true;
	session_fail(s, -ENOENT,
		     "there is no buffer '%s' on %s of uid %u; uid %u makes new ones as its own alone "
		     "(without --owner)",
		     m->create.name, lookup_device(m->create.device), owner, s->peer.uid);
	return false;
}

static bool options_ok(struct session *s, const struct wire_create *create, const struct buffer *b)
{
	bool exclusive = create->flags & WIRE_CREATE_EXCLUSIVE;
	bool reusable = create->flags & WIRE_CREATE_REUSABLE;

	if (create->keep > BUFFER_KEEP_MAX)
		session_fail(s, -EINVAL, "a buffer keeps 1 to %d versions", BUFFER_KEEP_MAX);
	else if (exclusive && (reusable || create->flags & WIRE_CREATE_REPLACE))
		session_fail(s, -EINVAL,
			     "an exclusive buffer has one slot: it is neither reusable nor replaced");
	else if (b && exclusive && !b->exclusive)
		session_fail(
			s, -EINVAL,
			"'%s' on %s was created without --exclusive; remove it first (weightctl rm %s)",
			b->name, b->device, b->name);
	else if (b && reusable && !b->reusable)
		session_fail(
			s, -EINVAL,
			"'%s' on %s was created without --reusable; remove it first (weightctl rm %s)",
			b->name, b->device, b->name);
	else if (b && create->flags & WIRE_CREATE_IPC && !(buffer_flags(b) & WIRE_BUFFER_IPC))
		session_fail(s, -EINVAL,
			     "'%s' on %s was created without a cudaIpcMemHandle_t (--handle ipc); "
			     "remove it first (weightctl rm %s)",
			     b->name, b->device, b->name);
	else
		return true;
	return false;
}

/* True for a version of the flat form, and for a buffer whose versions can be images. */
static bool form_ok(struct session *s, const struct wire_create *create, const struct buffer *b,
		    uint64_t data_offset)
{
	bool exclusive = b ? b->exclusive : create->flags & WIRE_CREATE_EXCLUSIVE;
	bool reusable = b ? b->reusable : create->flags & WIRE_CREATE_REUSABLE;
	const struct backend *backend = b ? b->backend : NULL;

	if (!data_offset)
		return true;
	if (exclusive || reusable)
		session_fail(s, -EMEDIUMTYPE,
			     "'%s' is %s: its versions can be written again, and so cannot be files; "
			     "create a version of the flat form",
			     create->name, exclusive ? "exclusive" : "reusable");
	else if ((backend || backend_find(lookup_device(create->device),
					  create->flags & WIRE_CREATE_IPC, &backend) == 0) &&
		 backend->memory != WIRE_MEMORY_HOST)
		session_fail(s, -EMEDIUMTYPE,
			     "memory of %s cannot be a file; create a version of the flat form",
			     lookup_device(create->device));
	else
		return true; /* of a device that does not exist, too: see make_buffer() */
	return false;
}

void creation_start(struct session *s, const struct wire_request *m, int layout_fd)
{
	const struct wire_create *create = &m->create;
	uint64_t data_offset = data_offset_of(m);
	const char *device = lookup_device(create->device);
	struct buffer *b = buffer_find(s->server, create->name, device);

	if (b && !lookup_buffer(s, create->name, device, ACCESS_WRITE))
		return;
	if (!owner_ok(s, m, b))
		return;
	if (b && answer_again(s, b->writer, m))
		return;
	if (b && b->writer && writer_bury(b->writer))
		b = buffer_find(s->server, create->name, device); /* it may have been removed too */
	if (b && b->writer) {
		session_fail(s, -EBUSY, "'%s' on %s is being written by another writer (pid %d)%s",
			     b->name, b->device, b->writer->pid,
			     b->writer->session ? "" : ", which still has time to return");
		return;
	}
	if (!options_ok(s, create, b) || !form_ok(s, create, b, data_offset))
		return;
	if (!b) {
		b = make_buffer(s, create);
		if (!b)
			return;
		b->exclusive = create->flags & WIRE_CREATE_EXCLUSIVE;
		b->reusable = create->flags & WIRE_CREATE_REUSABLE;
		event_of_buffer(WIRE_EVENT_CREATED, b);
	}
	fault_point("create-begun");
	writer_create_start(s, b, m, data_offset, layout_fd);
}
