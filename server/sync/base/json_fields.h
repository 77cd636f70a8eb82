/*
 * JSON fields
 *
 * Reads fields of an untrusted JSON object, within bounds. -EBADMSG: the field is missing, of
 * another type or out of bounds. Outputs are written on success only; strings belong to the object.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* A string of 1 to `max` bytes, without control characters. */
int field_string(const json_t *o, const char *key, size_t max, const char **ret);
/* The same; an absent field or null is NULL. */
int field_string_or_null(const json_t *o, const char *key, size_t max, const char **ret);
/* A number from 0 to `max`, which is at most INT64_MAX. */
int field_number(const json_t *o, const char *key, uint64_t max, uint64_t *ret);
/* The same; an absent field is `otherwise`. */
int field_number_or(const json_t *o, const char *key, uint64_t max, uint64_t otherwise,
		    uint64_t *ret);
/* Exactly `size` bytes, as hexadecimal digits of either case. */
int field_bytes(const json_t *o, const char *key, void *ret, size_t size);
/* An array of at most `max` elements. */
int field_array(const json_t *o, const char *key, size_t max, json_t **ret);
int field_bool_or(const json_t *o, const char *key, bool otherwise, bool *ret);

/* Writes `size` bytes as hexadecimal digits. Returns `ret`, which has room for 2 * size + 1. */
const char *field_hex(const void *bytes, size_t size, char *ret);
