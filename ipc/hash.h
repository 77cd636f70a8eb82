/*
 * Hashes
 *
 * XXH3-128 in its canonical (big-endian) form: of layouts, of digest leaves, of tables of leaves. It
 * detects accidents and never attackers.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HASH_SIZE 16

void hash128(const void *data, size_t size, uint8_t ret_hash[HASH_SIZE]);

/* Hash of a name for hash tables: 64 bits. */
uint64_t hash64(const void *data, size_t size);
