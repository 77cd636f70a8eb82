#include "server/groups/writer_group.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/groups/group_caller.h"
#include "server/groups/group_member.h"
#include "server/groups/group_memory.h"
#include "server/restart/group_manifest.h"
#include "server/state/audit.h"
#include "server/state/in_work.h"
#include "server/state/server.h"
#include "server/state/session.h"

#define LOOK_MIN_NS 2000000u
#define LOOK_MAX_NS 1000000000u

static uint64_t real_now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static bool has_description(const struct writer_group *g)
{
	return g->description.n_refs > 0;
}

/* --- making and freeing --- */

static struct writer_group *writer_group_free(struct writer_group *g)
{
	assert(list_empty(&g->members) && list_empty(&g->callers) && !g->busy);
	list_remove(&g->link);
	timer_stop(&g->timer);
	group_memory_free(g->memory);
	if (has_description(g))
		(void)kept_memfd_unref(&g->description);
	/* The manifest is removed last: while it is there, recovery can identify the rest. */
	if (g->kept)
		store_remove(&g->server->store, g->access.uid, STORE_GROUP, g->id);
	(void)group_manifest_free(g->manifest);
	(void)fd_close(g->manifest_fd);
	quota_refund(&g->charge);
	quota_refund(&g->descriptor);
	store_release(&g->room);
	writer_group_leave_work(g);
	server_count_object(g->server, -1);
	free(g);
	return NULL;
}
CLEANUP_POINTER(struct writer_group, writer_group_free);

static struct writer_group *writer_group_blank(struct server *server, uint64_t id)
{
	struct writer_group *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->server = server;
	server_count_object(server, 1);
	g->id = id;
	g->manifest_fd = -1;
	list_init(&g->link);
	list_init(&g->members);
	list_init(&g->callers);
	timer_init(&g->timer, NULL);
	return g;
}

/* In the order of ids, in which they are listed, page by page. After a restart new ids may be the lower ones. */
static void writer_group_link(struct writer_group *g)
{
	struct list *at = &g->server->groups;

	while (at->prev != &g->server->groups &&
	       container_of(at->prev, struct writer_group, link)->id > g->id)
		at = at->prev;
	list_append(at, &g->link);
}

static int writer_group_charge(struct writer_group *g,
			       int (*fn)(struct quota *, uid_t, enum quota_kind, uint64_t,
					 struct charge *))
{
	struct quota *q = &g->server->quota;
	int r = g->removed ? 0 : fn(q, g->access.uid, QUOTA_BUFFERS, 1, &g->charge);

	return r == 0 ? fn(q, g->access.uid, QUOTA_DESCRIPTORS, 1, &g->descriptor) : r;
}

int writer_group_new(struct server *server, const struct wire_job_create *create,
		     const struct access *access, struct writer_group **ret)
{
	cleanup(writer_group_freep) struct writer_group *g =
		writer_group_blank(server, server_next_id(server));
	int r;

	if (!g)
		return -ENOMEM;
	memcpy(g->name, create->name, sizeof(g->name));
	memcpy(g->token, create->token, sizeof(g->token));
	g->access = *access;
	g->n_ranks = create->n_ranks;
	g->linger_ms = create->linger_ms;
	g->created_ns = real_now_ns();
	r = writer_group_charge(g, quota_charge);
	if (r == 0)
		r = group_manifest_new(g->id, &g->manifest, &g->manifest_fd);
	if (r != 0)
		return r;
	writer_group_link(g);
	*ret = take_ptr(g);
	return 0;
}

static void read_record(struct writer_group *g, const struct group_manifest_record *r)
{
	memcpy(g->name, r->name, sizeof(g->name));
	memcpy(g->token, r->token, sizeof(g->token));
	memcpy(g->hash, r->hash, sizeof(g->hash));
	memcpy(g->done, r->done, sizeof(g->done));
	g->access = (struct access){.uid = r->uid, .gid = r->gid};
	g->n_ranks = r->n_ranks;
	g->linger_ms = r->linger_ms;
	g->created_ns = r->created_ns;
	g->vacant_ns = r->vacant_ns;
	g->removed = r->flags & GROUP_MANIFEST_REMOVED;
}

int writer_group_recover(struct server *server, uint64_t id, struct group_manifest *m,
			 struct writer_group **ret)
{
	cleanup(writer_group_freep) struct writer_group *g = writer_group_blank(server, id);
	int r;

	if (!g)
		return -ENOMEM;
	read_record(g, group_manifest_current(m));
	r = writer_group_charge(g, quota_charge_anyway);
	if (r < 0)
		return r;
	g->manifest = m;
	g->kept = true;
	if (g->removed)
		list_append(&server->removed_groups, &g->link);
	else
		writer_group_link(g);
	*ret = take_ptr(g);
	return 0;
}

