#include "server/requests/group_join.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/groups/group_caller.h"
#include "server/groups/group_member.h"
#include "server/groups/group_memory.h"
#include "server/groups/writer_group.h"
#include "server/requests/eviction.h"
#include "server/requests/group_lookup.h"
#include "server/requests/store_room.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* --- checks --- */

static bool kind_ok(const char *kind)
{
	for (const char *p = kind; *p; p++)
		if (!(*p >= 'A' && *p <= 'Z') && !(*p >= '0' && *p <= '9') && *p != '_')
			return false;
	return kind[0];
}

static bool parts_ok(struct session *s, const struct wire_job_join *join)
{
	if (join->n_parts == 0) {
		session_fail(s, -EINVAL, "a job has 1 to %d parts", WIRE_JOB_PARTS_MAX);
		return false;
	}
	for (unsigned i = 0; i < join->n_parts; i++) {
		if (!kind_ok(join->parts[i].kind)) {
			session_fail(s, -EINVAL, "the kind of part %u is not 1 to %d of A-Z 0-9 _",
				     i, WIRE_KIND_SIZE - 1);
			return false;
		}
		if (!join->parts[i].size) {
			session_fail(s, -EINVAL, "part %u (%s) has no bytes", i,
				     join->parts[i].kind);
			return false;
		}
	}
	return true;
}

/* 0, or the request was answered with an error. */
static int open_description(struct session *s, int fd, int *ret_fd)
{
	uint64_t size = 0;
	int r = fd_is_sealed(fd) ? fd_size(fd, &size) : -EBADMSG;

	if (r == 0 && size > WIRE_DESCRIPTION_MAX)
		r = -EFBIG;
	else if (r == 0 && size > 0 && !fd_is_written(fd, size))
		r = -EBADMSG;
	if (r == 0)
		r = fd_reopen_readonly(fd, ret_fd);
	if (r < 0)
		session_fail(s, r,
			     "a description must come as a sealed memfd without holes, of at most "
			     "%" PRIu64 " MiB: %s",
			     WIRE_DESCRIPTION_MAX >> 20, strerror(-r));
	return r;
}

/* True if the session can be the rank. Else the request was answered with an error. */
static bool rank_ok(struct session *s, struct writer_group *g, uint32_t rank)
{
	const struct group_member *own = group_member_of(s, g);

	if (rank >= g->n_ranks)
		session_fail(s, -EINVAL, "job '%s' has ranks 0 to %u, and no rank %u", g->name,
			     g->n_ranks - 1, rank);
	else if (own && own->rank != rank)
		session_fail(s, -EBUSY,
			     "this connection is rank %u of job '%s'; leave it first, or use another "
			     "connection",
			     own->rank, g->name);
	else
		return true;
	return false;
}

/* --- answers --- */

/* The group has its memory. */
static void group_join_admit(struct group_caller *c)
{
	struct writer_group *g = c->group;
	struct session *s = c->session;
	struct group_member *m = group_member_of(s, g);
	struct wire_reply reply = {0};

	if (!m) {
		m = group_member_new(g, s, c->join.rank);
		if (!m) {
			session_fail(s, -ENOMEM, "weightd is out of memory");
			(void)group_caller_free(c);
			return;
		}
		group_member_audit(m, AUDIT_JOB_JOIN);
	}
	writer_group_set_done(g, m->rank, false);
	writer_group_save(g);
	fault_point("job-joined");
	reply.job_join = (struct wire_job_join_reply){.job = g->id,
						      .n_ranks = g->n_ranks,
						      .n_present = writer_group_n_present(g)};
	(void)group_caller_free(c);
	(void)session_reply(s, WIRE_JOB_JOIN, &reply, NULL,
			    0); /* on failure the connection is being closed */
	fault_point("job-answered");
}

static void fail_for_memory(struct group_caller *c, const struct eviction *e)
{
	const struct group_memory *m = c->group->memory;
	char needs[NUM_SIZE_MAX], has[NUM_SIZE_MAX], missing[NUM_SIZE_MAX], withheld[192];

	eviction_explain(e, withheld, sizeof(withheld));
	session_fail(c->session, -ENOMEM,
		     "job '%s' needs %s, and %s%s%s leaves %s: %s are missing%s; remove a buffer, an old "
		     "version or another job (weightctl rm), or %s",
		     c->group->name, num_format_size(needs, m->size),
		     m->limit[0] ? "the limit of a cgroup, " : "this machine", m->limit,
		     m->limit[0] ? "," : "", num_format_size(has, m->n_free),
		     num_format_size(missing, m->missing), withheld,
		     m->limit[0] ? "raise that limit (MemoryMax= of a unit)"
				 : "give weightd more memory");
}

