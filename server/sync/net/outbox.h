/*
 * Outboxes
 *
 * The queue of a peer: messages in order; blobs in parts, which are read from their descriptor in
 * their turn; and urgent messages, which overtake both, between two frames.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/list.h"

#define OUTBOX_BYTES_MAX ((size_t)16 << 20) /* bytes of messages */
/* Messages that overtake others: a peer that causes more and reads none is disconnected. */
#define OUTBOX_URGENT_MAX 64
#define OUTBOX_BLOBS_MAX 96

struct outbox {
	struct list parcels;
	size_t n_bytes;
	unsigned n_blobs;
};

void outbox_init(struct outbox *o);
void outbox_deinit(struct outbox *o);

/* -EMSGSIZE: longer than a frame; -ENOBUFS: the peer does not read; -ENOMEM. */
int outbox_put(struct outbox *o, const json_t *message, bool urgent);

/* The same. `fd` is duplicated. */
int outbox_put_blob(struct outbox *o, const uint8_t hash[32], int fd, uint64_t size);

bool outbox_is_empty(const struct outbox *o);

/* True between two frames: other bytes may be written then without tearing one apart. */
bool outbox_is_between(const struct outbox *o);

/*
 * Returns the next bytes to write, the same ones until outbox_sent() has counted all of them. 1; 0:
 * none; negative: a blob cannot be read.
 */
int outbox_next(struct outbox *o, const void **ret, size_t *ret_size);
void outbox_sent(struct outbox *o, size_t n);
