#include "server/requests/creation.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/backend/backend.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/buffers/event.h"
#include "server/buffers/retention.h"
#include "server/buffers/writer.h"
#include "server/requests/lookup.h"
#include "server/requests/writer_create.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/server.h"
#include "server/state/session.h"

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
	else if ((r = buffer_new(s->server, create->name, device, backend, &access, &b)) == 0) {
		buffer_audit(b, AUDIT_CREATE, &s->peer, 0);
		return b;
	} else if (r == QUOTA_EXCEEDED)
		session_fail(s, -EDQUOT,
			     "uid %u has too many %s; remove some buffers (weightctl rm)",
			     s->peer.uid,
			     quota_left(&s->server->quota, s->peer.uid, QUOTA_BUFFERS) == 0
				     ? "buffers"
				     : "descriptors");
	else
		session_fail(s, r, "no room for another buffer: %s", strerror(-r));
	return NULL;
}

/* True for a create that is sent again, since its first answer was lost; which is answered then. */
static bool answer_again(struct session *s, struct writer *w, const struct wire_create *create,
			 uint64_t data_offset)
{
	if (!w || w->cookie != create->cookie || w->data_offset != data_offset ||
	    !writer_adopt(w, s))
		return false;
	writer_create_answer(w);
	return true;
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

void creation_start(struct session *s, const struct wire_create *create, uint64_t data_offset,
		    int layout_fd)
{
	const char *device = lookup_device(create->device);
	struct buffer *b = buffer_find(s->server, create->name, device);

	if (b && !lookup_buffer(s, create->name, device, ACCESS_WRITE))
		return;
	if (b && answer_again(s, b->writer, create, data_offset))
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
	writer_create_start(s, b, create, data_offset, layout_fd);
}
