/*
 * Fields of JSON objects from a service or a recording
 *
 * A field that is missing or has another type is none. Text is not escaped here: every output of it must be.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* True if its "kind" is that. */
bool json_field_is_kind(const json_t *o, const char *kind);
/* NULL: none, or an empty one. */
const char *json_field_text(const json_t *o, const char *key);
uint64_t json_field_number(const json_t *o, const char *key, uint64_t otherwise);
bool json_field_bool(const json_t *o, const char *key);
/* UINT32_MAX: none. */
uint32_t json_field_id(const json_t *o, const char *key);
/* A moment of CLOCK_MONOTONIC in nanoseconds, as one of CLOCK_REALTIME; 0: none, or it is in the future. */
uint64_t json_field_moment(const json_t *o, const char *key);
