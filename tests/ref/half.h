/*
 * Numbers of 16 bits, as programs have them beside the library: its own conversions are not used here
 */
#pragma once

#include <stddef.h>

#include <weightd-train.h>

/* WEIGHTD_F32, WEIGHTD_BF16 or WEIGHTD_F16 by its name, or 0. */
enum weightd_dtype half_find(const char *name);
/* `n` numbers to fp32. */
void half_widen(float *to, const void *from, enum weightd_dtype dtype, size_t n);
/* `n` fp32 numbers, each times `factor` in fp32, rounded to nearest even. */
void half_round(void *to, enum weightd_dtype dtype, const float *from, float factor, size_t n);
