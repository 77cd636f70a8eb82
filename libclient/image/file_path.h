/*
 * Paths of files beside the weights
 *
 * Relative paths that cannot leave the directory they are written into.
 */
#pragma once

#include <stddef.h>

#include "libclient/connection/sentence.h"

/* -EINVAL: not such a path. The sentence quotes it. */
int file_path_check(const char *path, size_t size, struct sentence *s);

/* The order of paths: by their bytes. */
int file_path_compare(const char *a, size_t a_size, const char *b, size_t b_size);
