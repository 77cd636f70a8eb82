/*
 * Casts
 *
 * Elements of one floating-point type as another, with the bits of torch's Tensor.to(): rounded to nearest even, to
 * infinity beyond the largest number and to denormals below the smallest normal one. F64 becomes F32 first, as in torch.
 * A NaN keeps its sign and the upper bits of its payload, and becomes quiet; BF16 to F32 keeps all bits. The payload of a
 * NaN is what torch has with AVX2, but for those that become BF16: torch's have other payloads on each machine.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* True for F64, F32, F16 and BF16, by the codes of ipc/dtype.h. */
bool cast_is_from(unsigned dtype);
/* True for F32, F16 and BF16. */
bool cast_is_to(unsigned dtype);

/* `n` elements, at any address; the ranges are disjoint. The types are of those above. */
void cast_elements(void *to, unsigned to_dtype, const void *from, unsigned from_dtype, size_t n);
/* The same without instructions that only some processors have. */
void cast_elements_portable(void *to, unsigned to_dtype, const void *from, unsigned from_dtype,
			    size_t n);
