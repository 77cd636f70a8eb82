/*
 * Manifests
 *
 * The SHA-256 that a file should have, from outside of the file: the line of sha256sum in SHA256SUMS beside it; without
 * that file, its name in a cache of Hugging Face, where snapshots/REVISION/model.safetensors is a link to blobs/SHA256.
 */
#pragma once

#include <stdint.h>

#include "libclient/connection/sentence.h"

#define SHA256_SIZE 32
#define SHA256_TEXT_SIZE (2 * SHA256_SIZE + 1)

enum manifest_kind {
	MANIFEST_FILE, /* SHA256SUMS */
	MANIFEST_BLOB,
};

/*
 * -ENODATA: there is neither; -EBADMSG: SHA256SUMS does not have the file, has it twice, or is no output of sha256sum;
 * errors of files.
 */
int manifest_find(const char *path, uint8_t ret[SHA256_SIZE], enum manifest_kind *ret_kind,
		  struct sentence *s);

/* In hexadecimal digits, with a NUL. Returns `ret`. */
const char *sha256_text(const uint8_t hash[SHA256_SIZE], char ret[SHA256_TEXT_SIZE]);
