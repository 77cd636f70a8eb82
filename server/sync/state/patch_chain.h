/*
 * Patch chain
 *
 * What this node keeps of how the last versions of a buffer, which it pushed, came to be out of each other: a row of
 * patches, each from where the one before it ends, the last to the version that is committed. Whoever has any of these
 * versions needs only what comes after it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PATCH_CHAIN_MAX 8 /* descriptors in one packet */
#define PATCH_CHAIN_WORTH 2 /* times fewer bytes than of the leaves, or else those travel */

struct patch_chain {
	struct kept_patch {
		int fd; /* a sealed memfd */
		uint64_t size;
		uint64_t changed; /* bytes of elements that it changes */
		uint8_t base[32]; /* the root of what it begins with */
	} at[PATCH_CHAIN_MAX];
	unsigned n;
	uint8_t result[32]; /* the root of what the last one ends with */
};

void patch_chain_deinit(struct patch_chain *p);

/* Empties it, if what it ends with is something else. */
void patch_chain_keep_to(struct patch_chain *p, const uint8_t root[32]);

/*
 * One more, which takes the descriptor. What does not end where it begins goes, and so do the oldest ones, where there
 * are too many or all take more than a part of a version of `n_bytes`.
 */
void patch_chain_add(struct patch_chain *p, struct kept_patch *patch, const uint8_t result[32],
		     uint64_t n_bytes);

/* From another one, whose last it ends with, with descriptors of its own. -errno: it is empty. */
int patch_chain_copy(const struct patch_chain *from, struct patch_chain *ret);

/* The first that is needed by who has the version of this root; `n`: none begins there. */
unsigned patch_chain_find(const struct patch_chain *p, const uint8_t root[32]);

/* Bytes of those from `first` on, which is as many as they take as one, or more. */
uint64_t patch_chain_size(const struct patch_chain *p, unsigned first);

/*
 * The way of a version to members: "patch", "leaves" that differ, or "full". NULL: not known yet.
 */
const char *patch_chain_way(bool is_patch, uint64_t changed, uint64_t n_bytes);
