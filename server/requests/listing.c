#include "server/requests/listing.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/base/num.h"
#include "server/base/headroom.h"
#include "server/base/subordinate.h"
#include "server/buffers/buffer.h"
#include "server/buffers/buffer_commit.h"
#include "server/buffers/held_charge.h"
#include "server/buffers/lease.h"
#include "server/buffers/reaper.h"
#include "server/buffers/tally.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/groups/group_memory.h"
#include "server/groups/writer_group.h"
#include "server/memory/gpu_free.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/requests/device_query.h"
#include "server/requests/held.h"
#include "server/requests/lookup.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* A page of a list in the making. */
struct page {
	struct wire_reply reply;
	uint64_t after; /* its begin */
	uint64_t last; /* id of the last record in it, or of what was looked at and left out */
	uint64_t end_ns; /* of its time */
	unsigned n_looks;
};

/*
 * A page ends when it is full, or its time is over: then it may be empty, and the list continues all the
 * same. It has room for one look at least.
 */
#define PAGE_NS 100000u
#define HEADROOM_AGE_NS 5000000u
#define LOOKS 16 /* between two looks at the clock */

static void page_init(struct page *p, const struct wire_list *list, size_t record_size)
{
	p->reply = (struct wire_reply){.list.record_size = (uint32_t)record_size};
	p->after = p->last = list->after;
	p->end_ns = num_now_ns() + PAGE_NS;
	p->n_looks = 0;
}

/* Before each look at the entry `id`; ids must be ascending. False: the time is over. */
static bool page_has_time(struct page *p, uint64_t id)
{
	if (id <= p->after)
		return true;
	if (p->last > p->after && ++p->n_looks % LOOKS == 0 && num_now_ns() > p->end_ns) {
		p->reply.list.next = p->last;
		return false;
	}
	return true;
}

/* The entry `id` is not for the client. */
static void page_skip(struct page *p, uint64_t id)
{
	if (id > p->last)
		p->last = id;
}

/* Appends the record `id`; ids must be ascending. False: the page is full, the list continues after it. */
static bool page_add(struct page *p, uint64_t id, const void *record)
{
	struct wire_list_reply *list = &p->reply.list;

	if (id <= p->after)
		return true;
	if (list->n_records == sizeof(list->records) / list->record_size) {
		list->next = p->last;
		return false;
	}
	p->last = id;
	memcpy(list->records + list->n_records++ * (size_t)list->record_size, record,
	       list->record_size);
	return true;
}

static void page_send(struct page *p, struct session *s)
{
	(void)session_reply(s, WIRE_LIST, &p->reply, NULL,
			    0); /* on failure the connection is being closed */
}

/* True if the session may see that the buffer exists. */
static bool may_list(const struct session *s, const struct buffer *b)
{
	return access_allows(&b->access, &s->peer, ACCESS_READ) || access_owns(&b->access, &s->peer);
}

static void fill_buffer_record(const struct buffer *b, struct wire_buffer_record *rec)
{
	const struct version *current = buffer_current(b), *newest = buffer_newest(b);
	const struct version *v;

	memcpy(rec->name, b->name, sizeof(rec->name));
	memcpy(rec->device, b->device, sizeof(rec->device));
	rec->writing = b->writer != NULL;
	rec->uid = b->access.uid;
	rec->gid = b->access.gid;
	rec->mode = b->access.mode;
	rec->keep = b->keep;
	rec->flags = buffer_flags(b);
	rec->state = buffer_shown_state(b);
	list_for_each(v, &b->versions, link) {
		rec->n_versions++;
		rec->n_leases += v->n_leases;
		rec->slot_bytes += v->slot->size;
		rec->huge_bytes += v->slot->memory.progress.huge;
	}
	if (!current)
		return;
	rec->version = current->number;
	rec->newest = newest->number;
	rec->n_tensors = current->table->n_tensors;
	rec->data_size = current->slot->data_size;
	rec->published_ns = current->published_ns;
	memcpy(rec->layout_hash, current->table->hash, WIRE_HASH_SIZE);
	memcpy(rec->digest, current->digest, WIRE_HASH_SIZE);
}

static void fill_version_record(const struct version *v, struct wire_version_record *rec)
{
	rec->version = v->number;
	rec->n_tensors = v->table->n_tensors;
	rec->data_size = v->slot->data_size;
	rec->slot_bytes = v->slot->size;
	rec->huge_bytes = v->slot->memory.progress.huge;
	rec->published_ns = v->published_ns;
	rec->n_leases = v->n_leases;
	rec->uid = v->uid;
	rec->pid = (uint32_t)v->pid;
	rec->current = v->number == v->buffer->current;
	rec->flags = version_flags(v);
	memcpy(rec->layout_hash, v->table->hash, WIRE_HASH_SIZE);
	memcpy(rec->digest, v->digest, WIRE_HASH_SIZE);
}

