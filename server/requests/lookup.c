#include "server/requests/lookup.h"

#include <errno.h>

#include "server/buffers/buffer.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/buffer_names.h"
#include "server/state/server.h"
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

bool lookup_name_allowed(struct session *s, const char *name, const char *device)
{
	const struct name_rule *rule = buffer_names_find(s->server->config.names, name);

	if (!rule || name_rule_allows(rule, &s->peer))
		return true;
	audit(&(struct audit){.action = AUDIT_REFUSE,
			      .peer = &s->peer,
			      .buffer = device ? name : NULL,
			      .device = device,
			      .job = device ? NULL : name,
			      .result = -EACCES,
			      .detail = "create"});
	session_fail(s, -EACCES,
		     "uid %u may not create %s'%s': [names] of weightd.conf reserves '%s' for %s; choose "
		     "another name, or ask an administrator",
		     s->peer.uid, device ? "" : "job ", name, name_rule_pattern(rule),
		     name_rule_list(rule));
	return false;
}
