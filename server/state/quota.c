#include "server/state/quota.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"

const uint64_t quota_default_limits[QUOTA_KINDS] = {
	[QUOTA_SESSIONS] = 4096, [QUOTA_LEASES] = 65536,     [QUOTA_BUFFERS] = 2048,
	[QUOTA_VERSIONS] = 4096, [QUOTA_BYTES] = UINT64_MAX, [QUOTA_DESCRIPTORS] = 6000,
	[QUOTA_CLOSING] = 64,
};

void quota_init(struct quota *q)
{
	*q = (struct quota){0};
	list_init(&q->accounts);
	for (int i = 0; i < QUOTA_KINDS; i++)
		q->limits[i] = quota_default_limits[i];
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

static struct account *account_get(struct quota *q, uid_t uid)
{
	struct account *a;

	list_for_each(a, &q->accounts, link)
		if (a->uid == uid)
			return a;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->uid = uid;
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

uint64_t quota_limit(const struct quota *q, uid_t uid, enum quota_kind kind)
{
	for (unsigned i = 0; i < q->n_overrides; i++)
		if (q->overrides[i].uid == uid && q->overrides[i].kinds >> kind & 1)
			return q->overrides[i].limits[kind];
	return q->limits[kind];
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
	a->n_charges--;
	*charge = (struct charge){0};
	account_put(a);
}

uint64_t quota_left(const struct quota *q, uid_t uid, enum quota_kind kind)
{
	const struct account *a;

	list_for_each(a, &q->accounts, link)
		if (a->uid == uid)
			return left(q, a, kind);
	return quota_limit(q, uid, kind);
}
