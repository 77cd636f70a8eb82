/*
 * Blobs
 *
 * What a peer sends in parts, one blob at a time, put together in a memfd: nobody gets it before its hash was
 * found to be right and it was sealed.
 */
#pragma once

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/net/frame.h"

struct blob {
	int fd; /* -1: what comes is thrown away */
	uint8_t hash[32];
	uint64_t size; /* 0: none is under way */
	uint64_t n; /* bytes that came */
	EVP_MD_CTX *digest;
};

void blob_init(struct blob *b);
void blob_deinit(struct blob *b);

/* Begins the blob of its first part; without `keep`, only to know where it ends. -ENOMEM and others. */
int blob_begin(struct blob *b, const struct frame *part, bool keep);

/* Gives back what came of it; the rest is thrown away as it comes. */
void blob_drop(struct blob *b);

/*
 * Takes the next part. 1: the blob is whole (right and sealed, or thrown away), and blob_deinit() is the caller's. 0: more has to come.
 * -EBADMSG: another blob's part, or not the next one; -EILSEQ: the hash is not that of the bytes; others: no memory.
 */
int blob_take(struct blob *b, const struct frame *part);
