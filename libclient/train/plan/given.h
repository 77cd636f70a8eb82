/*
 * Structs that the caller gives: they begin with their size, which may be that of another release
 */
#pragma once

#include <stddef.h>

#include "weightd-train.h"

/*
 * Copies it into `ret`, a struct of `known` bytes. A shorter one is that of an older release: the members that it lacks are
 * zero, and `min` is the size of the first release. -EINVAL: the size was not set; -E2BIG: it is longer, and not zero
 * there: an option that this library does not know.
 */
int given_copy(const void *given, size_t min, void *ret, size_t known, const char *type);
/*
 * Writes a result of `known` bytes into a struct of the caller, as much as it has room for, and zeros behind. -EINVAL as above.
 */
int given_return(void *ret, size_t min, const void *result, size_t known, const char *type);

#define GIVEN_MIN(type, last) (offsetof(type, last) + sizeof(((type *)NULL)->last))

/* Structs up to their last member in the first release. */
#define GIVEN_CHECKPOINT_OPTIONS_MIN GIVEN_MIN(struct weightd_checkpoint_options, keep)
#define GIVEN_GROUP_MIN GIVEN_MIN(struct weightd_group, nesterov)
#define GIVEN_ENGINE_MIN GIVEN_MIN(struct weightd_engine, data)
#define GIVEN_NODES_MIN GIVEN_MIN(struct weightd_nodes, engine)
#define GIVEN_PLAN_OPTIONS_MIN GIVEN_MIN(struct weightd_plan_options, without_journal)
#define GIVEN_PROFILE_MIN GIVEN_MIN(struct weightd_profile, busbw)
#define GIVEN_RANK_STATUS_MIN GIVEN_MIN(struct weightd_rank_status, written)
#define GIVEN_REDISTRIBUTION_MIN GIVEN_MIN(struct weightd_redistribution, backward_name)
#define GIVEN_SCALING_MIN GIVEN_MIN(struct weightd_scaling, interval)
#define GIVEN_TENSOR_MIN GIVEN_MIN(struct weightd_train_tensor, n_bytes)
#define GIVEN_TRAFFIC_MIN GIVEN_MIN(struct weightd_traffic, sent)
#define GIVEN_TRAIN_OPTIONS_MIN GIVEN_MIN(struct weightd_train_options, on_death)
#define GIVEN_UPDATE_MIN GIVEN_MIN(struct weightd_update, unused)