/* All buffers that the client may see, or those of one name; in the order of their ids. */
static void list_buffers(struct session *s, const struct wire_list *list)
{
	struct buffer *b;
	struct page page;

	page_init(&page, list, sizeof(struct wire_buffer_record));
	list_for_each(b, &s->server->buffers, link) {
		struct wire_buffer_record rec = {0};

		if (b->id <= list->after)
			continue;
		if (!page_has_time(&page, b->id))
			break;
		if (!may_list(s, b) || (list->name[0] && strcmp(b->name, list->name))) {
			page_skip(&page, b->id);
			continue;
		}
		fill_buffer_record(b, &rec);
		if (!page_add(&page, b->id, &rec))
			break;
	}
	page_send(&page, s);
}

static void list_versions(struct session *s, const struct wire_list *list)
{
	struct buffer *b = lookup_buffer(s, list->name, list->device, ACCESS_READ);
	struct version *v;
	struct page page;

	if (!b)
		return;
	page_init(&page, list, sizeof(struct wire_version_record));
	list_for_each(v, &b->versions, link) {
		struct wire_version_record rec = {0};

		fill_version_record(v, &rec);
		if (!page_add(&page, v->number, &rec))
			break;
	}
	page_send(&page, s);
}

static const struct version *find_held(const struct buffer *b, const struct manifest_version *e)
{
	const struct version *v;

	list_for_each(v, &b->versions, link)
		if (v->number == e->number)
			return v;
	list_for_each(v, &b->leaving, link)
		if (v->number == e->number)
			return v;
	return NULL;
}

static void fill_history_record(const struct buffer *b, const struct manifest_version *e,
				struct wire_version_record *rec)
{
	struct manifest_companions beside = manifest_companions(b->manifest, &e->companions);
	const struct version *v = find_held(b, e);

	if (v)
		fill_version_record(v, rec);
	rec->version = e->number;
	rec->n_tensors = e->n_tensors;
	rec->data_size = e->data_size;
	rec->published_ns = e->published_ns;
	rec->ended_ns = e->ended_ns;
	rec->uid = e->uid;
	rec->pid = e->pid;
	rec->why = e->why;
	rec->flags = (e->flags & MANIFEST_DIGEST ? WIRE_VERSION_DIGEST : 0) |
		     (b->exclusive ? WIRE_VERSION_MUTABLE : 0) |
		     (beside.data_offset ? WIRE_VERSION_IMAGE : 0) |
		     (beside.files ? WIRE_VERSION_FILES : 0);
	memcpy(rec->layout_hash, e->layout_hash, WIRE_HASH_SIZE);
	memcpy(rec->digest, e->digest, WIRE_HASH_SIZE);
}

/* As the manifest remembers it. */
static void list_history(struct session *s, const struct wire_list *list)
{
	struct buffer *b = lookup_buffer(s, list->name, list->device, ACCESS_READ);
	const struct manifest_record *r;
	struct page page;

	if (!b)
		return;
	r = manifest_current(b->manifest);
	page_init(&page, list, sizeof(struct wire_version_record));
	for (unsigned i = 0; i < r->n_versions; i++) {
		struct wire_version_record rec = {0};

		if (r->versions[i].number == 0)
			continue;
		fill_history_record(b, &r->versions[i], &rec);
		if (!page_add(&page, rec.version, &rec))
			break;
	}
	page_send(&page, s);
}

static void fill_slot_record(const struct buffer *b, const struct slot *slot,
			     struct wire_slot_record *rec)
{
	struct stat st;

	memcpy(rec->name, b->name, sizeof(rec->name));
	memcpy(rec->device, b->device, sizeof(rec->device));
	rec->slot = slot->id;
	rec->size = slot->size;
	if (slot->backend->opaque)
		rec->allocated = slot->memory.location.map_size;
	else if (fstat(slot->probe_fd, &st) == 0)
		rec->allocated = (uint64_t)st.st_blocks * 512;
	rec->uid = slot->uid;
	rec->removed = b->removed;
}

