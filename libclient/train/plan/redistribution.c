/*
 * Redistributions
 *
 * A change of placement never changes the value, only which rank holds what of it; neither does its backward change the
 * gradient. So the backward is the transpose with Replicate and Partial exchanged: a value that was Partial has a gradient
 * that all ranks need, a value that was Replicate has a gradient with a summand in each rank, which is summed for the
 * owner of the value. In one table:
 *
 *	forward			gradient arrives	backward
 *	Partial -> Replicate	Partial			all-reduce
 *				Replicate		identity (Megatron's g)
 *	Replicate -> Replicate	Partial			all-reduce (Megatron's f)
 *				Replicate		identity
 *	Partial -> Shard	Shard			all-gather
 *	Shard -> Replicate	Partial			reduce-scatter
 *				Replicate		slice
 *	Replicate -> Shard	Shard			all-gather
 *	Shard -> Shard		Shard			all-to-all, the inverse
 */
#include <errno.h>

#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"
#include "weightd-train.h"

#define PLACEMENT_END (WEIGHTD_PARTIAL + 1)

/* From, then to. NULL: no such change. */
static const char *const names[PLACEMENT_END][PLACEMENT_END] = {
	[WEIGHTD_REPLICATE] = {[WEIGHTD_REPLICATE] = "identity", [WEIGHTD_SHARD] = "slice"},
	[WEIGHTD_SHARD] = {[WEIGHTD_REPLICATE] = "all-gather", [WEIGHTD_SHARD] = "all-to-all"},
	[WEIGHTD_PARTIAL] = {[WEIGHTD_REPLICATE] = "all-reduce",
			     [WEIGHTD_SHARD] = "reduce-scatter",
			     [WEIGHTD_PARTIAL] = "identity"},
};

/* Placement of the gradient that the ranks of a value need. A gradient that would stay Partial is summed. */
static const enum weightd_placement needed[PLACEMENT_END] = {
	[WEIGHTD_REPLICATE] = WEIGHTD_REPLICATE,
	[WEIGHTD_SHARD] = WEIGHTD_SHARD,
	[WEIGHTD_PARTIAL] = WEIGHTD_REPLICATE,
};

/* Placement in which the gradient of a value arrives where nothing else is known. */
static const enum weightd_placement usual[PLACEMENT_END] = {
	[WEIGHTD_REPLICATE] = WEIGHTD_PARTIAL,
	[WEIGHTD_SHARD] = WEIGHTD_SHARD,
	[WEIGHTD_PARTIAL] = WEIGHTD_REPLICATE,
};

static const char *find_name(enum weightd_placement from, enum weightd_placement to)
{
	return weightd_placement_name(from) && weightd_placement_name(to) ? names[from][to] : NULL;
}

static int refuse(enum weightd_placement from, enum weightd_placement to)
{
	const char *a = weightd_placement_name(from), *b = weightd_placement_name(to);

	return train_fail(-EOPNOTSUPP, "there is no redistribution from %s to %s",
			  a ? a : "an unknown placement", b ? b : "an unknown placement");
}

int weightd_redistribution(enum weightd_placement from, enum weightd_placement to,
			   enum weightd_placement grad, struct weightd_redistribution *ret)
{
	struct weightd_redistribution d = {.name = find_name(from, to)};

	if (!d.name)
		return refuse(from, to);
	/* A gradient has shards where its value has, and nowhere else. */
	d.backward_from = grad ? grad : usual[to];
	if ((d.backward_from == WEIGHTD_SHARD) != (to == WEIGHTD_SHARD) ||
	    (to == WEIGHTD_PARTIAL && d.backward_from == WEIGHTD_PARTIAL) ||
	    !weightd_placement_name(d.backward_from))
		return train_fail(-EOPNOTSUPP, "the gradient of a value in %s cannot be %s",
				  weightd_placement_name(to),
				  weightd_placement_name(d.backward_from)
					  ? weightd_placement_name(d.backward_from)
					  : "in an unknown placement");
	d.backward_to = needed[from];
	d.backward_name = find_name(d.backward_from, d.backward_to);
	return given_return(ret, GIVEN_REDISTRIBUTION_MIN, &d, sizeof(d),
			    "struct weightd_redistribution");
}

static int check_parts(uint64_t size, const uint64_t *cuts, uint32_t n, uint32_t rank)
{
	if (n == 0 || rank >= n)
		return train_fail(-EINVAL, "there is no rank %u of %u", rank, n);
	if (!cuts)
		return size % n == 0
			       ? 0
			       : train_fail(-EINVAL,
					    "%llu bytes cannot be cut evenly for %u ranks; pass cuts",
					    (unsigned long long)size, n);
	for (uint32_t i = 0; i < n; i++)
		if (cuts[i] > cuts[i + 1])
			return train_fail(-EINVAL, "cut %u is behind cut %u", i, i + 1);
	if (cuts[0] != 0 || cuts[n] != size)
		return train_fail(-EINVAL, "the cuts do not cover 0 to %llu",
				  (unsigned long long)size);
	return 0;
}

int weightd_redistribution_bytes(enum weightd_placement from, enum weightd_placement to,
				 uint64_t size, const uint64_t *cuts, uint32_t n, uint32_t rank,
				 uint64_t *ret)
{
	uint64_t part, scattered, total = 0;
	bool moves_sums = from == WEIGHTD_PARTIAL && to != from;
	bool moves_parts = to == WEIGHTD_REPLICATE && to != from;
	int r = check_parts(size, cuts, n, rank);

	if (r < 0)
		return r;
	/* Bytes of an all-to-all depend on the cuts of both sides. */
	if (!find_name(from, to) || (from == WEIGHTD_SHARD && to == WEIGHTD_SHARD))
		return refuse(from, to);
	part = cuts ? cuts[rank + 1] - cuts[rank] : size / n;
	if (__builtin_mul_overflow(part, (uint64_t)n - 1, &scattered))
		return train_fail(-EINVAL, "%llu bytes of %u ranks are too many",
				  (unsigned long long)part, n);
	if (moves_sums)
		total = scattered;
	if (moves_parts && __builtin_add_overflow(total, size - part, &total))
		return train_fail(-EINVAL, "%llu bytes among %u ranks are too many",
				  (unsigned long long)size, n);
	*ret = total;
	return 0;
}
