/*
 * The binary form of a plan: its options and its tensors. The rest follows from them, so that nothing derived can be forged.
 *
 * All numbers are little endian. Names of fixed size are filled up with zeros, and there is one image of a plan only.
 *	"weightdP", u32 IMAGE_VERSION, char release[16]
 *	u32 n_dims, then for each: char name[16], u32 size
 *	char strategy[16], u32 optimizer, form, flags, staleness, n_copies, n_nodes, sync_every, state_size,
 *		u64 bucket_bytes
 *	u32 grad_dtype, f64 init, growth, backoff, u32 interval: zeros without IMAGE_SCALING
 *	u32 n_groups, then for each: f64 weight_decay, beta1, beta2, eps, momentum, u32 nesterov
 *	u32 n_tensors, then for each: u32 name_size, dtype, role, frozen, group, unit, level, n_dims, u64 shape[n_dims], the name
 */
#pragma once

#define IMAGE_MAGIC "weightdP"
#define IMAGE_MAGIC_SIZE (sizeof(IMAGE_MAGIC) - 1)
#define IMAGE_NAME_SIZE 16
#define IMAGE_VERSION 4

#define IMAGE_OVERLAP 1u
#define IMAGE_WITHOUT_JOURNAL 2u
#define IMAGE_SCALING 4u
#define IMAGE_KEEPS_UNITS 8u
#define IMAGE_WITHOUT_PREFETCH 16u
