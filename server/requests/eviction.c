#include "server/requests/eviction.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/base/subordinate.h"
#include "server/buffers/buffer.h"
#include "server/buffers/retention.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/layout_table.h"
#include "server/memory/slot.h"
#include "server/memory/version_files.h"
#include "server/state/server.h"
#include "server/state/share.h"

/* A user and its part of the resource that is short. */
struct holding {
	uid_t uid;
	uint64_t used;
};

struct candidate {
	struct version *version;
	uint64_t buffer, number; /* to find it again */
	bool is_own;
	bool is_spare;
};

struct plan {
	struct eviction *eviction;
	struct holding *holdings;
	unsigned n_holdings;
	struct candidate *candidates;
	unsigned n_candidates;
	uint64_t room; /* freed by the chosen candidates, the first ones of the list */
	unsigned n_chosen;
};

/* --- holdings of users --- */

static struct holding *holding_of(struct plan *p, uid_t uid)
{
	uid_t payer = subordinate_payer(uid);

	for (unsigned i = 0; i < p->n_holdings; i++)
		if (p->holdings[i].uid == payer)
			return &p->holdings[i];
	return NULL;
}

static bool is_host(const char *device)
{
	return !strcmp(device, "host");
}

/*
 * The bytes of an account are those of all devices: for the host, others are subtracted. A slot may be charged to
 * another user than its own, and then as another kind.
 */
static void count_slot(struct plan *p, const struct slot *s)
{
	const char *device = p->eviction->device;
	const struct charge *charge = s ? &s->charge : NULL;
	struct holding *h = charge && charge->account ? holding_of(p, charge->account->uid) : NULL;
	bool is_there = h && !strcmp(s->device, device);
	bool is_counted = h && is_host(device) && charge->kind == QUOTA_BYTES;

	if (is_there && !is_counted)
		h->used += charge->amount;
	else if (!is_there && is_counted)
		h->used -= charge->amount;
}

static void count_slots(struct plan *p, const struct list *buffers)
{
	const struct version *v;
	const struct buffer *b;

	list_for_each(b, buffers, link) {
		list_for_each(v, &b->versions, link)
			count_slot(p, v->slot);
		list_for_each(v, &b->leaving, link)
			count_slot(p, v->slot);
		if (b->writer && !b->writer->target)
			count_slot(p, b->writer->slot);
	}
}

/* The creator first, which may hold nothing yet. False: no memory. */
static bool plan_count(struct plan *p)
{
	struct eviction *e = p->eviction;
	const struct server *server = e->server;
	enum quota_kind kind = e->device ? QUOTA_BYTES : QUOTA_DESCRIPTORS;
	const struct account *a;
	unsigned n = 1;

	list_for_each(a, &server->quota.accounts, link)
		n++;
	p->holdings = calloc(n, sizeof(*p->holdings));
	if (!p->holdings)
		return false;
	p->holdings[p->n_holdings++] = (struct holding){.uid = subordinate_payer(e->uid)};
	list_for_each(a, &server->quota.accounts, link) {
		struct holding *h = holding_of(p, a->uid);

		if (!h) {
			h = &p->holdings[p->n_holdings++];
			h->uid = a->uid;
		}
		h->used = e->device && !is_host(e->device) ? 0 : a->used[kind];
	}
	if (e->device) {
		count_slots(p, &server->buffers);
		count_slots(p, &server->removed);
	}
	p->holdings[0].used += e->adds;
	return true;
}

/* When bytes are short, what all users hold, less what is missing, is all there is. */
static void plan_divide(struct plan *p, uint64_t missing)
{
	struct eviction *e = p->eviction;
	uint64_t whole = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < p->n_holdings; i++) {
		whole += p->holdings[i].used;
		n += p->holdings[i].used > 0;
	}
	if (e->device)
		whole -= missing < whole ? missing : whole;
	else
		whole = e->server->quota.wholes[QUOTA_DESCRIPTORS];
	e->share = share_of(whole, n);
	e->holds = p->holdings[0].used;
}

/* --- candidates --- */

static void plan_add(struct plan *p, struct version *v, bool is_spare)
{
	p->candidates[p->n_candidates++] = (struct candidate){
		.version = v,
		.buffer = v->buffer->id,
		.number = v->number,
		.is_own = subordinate_payer(v->slot->uid) == subordinate_payer(p->eviction->uid),
		.is_spare = is_spare,
	};
}

static bool is_candidate(const struct eviction *e, const struct buffer *b)
{
	return b != e->except && buffer_is_on(b, e->device);
}

static bool plan_collect(struct plan *p)
{
	struct eviction *e = p->eviction;
	struct version *v;
	struct buffer *b;
	size_t n = 0;

	list_for_each(b, &e->server->buffers, link)
		if (is_candidate(e, b))
			n += b->n_versions + !!b->spare;
	p->candidates = calloc(n ? n : 1, sizeof(*p->candidates));
	if (!p->candidates)
		return false;
	list_for_each(b, &e->server->buffers, link) {
		if (!is_candidate(e, b))
			continue;
		list_for_each(v, &b->versions, link)
			if (buffer_only_keeps(b, v))
				plan_add(p, v, false);
		if (b->spare)
			plan_add(p, b->spare, true);
	}
	return true;
}

