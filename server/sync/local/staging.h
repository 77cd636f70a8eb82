/*
 * Staging
 *
 * Host memory that a version goes through where its own is a GPU's: engines send from it and write to it. Nobody but
 * weightd-sync knows of it or counts it, so it is taken only as far as what else runs here goes on running, and
 * before anything is written to it.
 */
#pragma once

#include <stdint.h>

#include "server/sync/local/fault.h"

struct staging {
	int fd; /* -1: there is none, or it was given to others for good */
	char *data; /* NULL: none, or nothing writes it any more */
	uint64_t size;
};

#define STAGING_NONE ((struct staging){.fd = -1})

/* Whether there is room; -ENOMEM with a sentence. */
int staging_check(uint64_t size, struct fault *f);

/* A hole of that size, mapped. */
int staging_open(uint64_t size, struct staging *ret, struct fault *f);

/* Takes the memory from `at` to `end`. -ENOMEM: what there was room for has gone elsewhere. */
int staging_take(struct staging *s, uint64_t at, uint64_t end, struct fault *f);
/* All of it. */
int staging_fill(struct staging *s, struct fault *f);

/* What is there stays as it is, for those who have its descriptor. */
int staging_seal(struct staging *s, struct fault *f);

void staging_deinit(struct staging *s);
