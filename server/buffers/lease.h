/*
 * Leases
 *
 * A session's hold on one version. The connection is the lease: when it ends, for whatever reason, its
 * leases end with it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "server/state/quota.h"

struct hold;
struct session;
struct version;

struct lease {
	struct list link; /* session::leases */
	struct list version_link; /* version::leases */
	struct list hold_link; /* hold::leases */
	struct hold *hold;
	struct session *session;
	struct version *version;
	uint64_t id;
	uint64_t began_ns;
	uint64_t since_ns; /* the same of CLOCK_REALTIME */
	bool paused; /* its reader does not read until weightd answers its pause */
	bool evicted; /* its reader did not pause when it had to */
	struct charge charge;
};

/* 0, QUOTA_EXCEEDED or -ENOMEM. `id` is new, or that of a writer which became a reader. */
int lease_new(struct session *session, struct version *version, uint64_t id, struct lease **ret);
/* The same for a lease that existed before a restart: beyond the limit too. */
int lease_renew(struct session *session, struct version *version, uint64_t id, struct lease **ret);
void lease_free(struct lease *l);

/* NULL: the session has no such lease. */
struct lease *lease_find(struct session *session, uint64_t id);
