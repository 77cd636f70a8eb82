/*
 * Exports: handles that processes made, for others to open
 *
 * Who made a handle is found by its key, whatever bytes make it one: what a process exported last under it. There is a
 * limit, and one of each user, beyond which the oldest goes.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "bpf/event/event_cause.h"
#include "ipc/base/list.h"

#define EXPORTS_MAX 2048
#define EXPORTS_OF_USER_MAX 512 /* no user takes the room of all others */
#define EXPORT_KEY_SIZE 64

/* Without padding: it is compared as it lies in memory. */
struct export_key {
	uint64_t kind; /* keys of different kinds differ */
	uint8_t bytes[EXPORT_KEY_SIZE];
};

struct export
{
	struct list link; /* exports::all */
	struct export_key key;
	struct origin origin;
	uint64_t size; /* UINT64_MAX: not known */
	uid_t uid;
};

struct exports {
	struct list all; /* struct export, the oldest first */
	unsigned n;
};

void exports_init(struct exports *e);
void exports_deinit(struct exports *e);
/* A copy; what had this key has it no more. Without memory there is none. */
void exports_add(struct exports *e, const struct export *export);
/* NULL: it was not seen. */
const struct export *exports_find(const struct exports *e, const struct export_key *key);
void exports_remove(struct exports *e, const struct export_key *key);
