/*
 * Tensors of libweightd as input for ipc/reshard
 *
 * Inline, for programs that link libweightd: ipc/reshard itself is arithmetic, independent of the library and its
 * header.
 */
#pragma once

#include <weightd.h>

#include "ipc/reshard/reshard.h"

/* Name and shape are borrowed. */
static inline struct reshard_tensor reshard_tensor_of(const struct weightd_tensor *t)
{
	return (struct reshard_tensor){
		.name = t->name,
		.dtype = weightd_dtype_name(t->dtype),
		.bits = weightd_dtype_bits(t->dtype),
		.role = t->role,
		.tied_to = t->tied_to == WEIGHTD_NOT_TIED ? RESHARD_NOT_TIED : t->tied_to,
		.n_dims = t->n_dims,
		.shape = t->shape,
		.offset = t->offset,
	};
}
