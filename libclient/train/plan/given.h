/*
 * Structs that the caller gives: they begin with their size, which may be that of another release
 */
#pragma once

#include <stddef.h>

/* 0; -EINVAL: the size was not set; -E2BIG: it has an option that this library does not know, and uses it. */
int given_check(const void *given, size_t known, const char *type);

/* Writes a result of `known` bytes into a struct of the caller, as many as it has room for. -EINVAL: the size was not set. */
int given_return(void *ret, void *result, size_t known, const char *type);
