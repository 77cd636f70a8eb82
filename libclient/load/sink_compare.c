/*
 * Compares instead of filling: each leaf is read again over a copy of what the version has there, so that bytes between
 * tensors stay, and digested. That, and the version itself, must have the digest of the first time. Leaves on a GPU were
 * compared when they had arrived; there, bytes between tensors are zero.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/digest.h"
#include "libclient/load/sink.h"
#include "libclient/version/tensor_range.h"

static int compare_open(struct sink *k, unsigned *n_threads, struct sentence *s)
{
	k->state = malloc(((size_t)*n_threads + 1) * DIGEST_LEAF_SIZE);
	return k->state ? 0 : sentence_set(s, -ENOMEM, "there is not enough memory to verify with");
}

static bool is_host(const struct sink *k)
{
	return k->wr->memory.location.memory == WIRE_MEMORY_HOST;
}

static char *scratch_of(const struct sink *k, unsigned thread)
{
	return (char *)k->state + thread * DIGEST_LEAF_SIZE;
}

static const char *in_version(const struct sink *k, uint64_t leaf)
{
	return (const char *)k->wr->memory.data + leaf * DIGEST_LEAF_SIZE;
}

static int compare_begin(struct sink *k, unsigned thread, uint64_t leaf, char **ret,
			 struct sentence *s)
{
	const uint64_t left = k->wr->data_size - leaf * DIGEST_LEAF_SIZE;
	const size_t size = left < DIGEST_LEAF_SIZE ? left : DIGEST_LEAF_SIZE;

	(void)s;
	*ret = scratch_of(k, thread);
	if (is_host(k))
		memcpy(*ret, in_version(k, leaf), size);
	else
		memset(*ret, 0, size);
	return 0;
}

static bool has_digest(const struct sink *k, const void *bytes, uint64_t size, uint64_t leaf)
{
	uint8_t hash[HASH_SIZE];

	hash128(bytes, size, hash);
	return !memcmp(hash, k->wr->leaves[leaf], HASH_SIZE);
}

static int compare_end(struct sink *k, unsigned thread, uint64_t leaf, uint64_t size,
		       struct sentence *s)
{
	const uint64_t begin = leaf * DIGEST_LEAF_SIZE;
	const char *what = NULL;
	char text[TENSOR_RANGE_TEXT_MAX];
	struct tensor_range range;
	uint32_t next = 0;

	if (is_host(k) && !has_digest(k, in_version(k, leaf), size, leaf))
		what = "have changed in memory";
	else if (!has_digest(k, scratch_of(k, thread), size, leaf))
		what = "are others when the file is read again";
	if (!what)
		return 0;
	tensor_range_find(&k->wr->layout, begin, begin + size, &next, &range);
	return sentence_set(s, -EILSEQ,
			    "the bytes from %" PRIu64 " to %" PRIu64
			    " of the version (%s) %s; nothing was published: load again, and check "
			    "the disk and the memory of this machine if it happens twice",
			    begin, begin + size, tensor_range_text(&k->wr->layout, &range, text),
			    what);
}

static int compare_finish(struct sink *k, struct sentence *s)
{
	(void)k;
	(void)s;
	return 0;
}

static void compare_close(struct sink *k)
{
	free(k->state);
}

const struct sink_kind sink_compare = {
	.n_threads = 4,
	.n_leaves = 1,
	.compares = true,
	.open = compare_open,
	.begin = compare_begin,
	.end = compare_end,
	.finish = compare_finish,
	.close = compare_close,
};
