/*
 * Loopback
 *
 * What this node says to itself, as it would to a peer: a message or a blob, kept until it is heard.
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

/* As the last of these. What is said is kept by another reference or descriptor. -errno. */
int loopback_send(struct list *queue, json_t *message);
int loopback_send_blob(struct list *queue, const uint8_t hash[32], int fd, uint64_t size);
void loopback_free(struct loopback *w);
