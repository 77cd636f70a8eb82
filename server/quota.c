#include "server/quota.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/num.h"

static const uint64_t limits[QUOTA_KINDS] = {
	[QUOTA_SESSIONS] = 4096, [QUOTA_LEASES] = 65536,     [QUOTA_BUFFERS] = 2048,
	[QUOTA_VERSIONS] = 4096, [QUOTA_BYTES] = UINT64_MAX, [QUOTA_CLOSING] = 64,
};

void quota_init(struct quota *q)
{
	*q = (struct quota){0};
	list_init(&q->accounts);
	for (int i = 0; i < QUOTA_KINDS; i++)
		q->limits[i] = limits[i];
}

void quota_deinit(struct quota *q)
{
	assert(list_empty(&q->accounts));
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

/* A limit may have been lowered below what is used. */
static uint64_t left(const struct quota *q, const struct account *a, enum quota_kind kind)
{
	return q->limits[kind] > a->used[kind] ? q->limits[kind] - a->used[kind] : 0;
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
	a->used[kind] += amount;
	a->n_charges++;
	*charge = (struct charge){.account = a, .kind = kind, .amount = amount};
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
	return q->limits[kind];
}
