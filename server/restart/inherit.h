/*
 * What came with us
 *
 * The descriptors that the service manager passed on at our start, by name: what an earlier weightd had
 * put into the store, and the listening socket it may have opened. Their order means nothing, and whether
 * they are what their names say is for the taker to find out.
 */
#pragma once

#include <stdint.h>

#include "server/restart/store.h"

struct inherited {
	char name[STORE_NAME_MAX + 1]; /* cut when longer: then it is none of ours */
	int fd; /* -1 once taken */
};

struct inherit {
	struct inherited *items; /* by name */
	unsigned n;
};

/* Reads LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, and unsets them. -EINVAL, -ENOMEM; logs them. */
int inherit_init(struct inherit *in);
/* Closes what nobody took. It stays in the store. */
void inherit_deinit(struct inherit *in);

/* The descriptor of that name; -1: there is none. Of several the others stay behind. */
int inherit_take(struct inherit *in, enum store_kind kind, uint64_t id);

/* Puts one back that was taken and is of no use. */
void inherit_give_back(struct inherit *in, enum store_kind kind, uint64_t id, int fd);

/* Throws one out of the store that is nothing to anybody; does nothing where there is none. */
void inherit_drop(struct inherit *in, struct store *store, enum store_kind kind, uint64_t id);

/* Names what nobody took, in the log, and counts it in the store, where it stays. Returns how many. */
unsigned inherit_leave(struct inherit *in, struct store *store);

/* The listening socket that the service manager made. -ENOENT: none; -EINVAL: several, or no SEQPACKET one. */
int inherit_take_listener(struct inherit *in, int *ret_fd);
