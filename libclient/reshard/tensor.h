/*
 * Tensors of libweightd as ipc/reshard takes them
 *
 * Inline, for programs that link libweightd: ipc/reshard itself is arithmetic and knows neither the library nor its header.
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