static void lose_maker(struct writer_group *g)
{
	if (g->maker)
		(void)group_caller_free(g->maker);
	writer_group_unmake(g);
	group_join_wake(g);
}

/* Answers the maker, if it is still there, and lets the next one try. */
static void give_up(struct writer_group *g, int r, const char *why)
{
	if (g->maker)
		session_fail(g->maker->session, r, "job '%s' gets no memory: %s", g->name,
			     why ? why : strerror(-r));
	lose_maker(g);
}

/* Likewise for the lack of memory that eviction could not mend. */
static void give_up_memory(struct writer_group *g, const struct eviction *e)
{
	if (g->maker)
		fail_for_memory(g->maker, e);
	lose_maker(g);
}

/* --- making the memory --- */

static void group_join_on_kept(struct barrier *barrier, int r)
{
	struct writer_group *g = container_of(barrier, struct writer_group, barrier);

	if (!writer_group_take_back(g))
		return;
	fault_point("job-memory-kept");
	if (r < 0) {
		give_up(g, r == -ENOTCONN ? -ENOTRECOVERABLE : r,
			"the service manager does not keep it; restart weightd");
		return;
	}
	g->maker = NULL;
	g->ready = true;
	writer_group_save(g);
	fault_point("job-memory-committed");
	group_join_wake(g);
}

/* In this order, so that recovery can identify all that it finds. */
static void group_join_keep(struct writer_group *g)
{
	int r;

	if (!store_room_take(g->server, g->access.uid, &g->room)) {
		give_up(g, -EDQUOT,
			"versions that were to make room in the store are in use or gone");
		return;
	}
	g->memory->provided = true;
	fault_point("job-provided");
	writer_group_save(g);
	fault_point("job-saved");
	group_memory_keep(g->memory);
	kept_memfd_keep(&g->description, g->access.uid);
	fault_point("job-stored");
	r = barrier_start(&g->barrier, &g->server->store, g->access.uid, group_join_on_kept);
	if (r == 0)
		writer_group_set_busy(g);
	else
		give_up(g, r, NULL);
}

static int group_provide_step(struct job *job)
{
	return job->cancelled ? -ECANCELED
			      : group_memory_provide(container_of(job, struct group_memory, job));
}

static void group_provide_done(struct job *job, int r);

static void group_provide(struct writer_group *g)
{
	writer_group_set_busy(g);
	worker_submit(&g->server->worker, &g->memory->job, g->access.uid, group_provide_step,
		      group_provide_done);
}

static void group_join_on_free(struct freeing_wait *wait)
{
	struct writer_group *g = container_of(wait, struct writer_group, wait);

	if (writer_group_take_back(g))
		group_provide(g);
}

/* Makes the memory when what is being freed now, by a user or FREEING_BY_ALL, is free. */
static void group_provide_behind(struct writer_group *g, uid_t uid)
{
	if (freeing_await(&g->server->freeings, &g->wait, uid, "host", group_join_on_free))
		writer_group_set_busy(g);
	else
		group_provide(g);
}

/* True when memory may get free, for which the group waits. */
static bool group_join_await_room(struct writer_group *g, struct eviction *e)
{
	bool is_first = !g->has_waited;

	g->has_waited = true;
	if (is_first && freeing_await(&g->server->freeings, &g->wait, FREEING_BY_ALL, "host",
				      group_join_on_free)) {
		writer_group_set_busy(g);
		return true;
	}
	if (!store_room_stands(g->server, g->access.uid, &g->room) ||
	    !eviction_run(e, g->memory->missing))
		return false;
	group_provide_behind(g, FREEING_BY_ALL);
	return true;
}

static struct writer_group *group_of(const struct group_memory *m)
{
	struct list *lists[] = {&m->server->groups, &m->server->removed_groups};
	struct writer_group *g;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_for_each(g, lists[i], link)
			if (g->memory == m)
				return g;
	return NULL;
}

