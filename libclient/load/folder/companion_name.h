/*
 * Names of files in a model directory
 */
#pragma once

#include <stdbool.h>

/* True for weights, of any format, and the state of an optimizer. */
bool companion_is_weights(const char *name);

/* True for a small file that programs read beside the weights. */
bool companion_is_small_file(const char *name);
