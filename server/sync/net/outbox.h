/*
 * Outboxes
 *
 * What waits for a peer to read it: messages in order, blobs in parts that are read from their descriptor when
 * their turn comes, and messages that are urgent in front of both, between two frames.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/list.h"

#define OUTBOX_BYTES_MAX ((size_t)16 << 20) /* of messages */
#define OUTBOX_URGENT_MAX                                                                          \
	64 /* messages that overtake others: who asks for more and reads none is hung up on */
#define OUTBOX_BLOBS_MAX 64

struct outbox {
	struct list parcels;
	size_t n_bytes;
	unsigned n_blobs;
};

void outbox_init(struct outbox *o);
void outbox_deinit(struct outbox *o);

/* -EMSGSIZE: longer than a frame; -ENOBUFS: the peer does not read; -ENOMEM. */
int outbox_put(struct outbox *o, const json_t *message, bool urgent);

/* Likewise. `fd` is duplicated. */
int outbox_put_blob(struct outbox *o, const uint8_t hash[32], int fd, uint64_t size);

bool outbox_is_empty(const struct outbox *o);

/* True between two frames: whoever writes something else does not tear one apart. */
bool outbox_is_between(const struct outbox *o);

/*
 * Returns the bytes to write next, and again until outbox_sent() said that all of it was. 1; 0:
 * nothing; negative: a blob cannot be read.
 */
int outbox_next(struct outbox *o, const void **ret, size_t *ret_size);
void outbox_sent(struct outbox *o, size_t n);
