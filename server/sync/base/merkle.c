/*
 * SHA-256 by OpenSSL, which uses the instructions of the processor. It fails only if OpenSSL lacks
 * SHA-256 or a few hundred bytes of memory are missing: the process cannot continue in either case.
 */
#include "server/sync/base/merkle.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 8

struct walk {
	uint64_t n;
	void (*each)(void *userdata, uint64_t leaf);
	void *userdata;
	_Atomic uint64_t next; /* the next leaf to hash */
};

struct hashing {
	const void *data;
	uint64_t n_bytes;
	uint8_t (*leaves)[MERKLE_HASH_SIZE];
	void (*each)(void *userdata, uint64_t leaf);
	void *userdata;
};

static EVP_MD_CTX *merkle_begin(void)
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	int r = c ? EVP_DigestInit_ex(c, EVP_sha256(), NULL) : 0;

	assert(r == 1);
	return c;
}

static void merkle_put(EVP_MD_CTX *c, const void *data, size_t size)
{
	int r = EVP_DigestUpdate(c, data, size);

	assert(r == 1);
}

static void merkle_end(EVP_MD_CTX *c, uint8_t ret[MERKLE_HASH_SIZE])
{
	unsigned size = 0;
	int r = EVP_DigestFinal_ex(c, ret, &size);

	assert(r == 1 && size == MERKLE_HASH_SIZE);
	EVP_MD_CTX_free(c);
}

void merkle_hash(const void *data, size_t size, uint8_t ret[MERKLE_HASH_SIZE])
{
	EVP_MD_CTX *c = merkle_begin();

	merkle_put(c, data, size);
	merkle_end(c, ret);
}

void merkle_leaf(const void *data, uint64_t n_bytes, uint64_t leaf, uint8_t ret[MERKLE_HASH_SIZE])
{
	uint64_t offset = leaf * MERKLE_LEAF_SIZE, left = n_bytes - offset;
	EVP_MD_CTX *c = merkle_begin();

	assert(leaf < merkle_n_leaves(n_bytes));
	merkle_put(c, "\0", 1);
	merkle_put(c, (const char *)data + offset,
		   left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE);
	merkle_end(c, ret);
}

void merkle_root(uint64_t n_bytes, const uint8_t (*leaves)[MERKLE_HASH_SIZE],
		 uint8_t ret[MERKLE_HASH_SIZE])
{
	uint64_t n = htobe64(n_bytes);
	EVP_MD_CTX *c = merkle_begin();

	merkle_put(c, "\1", 1);
	merkle_put(c, &n, sizeof(n));
	merkle_put(c, leaves, merkle_n_leaves(n_bytes) * MERKLE_HASH_SIZE);
	merkle_end(c, ret);
}

/* Takes one leaf at a time, so that a thread with less processor time takes fewer. */
static void *merkle_walk(void *userdata)
{
	struct walk *w = userdata;
	uint64_t leaf;

	while ((leaf = atomic_fetch_add(&w->next, 1)) < w->n)
		w->each(w->userdata, leaf);
	return NULL;
}

static unsigned n_cores(void)
{
	cpu_set_t ours;

	return sched_getaffinity(0, sizeof(ours), &ours) == 0 ? (unsigned)CPU_COUNT(&ours) : 1;
}

void merkle_each_leaf(uint64_t n_bytes, void (*each)(void *userdata, uint64_t leaf), void *userdata)
{
	struct walk w = {.n = merkle_n_leaves(n_bytes), .each = each, .userdata = userdata};
	pthread_t others[THREADS_MAX - 1];
	unsigned n = n_cores() < THREADS_MAX ? n_cores() : THREADS_MAX, n_others = 0;

	while (n_others + 1 < n && n_others + 1 < w.n &&
	       pthread_create(&others[n_others], NULL, merkle_walk, &w) == 0)
		n_others++;
	(void)merkle_walk(&w); /* alone, if no thread could be created */
	while (n_others > 0)
		(void)pthread_join(others[--n_others], NULL);
}

static void hash_leaf(void *userdata, uint64_t leaf)
{
	const struct hashing *h = userdata;

	merkle_leaf(h->data, h->n_bytes, leaf, h->leaves[leaf]);
	if (h->each)
		h->each(h->userdata, leaf);
}

void merkle_leaves(const void *data, uint64_t n_bytes, uint8_t (*ret)[MERKLE_HASH_SIZE],
		   void (*each)(void *userdata, uint64_t leaf), void *userdata)
{
	merkle_each_leaf(n_bytes, hash_leaf,
			 &(struct hashing){.data = data,
					   .n_bytes = n_bytes,
					   .leaves = ret,
					   .each = each,
					   .userdata = userdata});
}

int merkle_difference(uint64_t n_bytes, const uint8_t (*leaves)[MERKLE_HASH_SIZE], uint64_t n_others,
		      const uint8_t (*others)[MERKLE_HASH_SIZE], struct ranges *ret)
{
	uint64_t n = merkle_n_leaves(n_bytes), before = UINT64_MAX - 1;
	struct ranges all = {.at = calloc(n / 2 + 1, sizeof(*all.at))};
	int r;

	if (!all.at)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t offset = i * MERKLE_LEAF_SIZE, left = n_bytes - offset;

		if (i < n_others && !memcmp(leaves[i], others[i], MERKLE_HASH_SIZE))
			continue;
		if (i != before + 1)
			all.at[all.n++].offset = offset;
		all.at[all.n - 1].size += left < MERKLE_LEAF_SIZE ? left : MERKLE_LEAF_SIZE;
		before = i;
	}
	r = ranges_add_all(ret, &all);
	ranges_deinit(&all);
	return r;
}
