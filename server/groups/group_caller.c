#include "server/groups/group_caller.h"

#include <stdlib.h>

#include "server/base/threads/async_close.h"
#include "server/groups/group_memory.h"
#include "server/groups/writer_group.h"
#include "server/state/server.h"
#include "server/state/session.h"

struct group_caller *group_caller_new(struct writer_group *g, struct session *s)
{
	struct group_caller *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->group = g;
	c->session = s;
	c->description_fd = -1;
	list_append(&g->callers, &c->link);
	s->group_caller = c;
	return c;
}

struct group_caller *group_caller_free(struct group_caller *c)
{
	struct writer_group *g = c->group;

	if (g->maker == c)
		g->maker = NULL;
	async_close_memfd(&g->server->freer, c->session->peer.uid, c->description_fd);
	c->session->group_caller = NULL;
	list_remove(&c->link);
	free(c);
	return NULL;
}

struct group_caller *group_caller_creator(const struct writer_group *g)
{
	struct group_caller *c;

	list_for_each(c, &g->callers, link)
		if (c->creates)
			return c;
	return NULL;
}

void group_caller_forget(struct session *s)
{
	struct group_caller *c = s->group_caller;
	struct writer_group *g;
	bool creates, makes;

	if (!c)
		return;
	g = c->group;
	creates = c->creates;
	makes = g->maker == c;
	(void)group_caller_free(c);
	if (makes && g->memory)
		g->memory->job.cancelled = true;
	if (creates && !group_caller_creator(g) && !s->server->stopping)
		writer_group_drop(g, "its creator has gone before the answer");
}
