/*
 * Placements, and the cuts of a range into parts
 */
#include <errno.h>

#include "libclient/train/plan/sentence.h"
#include "weightd-train.h"

const char *weightd_placement_name(enum weightd_placement p)
{
	switch (p) {
	case WEIGHTD_REPLICATE:
		return "Replicate";
	case WEIGHTD_SHARD:
		return "Shard";
	case WEIGHTD_PARTIAL:
		return "Partial";
	}
	return NULL;
}

int weightd_cuts(uint64_t n_elements, uint64_t block, uint32_t n, uint64_t *ret)
{
	/* Whole blocks only: the rest, less than one, goes to the last part, which has no more whole blocks than any other. */
	uint64_t n_blocks, each, longer;

	if (block == 0 || n == 0)
		return train_fail(-EINVAL, "%s to cut a range into",
				  n == 0 ? "there are no parts"
					 : "there are no elements in a block");
	n_blocks = n_elements / block;
	each = n_blocks / n;
	longer = n_blocks % n;
	for (uint32_t i = 0; i < n; i++)
		ret[i] = (each * i + (i < longer ? i : longer)) * block;
	ret[n] = n_elements;
	return 0;
}
