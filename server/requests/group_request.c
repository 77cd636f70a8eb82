#include "server/requests/group_request.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/base/fault.h"
#include "server/buffers/buffer.h"
#include "server/groups/group_caller.h"
#include "server/groups/group_member.h"
#include "server/groups/group_memory.h"
#include "server/groups/writer_group.h"
#include "server/requests/group_join.h"
#include "server/requests/group_lookup.h"
#include "server/requests/lookup.h"
#include "server/requests/store_room.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/buffer_names.h"
#include "server/state/server.h"
#include "server/state/session.h"

#define LINGER_MAX_MS ((int64_t)10 * 366 * 24 * 3600 * 1000)

/* --- create --- */

static bool is_zero(const uint8_t *bytes, size_t size)
{
	uint8_t all = 0;

	for (size_t i = 0; i < size; i++)
		all |= bytes[i];
	return !all;
}

static bool create_ok(struct session *s, const struct wire_job_create *create)
{
	if (!buffer_name_ok(create->name))
		session_fail(s, -EINVAL,
			     "a job's name is 1 to 127 of A-Z a-z 0-9 . _ / : - and starts with a "
			     "letter or a digit");
	else if (create->n_ranks < 1 || create->n_ranks > WIRE_JOB_RANKS_MAX)
		session_fail(s, -EINVAL, "a job has 1 to %d ranks, not %u", WIRE_JOB_RANKS_MAX,
			     create->n_ranks);
	else if (create->linger_ms < 0 || create->linger_ms > LINGER_MAX_MS)
		session_fail(s, -EINVAL,
			     "a job lingers for 0 (for ever) to %" PRId64 " ms, not %" PRId64,
			     LINGER_MAX_MS, create->linger_ms);
	else if (is_zero(create->token, sizeof(create->token)))
		session_fail(s, -EINVAL, "a job's token is random, not zero");
	else if (!access_may_own(&s->peer))
		session_fail(s, -EPERM,
			     "uid %u stands for every user that this weightd cannot name, and "
			     "cannot own a job",
			     s->peer.uid);
	else
		return true;
	return false;
}

/* True for the request that made the job, sent again since its answer was lost. */
static bool is_same(const struct writer_group *g, const struct session *s,
		    const struct wire_job_create *create)
{
	return g->access.uid == s->peer.uid && writer_group_has_token(g, create->token) &&
	       g->n_ranks == create->n_ranks && g->linger_ms == create->linger_ms;
}

static void create_answer(struct session *s)
{
	struct wire_reply reply = {0};

	(void)session_reply(s, WIRE_JOB_CREATE, &reply, NULL, 0);
}

static void fail_to_keep(struct writer_group *g, struct session *s, int r)
{
	session_fail(s, r == -ENOTCONN ? -ENOTRECOVERABLE : r,
		     "the service manager does not keep job '%s' (%s), so it cannot be created; "
		     "restart weightd",
		     g->name, r == -ENOTCONN ? "it is gone" : strerror(-r));
}

/* Others may wait to join. */
static void group_on_kept(struct barrier *barrier, int r)
{
	struct writer_group *g = container_of(barrier, struct writer_group, barrier);
	struct group_caller *c;

	if (!writer_group_take_back(g))
		return;
	fault_point("job-kept");
	c = group_caller_creator(g); /* without one it would have been removed */
	if (r == 0)
		audit(&(struct audit){
			.action = AUDIT_JOB_CREATE, .peer = &c->session->peer, .job = g->name});
	for (; c; c = group_caller_creator(g)) {
		if (r < 0)
			fail_to_keep(g, c->session, r);
		else
			create_answer(c->session);
		(void)group_caller_free(c);
	}
	if (r < 0) {
		writer_group_drop(g, "the service manager does not keep it");
		return;
	}
	fault_point("job-create-answered");
	group_join_wake(g);
}

static void fail_quota(struct session *s, int r)
{
	if (r == QUOTA_EXCEEDED)
		session_fail(s, -EDQUOT,
			     "uid %u has too many %s; remove some buffers or jobs (weightctl rm)",
			     s->peer.uid,
			     quota_left(&s->server->quota, s->peer.uid, QUOTA_BUFFERS) == 0
				     ? "buffers and jobs"
				     : "descriptors");
	else
		session_fail(s, r, "no room for another job: %s", strerror(-r));
}

/* In this order, so that recovery can identify what it finds. */
static void group_start(struct writer_group *g, struct group_caller *c)
{
	int r;

	fault_point("job-created");
	writer_group_save(g);
	writer_group_keep(g);
	r = barrier_start(&g->barrier, &g->server->store, g->access.uid, group_on_kept);
	if (r == 0) {
		writer_group_set_busy(g);
		return;
	}
	fail_to_keep(g, c->session, r);
	(void)group_caller_free(c);
	writer_group_drop(g, "the service manager does not keep it");
}

/* NULL: the request was answered with an error. */
static struct group_caller *add_creator(struct writer_group *g, struct session *s)
{
	struct group_caller *c = group_caller_new(g, s);

	if (c)
		c->creates = true;
	else
		session_fail(s, -ENOMEM, "weightd is out of memory");
	return c;
}

