#include "server/requests/group_lookup.h"

#include <errno.h>

#include "server/groups/writer_group.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/session.h"

static struct writer_group *find_named(struct session *s, const char *name)
{
	struct writer_group *g = writer_group_find(s->server, name);

	if (!g)
		session_fail(s, -ENOENT, "there is no job '%s'; weightctl ls lists yours", name);
	return g;
}

static void group_refuse(const struct session *s, const struct writer_group *g, const char *what)
{
	audit(&(struct audit){.action = AUDIT_REFUSE,
			      .peer = &s->peer,
			      .job = g->name,
			      .result = -EACCES,
			      .detail = what});
}

struct writer_group *group_lookup_rank(struct session *s, const char *name,
				       const uint8_t token[WIRE_TOKEN_SIZE])
{
	struct writer_group *g = find_named(s, name);

	if (!g)
		return NULL;
	if (s->peer.uid != g->access.uid || !access_may_own(&s->peer)) {
		group_refuse(s, g, "join");
		session_fail(s, -EACCES,
			     "job '%s' belongs to uid %u, and uid %u cannot be a rank of it; start "
			     "the ranks as the user that created the job, or create another job",
			     g->name, g->access.uid, s->peer.uid);
		return NULL;
	}
	if (!writer_group_has_token(g, token)) {
		group_refuse(s, g, "join with another token");
		session_fail(s, -EACCES,
			     "this is not the token of job '%s': it may be that of an earlier job "
			     "of this name; use the token that its creation returned",
			     g->name);
		return NULL;
	}
	return g;
}

struct writer_group *group_lookup_owned(struct session *s, const char *name, const char *act)
{
	struct writer_group *g = find_named(s, name);

	if (!g || access_owns(&g->access, &s->peer))
		return g;
	group_refuse(s, g, act);
	session_fail(s, -EACCES, "uid %u may not %s job '%s'; its owner is uid %u", s->peer.uid,
		     act, g->name, g->access.uid);
	return NULL;
}
