/*
 * Tensors as struct weightd_tensor
 */
#pragma once

#include "ipc/layout.h"
#include "weightd.h"

/* Fills as much of `ret` as its size allows. `base` NULL: no data. -ENOENT; -EINVAL for a size too small. */
int tensor_get(const struct layout *l, const void *base, uint32_t index, struct weightd_tensor *ret);
int tensor_find(const struct layout *l, const void *base, const char *name,
		struct weightd_tensor *ret);