static int compare_candidates(const void *x, const void *y)
{
	const struct candidate *a = x, *b = y;

	if (a->is_own != b->is_own)
		return a->is_own ? -1 : 1;
	if (a->is_spare != b->is_spare)
		return a->is_spare ? -1 : 1;
	if (a->version->published_ns != b->version->published_ns)
		return a->version->published_ns < b->version->published_ns ? -1 : 1;
	return 0;
}

/* The last reference frees what versions share: the chosen ones of the buffer may have all of them. */
static bool is_last(const struct version *v, const struct kept_memfd *m,
		    const struct kept_memfd *(*of)(const struct version *))
{
	const struct version *spare = v->buffer->spare, *other;
	unsigned n = 1;

	if (!m)
		return false;
	list_for_each(other, &v->buffer->versions, link)
		n += other->chosen && of(other) == m;
	n += spare && spare->chosen && of(spare) == m;
	return n == m->n_refs;
}

static const struct kept_memfd *table_of(const struct version *v)
{
	return v->table ? &v->table->memfd : NULL;
}

static const struct kept_memfd *files_of(const struct version *v)
{
	return v->files ? &v->files->memfd : NULL;
}

/* A GPU's memory leaves the store at once, and its version when the memory is free. */
static uint64_t room_of(const struct eviction *e, const struct version *v)
{
	uint64_t n = 1 + slot_has_digests(v->slot);

	if (e->device)
		return v->slot->size;
	if (v->slot->backend->await_free)
		return n;
	return n + is_last(v, table_of(v), table_of) + is_last(v, files_of(v), files_of);
}

static bool may_take(struct plan *p, const struct candidate *c)
{
	struct eviction *e = p->eviction;
	const struct holding *h = holding_of(p, c->version->slot->uid);

	return c->is_own || (e->holds <= e->share && h && h->used > e->share);
}

/* Moves the chosen ones to the front, until they are enough. */
static void plan_choose(struct plan *p, uint64_t enough)
{
	struct eviction *e = p->eviction;

	if (p->n_candidates > 1)
		qsort(p->candidates, p->n_candidates, sizeof(*p->candidates), compare_candidates);
	for (unsigned i = 0; i < p->n_candidates && p->room < enough; i++) {
		struct candidate c = p->candidates[i];
		uint64_t room = room_of(e, c.version);
		struct holding *h;

		if (!c.is_spare && slot_is_held(c.version->slot))
			continue;
		if (!may_take(p, &c)) {
			e->withheld += room;
			continue;
		}
		h = holding_of(p, c.version->slot->uid);
		if (h && !c.is_own)
			h->used -= room < h->used ? room : h->used;
		p->room += room;
		c.version->chosen = true;
		p->candidates[p->n_chosen++] = c;
	}
	for (unsigned i = 0; i < p->n_chosen; i++)
		p->candidates[i].version->chosen = false;
}

static void plan_deinit(struct plan *p)
{
	free(p->holdings);
	free(p->candidates);
}

static void plan_make(struct plan *p, struct eviction *e, uint64_t missing, uint64_t enough)
{
	*p = (struct plan){.eviction = e};
	e->share = e->holds = e->withheld = 0;
	if (!plan_count(p) || !plan_collect(p))
		return;
	plan_divide(p, missing);
	plan_choose(p, enough);
}

uint64_t eviction_room(struct eviction *e, uint64_t enough)
{
	struct plan p;
	uint64_t room;

	plan_make(&p, e, e->device ? 0 : enough, enough);
	room = p.room;
	plan_deinit(&p);
	return room;
}

/* The end of one version may end others: a writer may have waited for its reader. */
static void candidate_end(struct server *server, const struct candidate *c)
{
	struct buffer *b = buffer_find_id(server, c->buffer);
	struct version *v = b && !c->is_spare ? buffer_version(b, c->number) : NULL;

	if (b && c->is_spare)
		slot_reuse_forget(b);
	else if (v && buffer_only_keeps(b, v))
		buffer_drop_version(b, v, WIRE_END_MEMORY);
}

bool eviction_run(struct eviction *e, uint64_t missing)
{
	struct plan p;
	bool suffices;

	plan_make(&p, e, missing, missing);
	suffices = p.room >= missing;
	for (unsigned i = 0; suffices && i < p.n_chosen; i++)
		candidate_end(e->server, &p.candidates[i]);
	plan_deinit(&p);
	return suffices;
}

#define AMOUNT_MAX 24

static void describe(const struct eviction *e, uint64_t amount, char ret[AMOUNT_MAX])
{
	if (e->device)
		(void)num_format_size(ret, amount);
	else
		(void)snprintf(ret, AMOUNT_MAX, "%" PRIu64, amount);
}

void eviction_explain(const struct eviction *e, char *text, size_t size)
{
	char withheld[AMOUNT_MAX], holds[AMOUNT_MAX], share[AMOUNT_MAX];

	text[0] = '\0';
	if (!e->withheld)
		return;
	describe(e, e->withheld, withheld);
	describe(e, e->share, share);
	describe(e, e->holds, holds);
	if (e->holds > e->share)
		(void)snprintf(text, size,
			       "; %s of old versions of other users stay: the share of each user is "
			       "%s, and uid %u would hold %s",
			       withheld, share, e->uid, holds);
	else
		(void)snprintf(text, size,
			       "; %s of old versions of other users stay: these users hold no more "
			       "than the share of each user, %s",
			       withheld, share);
}
