#include "server/groups/group_member.h"

#include <stdio.h>
#include <stdlib.h>

#include "server/base/log.h"
#include "server/groups/writer_group.h"
#include "server/state/server.h"
#include "server/state/session.h"

struct group_member *group_member_new(struct writer_group *g, struct session *s, uint32_t rank)
{
	struct group_member *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->group = g;
	m->session = s;
	m->rank = rank;
	list_append(&g->members, &m->link);
	list_append(&s->members, &m->session_link);
	writer_group_settle(g);
	return m;
}

struct group_member *group_member_free(struct group_member *m)
{
	list_remove(&m->link);
	list_remove(&m->session_link);
	free(m);
	return NULL;
}

void group_member_audit(const struct group_member *m, enum audit_action action)
{
	char rank[32];

	(void)snprintf(rank, sizeof(rank), "rank %u", m->rank);
	audit(&(struct audit){
		.action = action, .peer = &m->session->peer, .job = m->group->name, .detail = rank});
}

void group_member_lose(struct group_member *m)
{
	struct writer_group *g = m->group;

	log_info("rank %u of job '%s' is gone (pid %d uid %u)", m->rank, g->name,
		 m->session->peer.pid, m->session->peer.uid);
	(void)group_member_free(m);
	if (g->server->stopping)
		return; /* it may join the successor */
	writer_group_settle(g);
	writer_group_save(g);
}

struct group_member *group_member_of(const struct session *s, const struct writer_group *g)
{
	struct group_member *m;

	list_for_each(m, &s->members, session_link)
		if (m->group == g)
			return m;
	return NULL;
}
