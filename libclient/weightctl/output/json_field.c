#include "libclient/weightctl/output/json_field.h"

#include <string.h>

#include "libclient/weightctl/output/clock.h"

bool json_field_is_kind(const json_t *o, const char *kind)
{
	const char *its = json_field_text(o, "kind");

	return its && !strcmp(its, kind);
}

const char *json_field_text(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text && *text ? text : NULL;
}

uint64_t json_field_number(const json_t *o, const char *key, uint64_t otherwise)
{
	const json_t *n = json_object_get(o, key);

	return json_is_integer(n) && json_integer_value(n) >= 0 ? (uint64_t)json_integer_value(n)
								: otherwise;
}

bool json_field_bool(const json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

uint32_t json_field_id(const json_t *o, const char *key)
{
	uint64_t id = json_field_number(o, key, UINT32_MAX);

	return id < UINT32_MAX ? (uint32_t)id : UINT32_MAX;
}

uint64_t json_field_moment(const json_t *o, const char *key)
{
	uint64_t ns = json_field_number(o, key, 0), now_ns = clock_ns(CLOCK_MONOTONIC);

	return ns && ns <= now_ns ? clock_ns(CLOCK_REALTIME) - (now_ns - ns) : 0;
}
