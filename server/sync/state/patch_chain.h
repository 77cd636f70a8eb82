/*
 * Patch chain
 *
 * The patches between the last versions of a buffer that this node pushed: a chain, in which each
 * begins with the result of the previous one, and the last one makes the committed version. A node
 * that has any of these versions needs only the patches after it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PATCH_CHAIN_MAX 8 /* descriptors in one packet */
#define PATCH_CHAIN_WORTH 2 /* times fewer bytes than the leaves; otherwise leaves are sent */

struct patch_chain {
	struct kept_patch {
		int fd; /* a sealed memfd */
		uint64_t size;
		uint64_t changed; /* bytes of elements that it changes */
		uint8_t base[32]; /* the root that it begins with */
	} at[PATCH_CHAIN_MAX];
	unsigned n;
	uint8_t result[32]; /* the root that the last one ends with */
};

void patch_chain_deinit(struct patch_chain *p);

/* Empties it, if it ends with another root. */
void patch_chain_keep_to(struct patch_chain *p, const uint8_t root[32]);

/*
 * Appends a patch, and takes the descriptor. Drops the chain if it does not end at the patch's
 * base. Drops the oldest patches if there are too many, or if they take more than a fraction of a
 * version of `n_bytes`.
 */
void patch_chain_add(struct patch_chain *p, struct kept_patch *patch, const uint8_t result[32],
		     uint64_t n_bytes);

/*
 * Copies a chain that ends with the same patch, with descriptors of its own. -errno: it is empty.
 */
int patch_chain_copy(const struct patch_chain *from, struct patch_chain *ret);

/* The first patch that a node with the version of this root needs; `n`: none begins there. */
unsigned patch_chain_find(const struct patch_chain *p, const uint8_t root[32]);

/* Bytes of the patches from `first` on: an upper limit of their union. */
uint64_t patch_chain_size(const struct patch_chain *p, unsigned first);

/*
 * The way that versions are sent to members: "patch", "leaves", those that differ, or "full". NULL:
 * unknown yet.
 */
const char *patch_chain_way(bool is_patch, uint64_t changed, uint64_t n_bytes);