static void group_provide_done(struct job *job, int r)
{
	struct group_memory *m = container_of(job, struct group_memory, job);
	struct writer_group *g = group_of(m);
	struct eviction e;

	if (!writer_group_take_back(g))
		return;
	e = (struct eviction){.server = g->server, .uid = g->access.uid, .device = "host"};
	if (r == -ENOMEM && g->maker && group_join_await_room(g, &e))
		return;
	if (r == 0)
		group_join_keep(g);
	else if (r == -ENOMEM && m->missing)
		give_up_memory(g, &e);
	else
		give_up(g, r, NULL);
}

/* 0, QUOTA_EXCEEDED or a negative errno. */
static int take_description(struct writer_group *g, struct group_caller *c)
{
	int r;

	g->description = (struct kept_memfd){.server = g->server,
					     .kind = STORE_DESCRIPTION,
					     .fd = c->description_fd};
	r = kept_memfd_init(&g->description, g->access.uid);
	if (r == 0)
		c->description_fd = -1;
	return r;
}

static void fail_start(struct group_caller *c, int r)
{
	struct writer_group *g = c->group;

	if (r == QUOTA_EXCEEDED)
		session_fail(c->session, -EDQUOT,
			     "job '%s' needs more bytes or descriptors than uid %u may hold; remove "
			     "buffers or jobs (weightctl rm), or raise bytes= or descriptors= in "
			     "[limits] of weightd.conf",
			     g->name, g->access.uid);
	else if (r == -EOVERFLOW)
		session_fail(c->session, -EINVAL,
			     "the parts of job '%s' have more bytes than any memory; check their "
			     "sizes",
			     g->name);
	else
		session_fail(c->session, r, "job '%s' gets no memory: %s", g->name, strerror(-r));
	(void)group_caller_free(c);
	writer_group_unmake(g);
}

static void group_join_make(struct group_caller *c)
{
	struct writer_group *g = c->group;
	const struct store_need need = {.n = c->join.n_parts + 1};
	int r;

	if (store_room_reserve(c->session, &need, &g->room) < 0) {
		(void)group_caller_free(c);
		return;
	}
	r = group_memory_new(g->server, g->access.uid, g->name, &c->join, &g->memory);
	if (r == 0)
		r = take_description(g, c);
	if (r != 0) {
		fail_start(c, r);
		return;
	}
	memcpy(g->hash, c->join.hash, sizeof(g->hash));
	g->maker = c;
	writer_group_settle(g);
	writer_group_save(g);
	fault_point("job-begun");
	g->has_waited = false;
	group_provide_behind(g, g->access.uid); /* its own, whose charge was refunded before */
}

/* --- the request --- */

static bool description_ok(struct session *s, const struct writer_group *g,
			   const struct wire_job_join *join)
{
	if (memcmp(g->hash, join->hash, sizeof(g->hash)) == 0 &&
	    group_memory_has(g->memory, join->parts, join->n_parts))
		return true;
	session_fail(
		s, -EPROTOTYPE,
		"rank %u describes job '%s' otherwise than the rank that made its memory; give "
		"all ranks the same model and settings, or remove the job first (weightctl rm %s)",
		join->rank, g->name, g->name);
	return false;
}

/* For a group that is not busy. */
static void group_join_proceed(struct group_caller *c)
{
	struct writer_group *g = c->group;

	if (!rank_ok(c->session, g, c->join.rank) ||
	    (g->ready && !description_ok(c->session, g, &c->join)))
		(void)group_caller_free(c);
	else if (g->ready)
		group_join_admit(c);
	else
		group_join_make(c);
}

void group_join_wake(struct writer_group *g)
{
	struct group_caller *c;

	if (!g->busy)
		writer_group_leave_work(g);
	while (!g->busy && (c = list_first(&g->callers, struct group_caller, link)))
		group_join_proceed(c);
	if (g->busy)
		return;
	writer_group_settle(g); /* all of them may have been refused, or be gone */
	writer_group_save(g);
}

void group_join_start(struct session *s, const struct wire_job_join *join, int description_fd)
{
	struct writer_group *g = group_lookup_rank(s, join->name, join->token);
	cleanup(fd_closep) int fd = -1;
	struct group_caller *c;

	if (!g || !rank_ok(s, g, join->rank) || !parts_ok(s, join) ||
	    open_description(s, description_fd, &fd) < 0)
		return;
	c = group_caller_new(g, s);
	if (!c) {
		session_fail(s, -ENOMEM, "weightd is out of memory");
		return;
	}
	c->join = *join;
	c->description_fd = take_fd(fd);
	if (!g->busy)
		group_join_proceed(c);
}