static enum wire_slot_state state_of(const struct buffer *b, const struct version *v)
{
	if (b->spare == v)
		return WIRE_SLOT_KEPT;
	if (v->rewriting)
		return WIRE_SLOT_WRITING;
	if (v->ended_ns)
		return v->n_leases == 0 && gpu_free_is_orphan(v->slot) ? WIRE_SLOT_ORPHAN
								       : WIRE_SLOT_LEAVING;
	return v->number == b->current ? WIRE_SLOT_CURRENT : WIRE_SLOT_KEPT;
}

static const struct version *find_version_of(const struct slot *slot)
{
	const struct buffer *b = slot->buffer;
	const struct version *v;

	list_for_each(v, &b->versions, link)
		if (v->slot == slot)
			return v;
	list_for_each(v, &b->leaving, link)
		if (v->slot == slot)
			return v;
	return NULL;
}

/* False: it has no version and no writer (any more). */
static bool fill_slot(const struct slot *slot, struct wire_slot_record *rec)
{
	const struct version *v = find_version_of(slot);
	const struct writer *w = slot->buffer->writer;

	if (v) {
		fill_slot_record(v->buffer, slot, rec);
		rec->huge_bytes = slot->memory.progress.huge;
		rec->version = v->number;
		rec->n_leases = v->n_leases;
		if (v->holder != HELD_NOBODY)
			rec->uid = v->holder;
		rec->state = state_of(v->buffer, v);
		return true;
	}
	if (!w || w->slot != slot)
		return false;
	fill_slot_record(w->buffer, slot, rec);
	rec->state = WIRE_SLOT_WRITING;
	if (w->kept) /* else the worker may be counting them */
		rec->huge_bytes = slot->memory.progress.huge;
	return true;
}

static bool may_list_slot(const struct session *s, const struct slot *slot, const char *name)
{
	const struct buffer *b = slot->buffer; /* NULL: it is being freed */

	return b && may_list(s, b) && (!name[0] || !strcmp(name, b->name));
}

static void list_slots(struct session *s, const struct wire_list *list)
{
	const struct id_index *index = &s->server->slots;
	struct page page;

	(void)reaper_look(s->server->reaper); /* so that an orphan in the list is one */
	page_init(&page, list, sizeof(struct wire_slot_record));
	for (size_t i = id_index_after(index, list->after); i < index->n; i++) {
		const struct slot *slot = index->entries[i].item;
		struct wire_slot_record rec = {0};

		if (!page_has_time(&page, slot->id))
			break;
		if (!may_list_slot(s, slot, list->name) || !fill_slot(slot, &rec))
			page_skip(&page, slot->id);
		else if (!page_add(&page, slot->id, &rec))
			break;
	}
	page_send(&page, s);
}

static void fill_user_record(const struct quota *q, const struct account *a,
			     struct wire_user_record *rec)
{
	static const enum quota_kind kinds[WIRE_CHARGE_END] = {
		[WIRE_CHARGE_CONNECTIONS] = QUOTA_SESSIONS,
		[WIRE_CHARGE_LEASES] = QUOTA_LEASES,
		[WIRE_CHARGE_BUFFERS] = QUOTA_BUFFERS,
		[WIRE_CHARGE_VERSIONS] = QUOTA_VERSIONS,
		[WIRE_CHARGE_BYTES] = QUOTA_BYTES,
		[WIRE_CHARGE_DESCRIPTORS] = QUOTA_DESCRIPTORS,
	};

	rec->uid = a->uid;
	for (int i = 0; i < WIRE_CHARGE_END; i++) {
		rec->used[i] = a->used[kinds[i]];
		rec->limit[i] = quota_limit(q, a->uid, kinds[i]);
	}
}

/*
 * The next one that the client may see. Ids are uids, each plus one, since 0 means from the start. One look takes time
 * in the number of all users, who may be many, each with little.
 */
static const struct account *next_account(const struct session *s, uint64_t after)
{
	const struct account *a, *best = NULL;
	bool admin = access_is_admin(&s->peer);

	list_for_each(a, &s->server->quota.accounts, link)
		if ((admin || a->uid == subordinate_payer(s->peer.uid)) &&
		    (uint64_t)a->uid + 1 > after && (!best || a->uid < best->uid))
			best = a;
	return best;
}

static void list_users(struct session *s, const struct wire_list *list)
{
	const struct quota *q = &s->server->quota;
	uint64_t after = list->after;
	const struct account *a;
	struct page page;

	page_init(&page, list, sizeof(struct wire_user_record));
	for (; (a = next_account(s, after)); after = (uint64_t)a->uid + 1) {
		struct wire_user_record rec = {0};

		fill_user_record(q, a, &rec);
		if (!page_add(&page, (uint64_t)a->uid + 1, &rec))
			break;
	}
	page_send(&page, s);
}

