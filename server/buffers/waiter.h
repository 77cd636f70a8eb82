/*
 * Waiters
 *
 * A session that asked for a version which is not there yet. It gets its answer when the version is
 * published or its time is up; until then its connection stays silent.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"
#include "server/base/loop.h"

struct buffer;
struct server;
struct session;

struct waiter {
	struct list link; /* server::waiters */
	struct session *session;
	struct timer timer;
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint64_t version;
};

/* The session must not be waiting already. */
int waiter_new(struct session *session, const struct wire_wait *wait);
void waiter_free(struct waiter *w);

/* Answers the waiters for a version that `b` now has, each in a turn of its user. */
void waiters_notify(struct buffer *b);

/* True when the current version is `version` or a later one, and may be read. */
bool waiter_is_served(const struct buffer *b, uint64_t version);
