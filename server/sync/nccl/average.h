/*
 * The average
 *
 * The mean of tensors of all nodes, made by NCCL's all-reduces from one memory of the GPU into
 * another. NCCL multiplies each term by 1/n, rounded to the tensor's type, and sums up in an order
 * and a type of its own, the same for all nodes. So 16-bit types are averaged by 2, 4, 8, ... nodes
 * only, where 1/n is exact: of any other number every mean would be off in the same direction.
 *
 * Tensors without a mean must be equal on all nodes: these compare digests of their memory.
 */
#pragma once

#include "server/sync/nccl/engine.h"

extern const struct operation average_operation;
