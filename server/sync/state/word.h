/*
 * Words
 *
 * What this node says to itself, as it would to a peer: a message or a blob, kept until it is heard.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "ipc/base/list.h"

struct word {
	struct list link; /* agent::to_self */
	json_t *message; /* NULL: it is a blob */
	uint8_t hash[32];
	int fd;
	uint64_t size;
};

/* As the last of these. What is said is kept by another reference or descriptor. -errno. */
int word_say(struct list *words, json_t *message);
int word_say_blob(struct list *words, const uint8_t hash[32], int fd, uint64_t size);
void word_free(struct word *w);
