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
	QUOTA_DESCRIPTORS, /* that the service manager's store keeps for a restart */
	QUOTA_CLOSING, /* descriptors being closed (client_fds.h) */
	QUOTA_KINDS,
};

#define QUOTA_EXCEEDED 1

struct account {
	struct list link; /* quota::accounts */
	uid_t uid;
	unsigned n_charges;
	uint64_t used[QUOTA_KINDS];
};

/* The limits of one user, where they differ from those of all. */
struct quota_override {
	uid_t uid;
	unsigned kinds; /* bit 1 << kind: limits[kind] holds for the user */
	uint64_t limits[QUOTA_KINDS];
};

struct quota {
	struct list accounts; /* all users that hold something; for statistics */
	uint64_t limits[QUOTA_KINDS]; /* limits of each user */
	struct quota_override *overrides;
	unsigned n_overrides;
};

struct charge {
	struct account *account; /* NULL: nothing charged */
	enum quota_kind kind;
	uint64_t amount;
};

extern const uint64_t quota_default_limits[QUOTA_KINDS];

void quota_init(struct quota *q);
void quota_deinit(struct quota *q);

/* Takes `overrides`, from malloc(). A user above a new limit keeps what it holds, and gets no more. */
void quota_set_limits(struct quota *q, const uint64_t limits[QUOTA_KINDS],
		      struct quota_override *overrides, unsigned n_overrides);

/* 0, QUOTA_EXCEEDED or -ENOMEM. `charge` must hold nothing. */
int quota_charge(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
		 struct charge *charge);
void quota_refund(struct charge *charge);

/*
 * Charges beyond the limit too: for what is there already and must not be lost, such as what a restart
 * finds again. New charges are refused until the use has sunk below the limit. 0 or -ENOMEM.
 */
int quota_charge_anyway(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
			struct charge *charge);

/* The user's limit, and how much of it is left. */
uint64_t quota_limit(const struct quota *q, uid_t uid, enum quota_kind kind);
uint64_t quota_left(const struct quota *q, uid_t uid, enum quota_kind kind);
