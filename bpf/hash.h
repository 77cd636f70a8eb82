/*
 * A hash with a key: who does not know that cannot choose what falls into one bucket
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct hash_key {
	uint64_t words[2];
};

/* Of random bits. */
void hash_key_init(struct hash_key *key);

/* SipHash-2-4 of the words, as bytes of a machine that has the lowest first. */
uint64_t hash_words(const struct hash_key *key, const uint64_t words[], size_t n);
