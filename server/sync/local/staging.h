/*
 * Staging
 *
 * Host memory for a version on a GPU: engines send from it and write to it. Only weightd-sync
 * accounts for it, so it is allocated only as far as other programs keep running, and before
 * anything is written to it.
 */
#pragma once

#include <stdint.h>

#include "server/sync/local/fault.h"

struct staging {
	int fd; /* -1: none, or it was sealed */
	char *data; /* NULL: none, or nothing writes it any more */
	uint64_t size;
};

#define STAGING_NONE ((struct staging){.fd = -1})

/* -ENOMEM with a sentence: there is no room. */
int staging_check(uint64_t size, struct fault *f);

/* Creates a hole of that size, mapped. */
int staging_open(uint64_t size, struct staging *ret, struct fault *f);

/* Allocates the memory from `at` to `end`. -ENOMEM: the free memory was used by other programs. */
int staging_take(struct staging *s, uint64_t at, uint64_t end, struct fault *f);
/* Allocates all of it. */
int staging_fill(struct staging *s, struct fault *f);

/* Seals the content, which then cannot change for the owners of its descriptor. */
int staging_seal(struct staging *s, struct fault *f);

void staging_deinit(struct staging *s);
