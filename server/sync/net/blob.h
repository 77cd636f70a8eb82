/*
 * Blobs
 *
 * Receives one blob of a peer at a time, in parts, into a memfd. The blob is returned only after
 * its hash was verified and it was sealed.
 */
#pragma once

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/net/frame.h"

struct blob {
	int fd; /* -1: its bytes are discarded */
	uint8_t hash[32];
	uint64_t size; /* 0: no blob is under way */
	uint64_t n; /* bytes received */
	EVP_MD_CTX *digest;
};

void blob_init(struct blob *b);
void blob_deinit(struct blob *b);

/* Begins a blob with its first part; without `keep`, only to find its end. -ENOMEM and others. */
int blob_begin(struct blob *b, const struct frame *part, bool keep);

/* Frees the received bytes; the rest is discarded on arrival. */
void blob_drop(struct blob *b);

/*
 * Takes the next part. 1: the blob is complete (verified and sealed, or discarded), and the caller
 * must call blob_deinit(). 0: more parts follow. -EBADMSG: a part of another blob, or not the next
 * one; -EILSEQ: the hash is wrong; others: no memory.
 */
int blob_take(struct blob *b, const struct frame *part);
