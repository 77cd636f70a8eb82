/*
 * Inherited descriptors
 *
 * The descriptors that the service manager passed on at our start, by name: what an earlier weightd
 * put into the store, and the listening socket that the manager may have opened. Their order has no
 * meaning. The taker of a descriptor must check that it is what its name claims.
 */
#pragma once

#include <stdint.h>

#include "server/restart/store.h"

struct inherited {
	char name[STORE_NAME_MAX + 1]; /* cut when longer: then it is none of ours */
	int fd; /* -1 once taken */
};

struct libsystemd;

struct inherit {
	const struct libsystemd *systemd; /* NULL: the service manager passed nothing */
	struct inherited *items; /* sorted by name */
	unsigned n;
};

/*
 * Takes what sd_listen_fds_with_names() returns, and unsets the variables. Needs libsystemd only if LISTEN_FDS is set. -EINVAL
 * also without it; -EBADF, -ENOMEM. Logs failures.
 */
int inherit_init(struct inherit *in);
/* Closes those that were not taken. They stay in the store. */
void inherit_deinit(struct inherit *in);

/* The descriptor of that name; -1: there is none. Of several the others stay behind. */
int inherit_take(struct inherit *in, enum store_kind kind, uint64_t id);

/* Puts one back that was taken and is of no use. */
void inherit_give_back(struct inherit *in, enum store_kind kind, uint64_t id, int fd);

/* Removes one from the store that belongs to nothing; does nothing where there is none. */
void inherit_drop(struct inherit *in, struct store *store, uid_t uid, enum store_kind kind,
		  uint64_t id);

/*
 * Names those that were not taken in the log, and counts them in the store, where they stay.
 * Returns how many.
 */
unsigned inherit_leave(struct inherit *in, struct store *store);

/* The listening socket that the service manager made. -ENOENT: none; -EINVAL: several, or no SEQPACKET one. */
int inherit_take_listener(struct inherit *in, int *ret_fd);