static void fill_cost_record(const struct cost *c, struct wire_cost_record *rec)
{
	*rec = (struct wire_cost_record){
		.uid = c->uid,
		.n_requests = c->n_requests,
		.loop_ns = c->loop_ns,
		.worker_ns = c->worker_ns,
		.longest_ns = c->longest_ns,
		.held_bytes = c->held_bytes,
		.checking_bytes = c->checking_bytes,
		.n_refused = c->n_refused,
	};
	memcpy(rec->answered, c->answered, sizeof(rec->answered));
}

/* Ids are uids, each plus one, as in list_users(). */
static void list_costs(struct session *s, const struct wire_list *list)
{
	bool admin = access_is_admin(&s->peer);
	uint64_t from = admin ? list->after : subordinate_payer(s->peer.uid);
	const struct cost *c;
	struct page page;

	page_init(&page, list, sizeof(struct wire_cost_record));
	for (; (c = costs_next(&s->server->costs, from)); from = (uint64_t)c->uid + 1) {
		struct wire_cost_record rec;

		if (!admin && c->uid != subordinate_payer(s->peer.uid))
			break;
		fill_cost_record(c, &rec);
		if (!page_add(&page, (uint64_t)c->uid + 1, &rec))
			break;
	}
	page_send(&page, s);
}

static void fill_holder_record(const struct server *server, uid_t uid,
			       struct wire_holder_record *rec)
{
	const struct version *oldest = held_oldest(server, uid);
	const struct lease *lease = held_lease(oldest);

	memcpy(rec->name, oldest->buffer->name, sizeof(rec->name));
	memcpy(rec->device, oldest->buffer->device, sizeof(rec->device));
	rec->version = oldest->number;
	rec->n_bytes = held_by_user(server, uid, &rec->n_versions);
	rec->limit = quota_limit(&server->quota, uid, QUOTA_HELD);
	rec->uid = uid;
	rec->over = held_is_over(server, uid);
	if (!lease)
		return;
	rec->pid = (uint32_t)lease->session->peer.pid;
	rec->since_ns = lease->since_ns;
}

static void list_holders(struct session *s, const struct wire_list *list)
{
	const struct server *server = s->server;
	uint64_t after = list->after;
	const struct account *a;
	struct page page;

	page_init(&page, list, sizeof(struct wire_holder_record));
	for (; (a = next_account(s, after)); after = (uint64_t)a->uid + 1) {
		struct wire_holder_record rec = {0};

		if (!page_has_time(&page, (uint64_t)a->uid + 1))
			break;
		if (!a->used[QUOTA_HELD] || !held_oldest(server, a->uid)) {
			page_skip(&page, (uint64_t)a->uid + 1);
			continue;
		}
		fill_holder_record(server, a->uid, &rec);
		if (!page_add(&page, (uint64_t)a->uid + 1, &rec))
			break;
	}
	page_send(&page, s);
}

static void fill_job_record(const struct writer_group *g, struct wire_job_record *rec)
{
	memcpy(rec->name, g->name, sizeof(rec->name));
	rec->created_ns = g->created_ns;
	rec->vacant_ns = g->ready ? g->vacant_ns : 0;
	rec->linger_ms = g->linger_ms;
	rec->uid = g->access.uid;
	rec->gid = g->access.gid;
	rec->n_ranks = g->n_ranks;
	rec->n_present = writer_group_n_present(g);
	rec->n_done = writer_group_n_done(g);
	if (!g->ready)
		return; /* the worker may be at its memory */
	rec->n_parts = g->memory->n_parts;
	rec->n_bytes = g->memory->size;
	rec->step = group_memory_step(g->memory);
}

/* Likewise: all jobs that the client owns, or the one of that name. */
static void list_jobs(struct session *s, const struct wire_list *list)
{
	struct writer_group *g;
	struct page page;

	page_init(&page, list, sizeof(struct wire_job_record));
	list_for_each(g, &s->server->groups, link) {
		struct wire_job_record rec = {0};

		if (g->id <= list->after)
			continue;
		if (!page_has_time(&page, g->id))
			break;
		if (!access_owns(&g->access, &s->peer) ||
		    (list->name[0] && strcmp(g->name, list->name))) {
			page_skip(&page, g->id);
			continue;
		}
		fill_job_record(g, &rec);
		if (!page_add(&page, g->id, &rec))
			break;
	}
	page_send(&page, s);
}

