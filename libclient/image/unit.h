/*
 * Units of tensors, by name
 *
 * A file of another program has no units. The loader derives them from the names of tensors.
 */
#pragma once

#include "weightd.h"

#define UNIT_MAX (WEIGHTD_TENSOR_NAME_MAX + 1)

/*
 * Writes the module block of a tensor to `ret` and returns it: the name up to the first number in it
 * ("encoder.layer.3"), otherwise the name of its module (before the last dot), otherwise "". The name has
 * WEIGHTD_TENSOR_NAME_MAX bytes at most.
 */
const char *unit_of(const char *name, char ret[UNIT_MAX]);
