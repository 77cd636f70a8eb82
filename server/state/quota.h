/*
 * Quotas
 *
 * Everything a client can make us hold is charged to a user: the object carries the charge, and freeing
 * the object refunds it. An account exists while something is charged to it.
 */
#pragma once

#include <stdbool.h>
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
	QUOTA_REQUESTS, /* in work (in_work.h) */
	QUOTA_HELD, /* bytes that exist only because the user reads them (held.h) */
	QUOTA_KINDS,
};

#define QUOTA_EXCEEDED 1 /* beyond the limit of the user */
#define QUOTA_RESERVED 2 /* the rest of the whole is for users that hold less */

#define QUOTA_AUTO (UINT64_MAX - 1) /* a limit that is a share of the whole (share.h) */

struct account {
	struct list link; /* quota::accounts */
	struct quota *quota;
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
	uint64_t wholes[QUOTA_KINDS]; /* shared by all users; 0: without a bound */
	uint64_t used[QUOTA_KINDS]; /* sums over all users */
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

/*
 * Sets the wholes from the descriptors that this process may have open, and from those that a store keeps, or kept
 * if there were one.
 */
void quota_set_wholes(struct quota *q, uint64_t n_open_files, uint64_t n_kept);

/* Sets the whole of QUOTA_HELD, half of the memory there is. */
void quota_set_memory(struct quota *q, uint64_t n_bytes);

/* 0, QUOTA_EXCEEDED or -ENOMEM. `charge` must hold nothing. */
int quota_charge(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
		 struct charge *charge);
/* Likewise, of a kind with a whole. Also returns QUOTA_RESERVED. */
int quota_charge_shared(struct quota *q, uid_t uid, bool is_admin, enum quota_kind kind,
			uint64_t amount, struct charge *charge);
void quota_refund(struct charge *charge);

/*
 * Charges beyond the limit too: for what is there already and must not be lost, such as what a restart
 * finds again. New charges are refused until the use has sunk below the limit. 0 or -ENOMEM.
 */
int quota_charge_anyway(struct quota *q, uid_t uid, enum quota_kind kind, uint64_t amount,
			struct charge *charge);

/*
 * Moves what is charged to another user and kind, beyond the limit too. -ENOMEM: it stays. Nothing for a charge
 * that holds nothing.
 */
int quota_move(struct quota *q, uid_t uid, enum quota_kind kind, struct charge *charge);

/* The amount that the user holds, and the number of users that hold some. */
uint64_t quota_used(const struct quota *q, uid_t uid, enum quota_kind kind);
unsigned quota_n_users(const struct quota *q, enum quota_kind kind);

/* The user's limit, and how much of it is left. */
uint64_t quota_limit(const struct quota *q, uid_t uid, enum quota_kind kind);
uint64_t quota_left(const struct quota *q, uid_t uid, enum quota_kind kind);
