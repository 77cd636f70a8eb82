/*
 * A strategy that updates Shard and has no copies is the shared replica of a node: its all-gather is that the other ranks
 * wait.
 */
#include "libclient/train/plan/strategy.h"

#include <stddef.h>
#include <string.h>

#include "ipc/base/num.h"

static const struct strategy strategies[] = {
	{.name = "shared", .update = WEIGHTD_SHARD, .can_fuse = true, .can_lag = true},
	{.name = "zero1", .update = WEIGHTD_SHARD, .has_copies = true, .can_fuse = true},
	{.name = "zero2", .update = WEIGHTD_SHARD, .pools_grads = true},
	{.name = "zero3", .update = WEIGHTD_SHARD, .pools_grads = true, .has_units = true},
	{.name = "replicated", .update = WEIGHTD_REPLICATE, .has_copies = true},
};

const struct strategy *strategy_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(strategies); i++)
		if (!strcmp(strategies[i].name, name))
			return &strategies[i];
	return NULL;
}
