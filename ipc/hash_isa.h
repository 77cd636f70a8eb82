/*
 * Hashes by instruction set
 *
 * The implementations from which hash128() chooses. All return the same.
 */
#pragma once

#include "ipc/hash.h"

void hash128_portable(const void *data, size_t size, uint8_t ret_hash[HASH_SIZE]);

/* On x86-64 only, and only if the processor has AVX2. */
void hash128_avx2(const void *data, size_t size, uint8_t ret_hash[HASH_SIZE]);
