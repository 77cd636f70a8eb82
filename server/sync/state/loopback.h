/*
 * Loopback
 *
 * Messages and blobs of this node to itself, in the same form as to a peer, queued until they are
 * delivered.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "ipc/base/list.h"

struct loopback {
	struct list link; /* agent::loopback */
	json_t *message; /* NULL: it is a blob */
	uint8_t hash[32];
	int fd;
	uint64_t size;
};

/* Appends to the queue, with another reference or descriptor. -errno. */
int loopback_send(struct list *queue, json_t *message);
int loopback_send_blob(struct list *queue, const uint8_t hash[32], int fd, uint64_t size);
void loopback_free(struct loopback *w);
