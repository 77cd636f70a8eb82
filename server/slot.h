/*
 * Slots
 *
 * The memory of one version: allocated empty, provided step by step, filled by one writer, sealed, and
 * from then on only read. Steps run on the worker; between them a slot has one owner, a writer or a
 * version. Freeing may take long and goes through the worker too.
 */
#pragma once

#include <stdint.h>

#include "server/backend/backend.h"
#include "server/quota.h"
#include "server/worker.h"

struct server;

struct slot {
	struct server *server;
	const struct backend *backend;
	uint64_t id;
	uint64_t data_size; /* the flat range */
	uint64_t size; /* with the digest leaves behind it */
	int fd; /* writable; -1 once sealed */
	int reader_fd;
	struct backend_progress progress;
	struct charge charge;
	struct job free_job;
};

/* Allocates and charges `uid`. 0, QUOTA_EXCEEDED or a negative errno. */
int slot_new(struct server *server, const struct backend *backend, uid_t uid, uint64_t data_size,
	     struct slot **ret);

/* Takes a slot that nobody's job works on; NULL is fine. */
void slot_free(struct slot *s);

/* On the worker: as backend::provide. */
int slot_provide(struct slot *s);

/* On the worker: seals the slot and gives up the writable descriptor. As backend::seal. */
int slot_seal(struct slot *s);
