/*
 * SHA-256 by OpenSSL, which uses what the processor has. It fails for two reasons only, an OpenSSL without SHA-256
 * and a machine without a few hundred bytes: neither has anything to go on with.
 */
#include "server/sync/base/tree.h"

#include <assert.h>
#include <endian.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define THREADS_MAX 8

struct walk {
	const void *data;
	uint64_t n_bytes;
	uint64_t n_leaves;
	uint8_t (*leaves)[TREE_HASH_SIZE];
	void (*each)(void *userdata, uint64_t leaf);
	void *userdata;
	_Atomic uint64_t next; /* leaf that nobody has taken yet */
};

static EVP_MD_CTX *begin(void)
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	int r = c ? EVP_DigestInit_ex(c, EVP_sha256(), NULL) : 0;

	assert(r == 1);
	return c;
}

static void put(EVP_MD_CTX *c, const void *data, size_t size)
{
	int r = EVP_DigestUpdate(c, data, size);

	assert(r == 1);
}

static void end(EVP_MD_CTX *c, uint8_t ret[TREE_HASH_SIZE])
{
	unsigned size = 0;
	int r = EVP_DigestFinal_ex(c, ret, &size);

	assert(r == 1 && size == TREE_HASH_SIZE);
	EVP_MD_CTX_free(c);
}

void tree_hash(const void *data, size_t size, uint8_t ret[TREE_HASH_SIZE])
{
	EVP_MD_CTX *c = begin();

	put(c, data, size);
	end(c, ret);
}

void tree_leaf(const void *data, uint64_t n_bytes, uint64_t leaf, uint8_t ret[TREE_HASH_SIZE])
{
	uint64_t offset = leaf * TREE_LEAF_SIZE, left = n_bytes - offset;
	EVP_MD_CTX *c = begin();

	assert(leaf < tree_n_leaves(n_bytes));
	put(c, "\0", 1);
	put(c, (const char *)data + offset, left < TREE_LEAF_SIZE ? left : TREE_LEAF_SIZE);
	end(c, ret);
}

void tree_root(uint64_t n_bytes, const uint8_t (*leaves)[TREE_HASH_SIZE],
	       uint8_t ret[TREE_HASH_SIZE])
{
	uint64_t n = htobe64(n_bytes);
	EVP_MD_CTX *c = begin();

	put(c, "\1", 1);
	put(c, &n, sizeof(n));
	put(c, leaves, tree_n_leaves(n_bytes) * TREE_HASH_SIZE);
	end(c, ret);
}

/* One leaf after the other, so that a thread which gets less of a processor takes fewer of them. */
static void *walk_leaves(void *userdata)
{
	struct walk *w = userdata;
	uint64_t leaf;

	while ((leaf = atomic_fetch_add(&w->next, 1)) < w->n_leaves) {
		tree_leaf(w->data, w->n_bytes, leaf, w->leaves[leaf]);
		if (w->each)
			w->each(w->userdata, leaf);
	}
	return NULL;
}

static unsigned n_cores(void)
{
	cpu_set_t ours;

	return sched_getaffinity(0, sizeof(ours), &ours) == 0 ? (unsigned)CPU_COUNT(&ours) : 1;
}

void tree_leaves(const void *data, uint64_t n_bytes, uint8_t (*ret)[TREE_HASH_SIZE],
		 void (*each)(void *userdata, uint64_t leaf), void *userdata)
{
	struct walk w = {
		.data = data,
		.n_bytes = n_bytes,
		.n_leaves = tree_n_leaves(n_bytes),
		.leaves = ret,
		.each = each,
		.userdata = userdata,
	};
	pthread_t others[THREADS_MAX - 1];
	unsigned n = n_cores() < THREADS_MAX ? n_cores() : THREADS_MAX, n_others = 0;

	while (n_others + 1 < n && n_others + 1 < w.n_leaves &&
	       pthread_create(&others[n_others], NULL, walk_leaves, &w) == 0)
		n_others++;
	(void)walk_leaves(&w); /* alone, where no thread could be made */
	while (n_others > 0)
		(void)pthread_join(others[--n_others], NULL);
}

int tree_difference(uint64_t n_bytes, const uint8_t (*a)[TREE_HASH_SIZE],
		    const uint8_t (*b)[TREE_HASH_SIZE], size_t n_max, struct ranges *ret)
{
	uint64_t n = tree_n_leaves(n_bytes), start = 0,
		 end = 0; /* of leaves that follow each other */

	for (uint64_t i = 0; i < n; i++) {
		uint64_t offset = i * TREE_LEAF_SIZE, left = n_bytes - offset;

		if (!memcmp(a[i], b[i], TREE_HASH_SIZE))
			continue;
		if (offset != end && (end == 0 || ret->n + 1 < n_max)) {
			int r = ranges_add(ret, start, end - start);

			if (r < 0)
				return r;
			start = offset;
		}
		end = offset + (left < TREE_LEAF_SIZE ? left : TREE_LEAF_SIZE);
	}
	return ranges_add(ret, start, end - start);
}
