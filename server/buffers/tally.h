/*
 * Tallies
 *
 * Sums over the slots of buffers: by device, by user, and of all. Those of all are kept: a buffer that changed is
 * counted again when they are read, so that their cost depends on what changed, and not on what there is.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "server/state/server.h"

struct buffer;

/* The bytes that its slots take on its device, except those that are being freed. */
uint64_t buffer_bytes(const struct buffer *b);

struct charged {
	uint64_t bytes, descriptors;
};

/* Bytes and descriptors of its slots that `uid` is charged for. */
struct charged buffer_charged(const struct buffer *b, uid_t uid);

/* The bytes that slots take on a device, except those that are being freed. */
uint64_t buffers_bytes(const struct server *server, const char *device);

/* The bytes of slots that are being freed, until they are free. */
uint64_t buffers_bytes_being_freed(const struct server *server, const char *device);

/* The buffer has changed: its versions, their leases, or which one is current. */
void tally_change(struct buffer *b);
/* The buffer ends, with nothing in it. */
void tally_forget(struct buffer *b);

struct tally tally_read(struct server *server);
