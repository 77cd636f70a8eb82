/*
 * The attribute "verified" of a version: "sha256 of xxh3:0123...". A later version of another writer inherits attributes,
 * so the value names the digest of the version that it is about.
 */
#pragma once

#include "libclient/connection/sentence.h"
#include "libclient/image/files.h"
#include "libclient/writer.h"
#include "weightd.h"

#define VERIFIED_ATTRIBUTE "verified"

/* Sets it for the bytes of the writer, which are digested for that; removes it if nothing was verified. */
int verified_describe(enum weightd_verify verified, struct weightd_writer *wr,
		      struct weightd_files *f, struct sentence *s);

/* Its word, if it is about the version of this digest. */
enum weightd_verify verified_level(const struct weightd_files *f, const uint8_t *digest);
