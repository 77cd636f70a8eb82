#include "server/groups/group_member.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/fd.h"
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
	g->n_members++;
	writer_group_settle(g);
	return m;
}

struct group_member *group_member_free(struct group_member *m)
{
	list_remove(&m->link);
	list_remove(&m->session_link);
	m->group->n_members--;
	free(m);
	return NULL;
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

struct group_member *group_member_find(const struct writer_group *g, uint32_t rank)
{
	struct group_member *m;

	list_for_each(m, &g->members, link)
		if (m->rank == rank)
			return m;
	return NULL;
}

struct group_member *group_member_of(const struct session *s, const struct writer_group *g)
{
	struct group_member *m;

	list_for_each(m, &s->members, session_link)
		if (m->group == g)
			return m;
	return NULL;
}

static bool hangs_up(int fd)
{
	struct pollfd p = {.fd = fd};

	return poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR);
}

/* A child of the process may still have its connection, such as a loader of data. */
static bool has_ended(pid_t pid)
{
	struct pollfd p = {.events = POLLIN};
	bool ended;

	if (pid <= 0)
		return false; /* of another pid namespace */
	p.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (p.fd < 0)
		return errno == ESRCH;
	ended = poll(&p, 1, 0) > 0 && p.revents & POLLIN;
	(void)fd_close(p.fd);
	return ended;
}

bool group_member_yields(const struct group_member *m, const struct session *s)
{
	const struct session *first = m->session;

	return (s->peer.pid > 0 && first->peer.pid == s->peer.pid) || first->doomed ||
	       hangs_up(first->source.fd) || has_ended(first->peer.pid);
}
