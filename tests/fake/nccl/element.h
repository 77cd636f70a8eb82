/*
 * Elements
 *
 * Numbers of NCCL's types, in memory that need not be aligned. Sums are made in float, and rounded
 * to the type after each addition, as NCCL's are.
 */
#pragma once

#include <stddef.h>

enum element_type {
	ELEMENT_UINT8 = 1,
	ELEMENT_UINT32 = 3,
	ELEMENT_FLOAT16 = 6,
	ELEMENT_FLOAT32 = 7,
	ELEMENT_BFLOAT16 = 9,
};

/* 0: none of these. */
size_t element_size(int type);
const char *element_name(int type);
void element_add(int type, char *to, const char *from, size_t n_bytes);
/* By 1/n, rounded to the type first. */
void element_divide(int type, char *at, size_t n_bytes, int n);
