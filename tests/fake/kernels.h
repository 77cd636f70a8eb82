/*
 * Twins of kernels
 */
#pragma once

#include "tests/fake/module.h"

/* Only tests use it: fake_fill(address, size, value) */
cu_result kernel_fill(struct launch *l);

/* The kernel of libclient/cuda/digest.cu: weightd_digest(data, data_size, first_leaf, n_leaves, out). */
cu_result kernel_digest(struct launch *l);

/* Those of tests/gpu/kernels.h. */
cu_result kernel_gpu_fill(struct launch *l);
cu_result kernel_gpu_sum(struct launch *l);
cu_result kernel_gpu_spin(struct launch *l);
cu_result kernel_gpu_poke(struct launch *l);
