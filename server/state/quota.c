#include "server/state/quota.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/base/subordinate.h"
#include "server/state/share.h"

#define OPEN_FILES_DEFAULT 65536 /* LimitNOFILE= of the unit */
#define KEPT_DEFAULT 6000 /* its FileDescriptorStoreMax= */
#define LEASES_OF_ALL 131072 /* of 152 bytes: 19 MiB */

const uint64_t quota_default_limits[QUOTA_KINDS] = {
	[QUOTA_SESSIONS] = QUOTA_AUTO, [QUOTA_LEASES] = QUOTA_AUTO,
	[QUOTA_BUFFERS] = QUOTA_AUTO,  [QUOTA_VERSIONS] = QUOTA_AUTO,
	[QUOTA_BYTES] = UINT64_MAX,    [QUOTA_DESCRIPTORS] = QUOTA_AUTO,
	[QUOTA_CLOSING] = 64,          [QUOTA_REQUESTS] = 64,
	[QUOTA_HELD] = QUOTA_AUTO,
};

/* `auto` is no more than this, however large the whole is. */
static const uint64_t auto_max[QUOTA_KINDS] = {[QUOTA_SESSIONS] = 4096};

void quota_init(struct quota *q)
{
	*q = (struct quota){0};
	list_init(&q->accounts);
	for (int i = 0; i < QUOTA_KINDS; i++)
		q->limits[i] = quota_default_limits[i];
	quota_set_wholes(q, OPEN_FILES_DEFAULT, KEPT_DEFAULT);
	quota_set_memory(q, UINT64_MAX);
}

void quota_deinit(struct quota *q)
{
	assert(list_empty(&q->accounts));
	free(take_ptr(q->overrides));
}

void quota_set_limits(struct quota *q, const uint64_t limits[QUOTA_KINDS],
		      struct quota_override *overrides, unsigned n_overrides)
{
	memcpy(q->limits, limits, sizeof(q->limits));
	free(q->overrides);
	q->overrides = overrides;
	q->n_overrides = n_overrides;
}

/*
 * weightd has one descriptor open for each that is kept, and one for each connection. A quarter of the others is for
 * what is passed on.
 */
void quota_set_wholes(struct quota *q, uint64_t n_open_files, uint64_t n_kept)
{
	uint64_t kept = n_kept ? n_kept : KEPT_DEFAULT;

	if (kept > n_open_files / 2)
		kept = n_open_files / 2;
	q->wholes[QUOTA_DESCRIPTORS] = kept;
	q->wholes[QUOTA_VERSIONS] = kept; /* each has one, at least */
	q->wholes[QUOTA_BUFFERS] = kept / 2; /* each has two */
	q->wholes[QUOTA_SESSIONS] = (n_open_files - kept) / 4 * 3;
	q->wholes[QUOTA_LEASES] = LEASES_OF_ALL;
}

void quota_set_memory(struct quota *q, uint64_t n_bytes)
{
	q->wholes[QUOTA_HELD] = n_bytes / 2;
}

/* That of the user that this one is counted as. */
static struct account *account_find(const struct quota *q, uid_t uid)
{
	uid_t payer = subordinate_payer(uid);
	struct account *a;

	list_for_each(a, &q->accounts, link)
		if (a->uid == payer)
			return a;
	return NULL;
}

static struct account *account_get(struct quota *q, uid_t uid)
{
	struct account *a = account_find(q, uid);

	if (a)
		return a;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->quota = q;
	a->uid = subordinate_payer(uid);
	list_append(&q->accounts, &a->link);
	return a;
}

static void account_put(struct account *a)
{
	if (a->n_charges > 0)
		return;
	list_remove(&a->link);
	free(a);
}

static uint64_t set_limit(const struct quota *q, uid_t uid, enum quota_kind kind)
{
	uid_t payer = subordinate_payer(uid);

	for (unsigned i = 0; i < q->n_overrides; i++)
		if (q->overrides[i].uid == payer && q->overrides[i].kinds >> kind & 1)
			return q->overrides[i].limits[kind];
	return q->limits[kind];
}

uint64_t quota_limit(const struct quota *q, uid_t uid, enum quota_kind kind)
{
	uint64_t limit = set_limit(q, uid, kind);

	if (limit != QUOTA_AUTO)
		return limit;
	limit = share_limit(q->wholes[kind]);
	return auto_max[kind] && limit > auto_max[kind] ? auto_max[kind] : limit;
}

/* A limit may have been lowered below what is used. */
static uint64_t left(const struct quota *q, const struct account *a, enum quota_kind kind)
{
	uint64_t limit = quota_limit(q, a->uid, kind);

	return limit > a->used[kind] ? limit - a->used[kind] : 0;
}

static void charge_account(struct account *a, enum quota_kind kind, uint64_t amount,
			   struct charge *charge)
{
	bool overflow = __builtin_add_overflow(a->used[kind], amount, &a->used[kind]);

	assert(!overflow); /* no user holds 2^64 of anything */
	a->quota->used[kind] += amount; /* may wrap for bytes, which have no whole */
	a->n_charges++;
	*charge = (struct charge){.account = a, .kind = kind, .amount = amount};
}

int quota_charge(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
		 struct charge *charge)
{
	struct account *a = account_get(q, uid);

	assert(!charge->account);
	if (!a)
		return -ENOMEM;
	if (amount > left(q, a, kind)) {
		account_put(a);
		return QUOTA_EXCEEDED;
	}
	charge_account(a, kind, amount, charge);
	return 0;
}

int quota_charge_shared(struct quota *q, uid_t uid, bool is_admin, enum quota_kind kind,
			uint64_t amount, struct charge *charge)
{
	uint64_t holds = quota_used(q, uid, kind) + amount;

	if (amount <= quota_left(q, uid, kind) &&
	    q->used[kind] + amount > share_open_to(q->wholes[kind], is_admin, holds))
		return QUOTA_RESERVED;
	return quota_charge(q, uid, kind, amount, charge);
}

int quota_charge_anyway(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
			struct charge *charge)
{
	struct account *a = account_get(q, uid);

	assert(!charge->account);
	if (!a)
		return -ENOMEM;
	charge_account(a, kind, amount, charge);
	return 0;
}

void quota_refund(struct charge *charge)
{
	struct account *a = charge->account;

	if (!a)
		return;
	assert(a->used[charge->kind] >= charge->amount);
	a->used[charge->kind] -= charge->amount;
	a->quota->used[charge->kind] -= charge->amount;
	a->n_charges--;
	*charge = (struct charge){0};
	account_put(a);
}

int quota_move(struct quota *q, uid_t uid, enum quota_kind kind, struct charge *charge)
{
	struct charge moved = {0};
	int r;

	if (!charge->account ||
	    (charge->account->uid == subordinate_payer(uid) && charge->kind == kind))
		return 0;
	r = quota_charge_anyway(q, uid, kind, charge->amount, &moved);
	if (r < 0)
		return r;
	quota_refund(charge);
	*charge = moved;
	return 0;
}

uint64_t quota_left(const struct quota *q, uid_t uid, enum quota_kind kind)
{
	const struct account *a = account_find(q, uid);

	return a ? left(q, a, kind) : quota_limit(q, uid, kind);
}

uint64_t quota_used(const struct quota *q, uid_t uid, enum quota_kind kind)
{
	const struct account *a = account_find(q, uid);

	return a ? a->used[kind] : 0;
}

unsigned quota_n_users(const struct quota *q, enum quota_kind kind)
{
	const struct account *a;
	unsigned n = 0;

	list_for_each(a, &q->accounts, link)
		n += a->used[kind] > 0;
	return n;
}