struct writer_group *writer_group_find(struct server *server, const char *name)
{
	struct writer_group *g;

	list_for_each(g, &server->groups, link)
		if (!strcmp(g->name, name))
			return g;
	return NULL;
}

struct writer_group *writer_group_find_id(struct server *server, uint64_t id)
{
	struct writer_group *g;

	list_for_each(g, &server->groups, link)
		if (g->id == id)
			return g;
	return NULL;
}

bool writer_group_has_token(const struct writer_group *g, const uint8_t token[WIRE_TOKEN_SIZE])
{
	volatile uint8_t differs = 0; /* or the compiler may stop at the first difference */

	for (size_t i = 0; i < WIRE_TOKEN_SIZE; i++)
		differs |= g->token[i] ^ token[i];
	return !differs;
}

/* --- state that outlives weightd --- */

static void copy_memory(const struct writer_group *g, struct group_manifest_record *r)
{
	r->description = has_description(g) ? g->description.id : 0;
	r->n_parts = g->memory->n_parts;
	for (unsigned i = 0; i < r->n_parts; i++) {
		const struct group_part *p = &g->memory->parts[i];

		r->parts[i] = (struct group_manifest_part){
			.id = p->id,
			.size = p->memory.size,
			.huge_bytes = p->memory.progress.huge,
		};
		memcpy(r->parts[i].kind, p->kind, sizeof(p->kind));
	}
}

/* Memory that was given up in the making, and that the store may still have. */
static void copy_leftovers(const struct group_manifest_record *old, struct group_manifest_record *r)
{
	r->description = old->description;
	r->n_parts = old->n_parts;
	memcpy(r->parts, old->parts, sizeof(r->parts));
}

void writer_group_save(struct writer_group *g)
{
	const struct group_manifest_record *old = group_manifest_current(g->manifest);
	struct group_manifest_record *r = group_manifest_begin(g->manifest);

	memcpy(r->name, g->name, sizeof(r->name));
	memcpy(r->token, g->token, sizeof(r->token));
	memcpy(r->hash, g->hash, sizeof(r->hash));
	memcpy(r->done, g->done, sizeof(r->done));
	r->created_ns = g->created_ns;
	r->vacant_ns = g->vacant_ns;
	r->linger_ms = g->linger_ms;
	r->uid = g->access.uid;
	r->gid = g->access.gid;
	r->n_ranks = g->n_ranks;
	r->flags = (g->ready ? GROUP_MANIFEST_READY : 0) | (g->removed ? GROUP_MANIFEST_REMOVED : 0);
	if (g->memory && g->memory->provided)
		copy_memory(g, r);
	else if (store_is_behind(&g->server->store))
		copy_leftovers(old, r);
	group_manifest_commit(g->manifest);
}

void writer_group_keep(struct writer_group *g)
{
	g->kept = true;
	(void)store_put(&g->server->store, g->access.uid, STORE_GROUP, g->id,
			g->manifest_fd); /* the barrier after it reports errors */
	g->manifest_fd = fd_close(g->manifest_fd);
}

void writer_group_set_busy(struct writer_group *g)
{
	g->busy = true;
	in_work_begin(g->server, g->access.uid, &g->work);
}

void writer_group_leave_work(struct writer_group *g)
{
	in_work_end(g->server, &g->work);
}

bool writer_group_take_back(struct writer_group *g)
{
	g->busy = false;
	if (g->server->stopping)
		return false;
	if (!g->removed)
		return true;
	writer_group_free(g); /* no process has had the memory */
	return false;
}

void writer_group_unmake(struct writer_group *g)
{
	assert(!g->ready && !g->busy);
	group_memory_free(take_ptr(g->memory));
	if (has_description(g))
		(void)kept_memfd_unref(&g->description);
	g->description = (struct kept_memfd){0};
	memset(g->hash, 0, sizeof(g->hash));
	store_release(&g->room);
}

/* --- ranks --- */

static void writer_group_on_linger(struct timer *timer)
{
	writer_group_drop(container_of(timer, struct writer_group, timer),
			  "its linger time without a rank is over");
}

