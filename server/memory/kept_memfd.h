/*
 * Kept memfds
 *
 * Sealed memory that clients sent, which the server keeps for versions and never looks into: counted
 * references, a charge, and a place in the store under an id of its own. Part of an object that the
 * last reference frees.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/restart/store.h"
#include "server/state/quota.h"

struct server;

struct kept_memfd {
	struct server *server;
	enum store_kind kind;
	unsigned n_refs;
	uid_t uid; /* the user that sent it */
	uid_t store_uid; /* its user in the store */
	uint64_t id;
	int fd; /* read-only */
	uint64_t size; /* bytes of the memfd */
	bool kept; /* in the store */
	struct charge charge;
	struct charge descriptor;
};

/*
 * Fills in the rest of one that has its server, kind and fd, which it takes on success. 0,
 * QUOTA_EXCEEDED or a negative errno: then nothing is charged.
 */
int kept_memfd_init(struct kept_memfd *m, uid_t uid);

/* Likewise for a descriptor that the store returned, with its id. Charges in any case. The caller sets store_uid. -EBADMSG. */
int kept_memfd_recover(struct kept_memfd *m, uid_t uid);

/* Puts it into the store, for that user, if it is not there already. */
void kept_memfd_keep(struct kept_memfd *m, uid_t store_uid);

/* True: that was the last reference, and all but the struct is free. It leaves the store. */
bool kept_memfd_unref(struct kept_memfd *m);
