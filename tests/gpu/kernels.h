/*
 * Kernels that the programs for a real GPU launch, as PTX written by hand, so that no nvcc is needed. Their
 * twins for the stand-in are in tests/fake/kernels.c.
 *
 * gpu_fill(words, n, seed)	word i becomes i * 2654435761 + seed: kernel_word()
 * gpu_sum(words, n, out)	adds the sum of word i times 2 i + 1 to *out, which is 64 bits: kernel_sum()
 * gpu_spin(words, n, out, ns)	reads the words again and again for so long
 * gpu_poke(words, value)	writes the first word
 */
#pragma once

#include <stdint.h>

extern const char kernels_ptx[];

static inline uint32_t kernel_word(uint64_t i, uint32_t seed)
{
	return (uint32_t)i * 2654435761u + seed;
}
