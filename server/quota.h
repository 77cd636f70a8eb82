/*
 * Quotas
 *
 * Everything a client can make us hold is charged to a user: the object carries the charge, and freeing
 * the object refunds it. An account exists while something is charged to it.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"

enum quota_kind {
	QUOTA_SESSIONS,
	QUOTA_LEASES,
	QUOTA_BUFFERS,
	QUOTA_VERSIONS,
	QUOTA_BYTES,
	QUOTA_CLOSING, /* descriptors in the closer */
	QUOTA_KINDS,
};

#define QUOTA_EXCEEDED 1

struct account {
	struct list link; /* quota::accounts */
	uid_t uid;
	unsigned n_charges;
	uint64_t used[QUOTA_KINDS];
};

struct quota {
	struct list accounts;
	uint64_t limits[QUOTA_KINDS]; /* of each user */
};

struct charge {
	struct account *account; /* NULL: nothing charged */
	enum quota_kind kind;
	uint64_t amount;
};

void quota_init(struct quota *q);
void quota_deinit(struct quota *q);

/* 0, QUOTA_EXCEEDED or -ENOMEM. `charge` must hold nothing. */
int quota_charge(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
		 struct charge *charge);
void quota_refund(struct charge *charge);

/* How much more may be charged. */
uint64_t quota_left(const struct quota *q, uid_t uid, enum quota_kind kind);