void group_request_create(struct session *s, const struct wire_job_create *create)
{
	struct access access = {.uid = s->peer.uid, .gid = s->peer.gid};
	struct writer_group *g = writer_group_find(s->server, create->name);
	struct store_reservation room = {0};
	struct group_caller *c;
	int r;

	if (!create_ok(s, create))
		return;
	if (g && is_same(g, s, create)) {
		if (group_caller_creator(g))
			(void)add_creator(g, s);
		else
			create_answer(s);
		return;
	}
	if (g) {
		session_fail(s, -EEXIST,
			     "there is a job '%s' already, of uid %u; take another name, or remove it "
			     "(weightctl rm %s)",
			     g->name, g->access.uid, g->name);
		return;
	}
	if (!lookup_name_allowed(s, create->name, NULL) ||
	    store_room_reserve(s, &(struct store_need){.n = 1}, &room) < 0)
		return;
	r = writer_group_new(s->server, create, &access, &g);
	if (r != 0) {
		store_release(&room);
		fail_quota(s, r);
		return;
	}
	c = add_creator(g, s);
	if (!c) {
		store_release(&room);
		writer_group_drop(g, "weightd is out of memory");
	} else if (!store_room_take(s->server, g->access.uid, &room)) {
		store_room_fail(s);
		(void)group_caller_free(c);
		writer_group_drop(g, "the store has no room for it");
	} else {
		group_start(g, c);
	}
}

/* --- requests of ranks --- */

/* NULL: the request was answered with an error. */
static struct group_member *find_member(struct session *s, uint64_t job)
{
	struct writer_group *g = writer_group_find_id(s->server, job);
	struct group_member *m = g ? group_member_of(s, g) : NULL;

	if (!m)
		session_fail(s, -ESTALE,
			     "this connection is not a rank of that job: it has left, or the job was "
			     "removed; join it again");
	return m;
}

void group_request_part(struct session *s, const struct wire_job_index *index)
{
	struct group_member *m = find_member(s, index->job);
	struct wire_reply reply = {0};
	int fd = -1, r;

	if (!m)
		return;
	if (index->index >= m->group->memory->n_parts) {
		session_fail(s, -ENOENT, "job '%s' has %u parts, and no part %u", m->group->name,
			     m->group->memory->n_parts, index->index);
		return;
	}
	r = group_memory_open(m->group->memory, index->index, &fd);
	if (r < 0) {
		session_fail(s, r, "part %u of job '%s' cannot be opened: %s", index->index,
			     m->group->name, strerror(-r));
		return;
	}
	(void)session_reply(s, WIRE_JOB_PART, &reply, &fd, 1);
	(void)fd_close(fd);
}

void group_request_description(struct session *s, const struct wire_job_key *key)
{
	struct writer_group *g = group_lookup_rank(s, key->name, key->token);
	struct wire_reply reply = {0};

	if (!g)
		return;
	if (!g->ready) {
		session_fail(s, -ENODATA, "no rank has joined job '%s' yet", g->name);
		return;
	}
	(void)session_reply(s, WIRE_JOB_DESCRIPTION, &reply, &g->description.fd, 1);
}

void group_request_leave(struct session *s, const struct wire_job_leave *leave)
{
	struct group_member *m = find_member(s, leave->job);
	struct wire_reply reply = {0};
	struct writer_group *g;

	if (!m)
		return;
	g = m->group;
	if (leave->flags & WIRE_LEAVE_DONE) {
		writer_group_set_done(g, m->rank, true);
		group_member_audit(m, AUDIT_JOB_LEAVE);
	}
	(void)group_member_free(m);
	fault_point("job-leave-begun");
	if (writer_group_n_done(g) == g->n_ranks) {
		writer_group_drop(g, "each rank has left it");
	} else {
		writer_group_settle(g);
		writer_group_save(g);
	}
	fault_point("job-left");
	(void)session_reply(s, WIRE_JOB_LEAVE, &reply, NULL, 0);
}

void group_request_remove(struct session *s, const char *name)
{
	struct writer_group *g = group_lookup_owned(s, name, "remove");
	struct wire_reply reply = {0};

	if (!g)
		return;
	writer_group_drop(g, NULL);
	fault_point("job-removed");
	(void)session_reply(s, WIRE_JOB_REMOVE, &reply, NULL, 0);
}

/* --- requests of others --- */

void group_request_view(struct session *s, const char *name)
{
	struct writer_group *g = group_lookup_owned(s, name, "view");
	struct wire_reply reply = {0};
	int out[2], r;

	if (!g)
		return;
	if (!g->ready) {
		session_fail(s, -ENODATA, "no rank has joined job '%s' yet", g->name);
		return;
	}
	r = group_memory_view(g->memory, &out[1]);
	if (r < 0) {
		session_fail(s, r, "part 0 of job '%s' cannot be opened: %s", g->name, strerror(-r));
		return;
	}
	out[0] = g->description.fd;
	reply.job_view.n_ranks = g->n_ranks;
	(void)session_reply(s, WIRE_JOB_VIEW, &reply, out, 2);
	(void)fd_close(out[1]);
}
