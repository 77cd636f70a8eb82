#include "server/requests/lookup.h"

#include <errno.h>

#include "server/buffers/buffer.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/session.h"

const char *lookup_device(const char *device)
{
	return device[0] ? device : "host";
}

void lookup_refuse(const struct session *s, const struct buffer *b, const char *what)
{
	audit(&(struct audit){.action = AUDIT_REFUSE,
			      .peer = &s->peer,
			      .buffer = b->name,
			      .device = b->device,
			      .result = -EACCES,
			      .detail = what});
}

struct buffer *lookup_buffer(struct session *s, const char *name, const char *device, unsigned want)
{
	struct buffer *b = buffer_find(s->server, name, lookup_device(device));
	const char *what = want == ACCESS_READ ? "read" : "write";

	if (!b) {
		session_fail(s, -ENOENT, "there is no buffer '%s' on %s", name,
			     lookup_device(device));
		return NULL;
	}
	if (access_allows(&b->access, &s->peer, want))
		return b;
	lookup_refuse(s, b, what);
	session_fail(s, -EACCES, "uid %u may not %s '%s' (owner uid %u, gid %u, mode %04o)",
		     s->peer.uid, what, name, b->access.uid, b->access.gid, b->access.mode);
	return NULL;
}