/* Reads files of cgroups, and so is remembered for a while, as server->memory is. Zero when they cannot be read. */
static const struct headroom *recent_headroom(struct server *server)
{
	uint64_t now = num_now_ns();

	if (server->headroom_ns && now - server->headroom_ns < HEADROOM_AGE_NS)
		return &server->headroom;
	if (headroom_find(&server->headroom) < 0)
		server->headroom = (struct headroom){0};
	if (headroom_total(&server->memory) < 0)
		server->memory = 0;
	server->headroom_ns = now;
	return &server->headroom;
}

static enum wire_keeper keeper_of(const struct server *server)
{
	if (!store_is_expected(&server->store))
		return WIRE_KEEPER_NONE;
	if (!store_works(&server->store))
		return WIRE_KEEPER_GONE;
	return server->notify.is_keeper ? WIRE_KEEPER_PARENT : WIRE_KEEPER_MANAGER;
}

static void put_latency(struct wire_latency *ret, struct latency l)
{
	static_assert(LATENCY_BUCKETS == WIRE_LATENCY_BUCKETS, "the buckets are those of the wire");

	ret->sum_ns = l.sum_ns;
	memcpy(ret->counts, l.counts, sizeof(ret->counts));
}

static void list_health(struct session *s, const struct wire_list *list)
{
	struct server *server = s->server;
	const struct headroom *headroom = recent_headroom(server);
	struct wire_health_record rec = {
		.started_ns = server->started_real_ns,
		.memory = server->memory,
		.reserve = headroom_reserve(),
		.headroom = headroom->bytes,
		.max_descriptors = server->max_descriptors,
		.keeper = keeper_of(server),
		.admin = access_is_admin(&s->peer),
	};
	struct page page;

	static_assert(sizeof(rec.limit) == HEADROOM_LIMIT_MAX, "a path fits");
	memcpy(rec.limit, headroom->limit, strlen(headroom->limit));
	memcpy(rec.refused, server->refused, sizeof(rec.refused));
	put_latency(&rec.loop, server->loop.rounds);
	put_latency(&rec.workers[WIRE_WORKER_CHECK], worker_steps(&server->worker));
	put_latency(&rec.workers[WIRE_WORKER_FREE], worker_steps(&server->freer));
	put_latency(&rec.workers[WIRE_WORKER_SEAL], worker_steps(&server->sealer));
	put_latency(&rec.workers[WIRE_WORKER_WAKE], worker_steps(&server->wake_worker));
	page_init(&page, list, sizeof(rec));
	(void)page_add(&page, 1, &rec); /* a page has room for it */
	page_send(&page, s);
}

void listing_answer(struct session *s, const struct wire_list *list)
{
	switch (list->kind) {
	case WIRE_LIST_BUFFERS:
		list_buffers(s, list);
		break;
	case WIRE_LIST_VERSIONS:
		list_versions(s, list);
		break;
	case WIRE_LIST_HISTORY:
		list_history(s, list);
		break;
	case WIRE_LIST_SLOTS:
		list_slots(s, list);
		break;
	case WIRE_LIST_USERS:
		list_users(s, list);
		break;
	case WIRE_LIST_DEVICES:
		device_query_new(s, list);
		break;
	case WIRE_LIST_JOBS:
		list_jobs(s, list);
		break;
	case WIRE_LIST_HOLDERS:
		list_holders(s, list);
		break;
	case WIRE_LIST_COSTS:
		list_costs(s, list);
		break;
	case WIRE_LIST_HEALTH:
		list_health(s, list);
		break;
	default:
		session_fail(s, -EINVAL, "there is no list of kind %u", list->kind);
	}
}

void listing_stat(struct session *s)
{
	struct server *server = s->server;
	struct wire_reply reply = {0};
	struct wire_stat_reply *stat = &reply.stat;
	struct tally tally;

	(void)reaper_look(server->reaper); /* likewise */
	tally = tally_read(server);
	stat->headroom = recent_headroom(server)->bytes;
	stat->slot_bytes = server->n_slot_bytes;
	stat->kept_bytes = tally.kept;
	stat->leaving_bytes = tally.leaving + writer_groups_leaving_bytes(server);
	stat->orphan_bytes = tally.orphan;
	stat->layout_bytes = server->n_table_bytes;
	stat->n_quarantined = server->n_quarantined;
	stat->store_used = server->store.n_kept;
	stat->store_max = server->store.max;
	(void)session_reply(s, WIRE_STAT, &reply, NULL, 0);
}
