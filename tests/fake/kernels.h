/*
 * Twins of the kernels that only tests launch
 */
#pragma once

#include "tests/fake/module.h"

/* fake_fill(address, size, value) */
cu_result kernel_fill(struct launch *l);
