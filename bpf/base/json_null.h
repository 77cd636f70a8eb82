/*
 * Optional JSON values: an unknown name or pid becomes null, never "" or 0.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

/* null for NULL, "", and text that JSON cannot hold: a process may have any name. */
json_t *text_or_null(const char *s);
/* The same for text without a NUL if it fills all of `size`. */
json_t *chars_or_null(const char *s, size_t size);
/* null for 0. */
json_t *pid_or_null(pid_t pid);
