/*
 * What may not be known, as JSON has it: null then, and not "" or 0
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

/* null: NULL or "", or it has what no JSON can hold: anybody may call a process what he likes. */
json_t *text_or_null(const char *s);
/* Likewise, of text that has no NUL where it fills all of `size`. */
json_t *chars_or_null(const char *s, size_t size);
/* null: 0. */
json_t *pid_or_null(pid_t pid);