void writer_group_settle(struct writer_group *g)
{
	uint64_t linger_ns = (uint64_t)g->linger_ms * 1000000, now_ns = real_now_ns(), vacant_for_ns;

	if (g->removed)
		return;
	timer_stop(&g->timer);
	if (!list_empty(&g->members) || !list_empty(&g->callers)) {
		g->vacant_ns = 0;
		return;
	}
	/* A time that a predecessor has saved holds, unless the clock was set back since. */
	if (!g->vacant_ns || g->vacant_ns > now_ns)
		g->vacant_ns = now_ns;
	if (!linger_ns)
		return;
	vacant_for_ns = now_ns - g->vacant_ns;
	timer_init(&g->timer, writer_group_on_linger);
	timer_start(&g->server->loop, &g->timer,
		    num_now_ns() + (vacant_for_ns < linger_ns ? linger_ns - vacant_for_ns : 0));
}

/* A set of ranks: a bit each. */
static void set_rank(uint64_t *set, uint32_t rank, bool value)
{
	uint64_t bit = (uint64_t)1 << rank % 64;

	set[rank / 64] = value ? set[rank / 64] | bit : set[rank / 64] & ~bit;
}

static unsigned count_ranks(const uint64_t set[WIRE_JOB_RANKS_MAX / 64])
{
	unsigned n = 0;

	for (size_t i = 0; i < WIRE_JOB_RANKS_MAX / 64; i++)
		n += (unsigned)__builtin_popcountll(set[i]);
	return n;
}

void writer_group_set_done(struct writer_group *g, uint32_t rank, bool done)
{
	set_rank(g->done, rank, done);
}

unsigned writer_group_n_done(const struct writer_group *g)
{
	return count_ranks(g->done);
}

unsigned writer_group_n_present(const struct writer_group *g)
{
	uint64_t present[WIRE_JOB_RANKS_MAX / 64] = {0};
	const struct group_member *m;

	list_for_each(m, &g->members, link)
		set_rank(present, m->rank, true);
	return count_ranks(present);
}

/* --- the end --- */

static void writer_group_on_look(struct timer *timer)
{
	struct writer_group *g = container_of(timer, struct writer_group, timer);

	g->delay_ns = g->delay_ns * 2 < LOOK_MAX_NS ? g->delay_ns * 2 : LOOK_MAX_NS;
	if (!group_memory_in_use(g->memory))
		writer_group_free(g);
	else
		timer_start(&g->server->loop, &g->timer, num_now_ns() + g->delay_ns);
}

void writer_group_reap(struct writer_group *g)
{
	if (!g->memory || !group_memory_in_use(g->memory)) {
		writer_group_free(g);
		return;
	}
	g->delay_ns = LOOK_MIN_NS;
	timer_init(&g->timer, writer_group_on_look);
	timer_start(&g->server->loop, &g->timer, num_now_ns() + g->delay_ns);
}

static void fail_callers(struct writer_group *g)
{
	struct group_caller *c;

	while ((c = list_first(&g->callers, struct group_caller, link))) {
		session_fail(c->session, -ESTALE, "job '%s' was removed", g->name);
		(void)group_caller_free(c);
	}
}

void writer_group_drop(struct writer_group *g, const char *why)
{
	struct session *actor = g->server->actor;
	struct group_member *m;

	audit(&(struct audit){.action = AUDIT_JOB_REMOVE,
			      .peer = actor && !why ? &actor->peer : NULL,
			      .job = g->name,
			      .detail = why});
	g->removed = true;
	list_remove(&g->link);
	list_append(&g->server->removed_groups, &g->link);
	quota_refund(&g->charge); /* its bytes and descriptors stay charged until they are free */
	while ((m = list_first(&g->members, struct group_member, link)))
		(void)group_member_free(m);
	fail_callers(g);
	fault_point("job-remove-begun");
	writer_group_save(g);
	fault_point("job-remove-committed");
	if (g->memory && g->ready)
		group_memory_mark_removed(g->memory);
	timer_stop(&g->timer);
	if (freeing_wait_stop(&g->wait))
		g->busy = false;
	if (!g->busy)
		writer_group_reap(g);
	else if (g->memory)
		g->memory->job.cancelled = true;
}

void writer_group_end(struct writer_group *g)
{
	if (barrier_stop(&g->barrier) || freeing_wait_stop(&g->wait))
		g->busy = false;
	if (!g->busy)
		writer_group_free(g);
}

/* --- sums --- */

static uint64_t bytes_in(const struct list *groups)
{
	const struct writer_group *g;
	uint64_t size = 0;

	list_for_each(g, groups, link)
		size += g->memory ? g->memory->size : 0;
	return size;
}

uint64_t writer_groups_bytes(const struct server *server)
{
	return bytes_in(&server->groups) + bytes_in(&server->removed_groups);
}

uint64_t writer_groups_leaving_bytes(const struct server *server)
{
	return bytes_in(&server->removed_groups);
}
