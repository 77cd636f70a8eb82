/*
 * Configurations
 *
 * The config.json beside the weights of a model, as transformers and diffusers write it. It is input: it may hold anything.
 */
#pragma once

#include <jansson.h>

/* The caller owns it. NULL: there is none in the directory, or none that can be read. It is not what is loaded. */
json_t *configuration_read(const char *directory);
