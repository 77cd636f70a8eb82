#include "server/sync/base/json_fields.h"

#include <errno.h>
#include <string.h>

static int check_string(const json_t *value, size_t max, const char **ret)
{
	const char *s = json_string_value(value);
	size_t n = json_string_length(value);

	if (!s || n == 0 || n > max || strlen(s) != n)
		return -EBADMSG;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
			return -EBADMSG;
	*ret = s;
	return 0;
}

int field_string(const json_t *o, const char *key, size_t max, const char **ret)
{
	return check_string(json_object_get(o, key), max, ret);
}

int field_string_or_null(const json_t *o, const char *key, size_t max, const char **ret)
{
	const json_t *value = json_object_get(o, key);

	if (value && !json_is_null(value))
		return check_string(value, max, ret);
	*ret = NULL;
	return 0;
}

int field_number(const json_t *o, const char *key, uint64_t max, uint64_t *ret)
{
	const json_t *value = json_object_get(o, key);
	json_int_t n = json_integer_value(value);

	if (!json_is_integer(value) || n < 0 || (uint64_t)n > max)
		return -EBADMSG;
	*ret = (uint64_t)n;
	return 0;
}

int field_number_or(const json_t *o, const char *key, uint64_t max, uint64_t otherwise,
		    uint64_t *ret)
{
	if (json_object_get(o, key))
		return field_number(o, key, max, ret);
	*ret = otherwise;
	return 0;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int field_bytes(const json_t *o, const char *key, void *ret, size_t size)
{
	const json_t *value = json_object_get(o, key);
	const char *s = json_string_value(value);

	if (!s || json_string_length(value) != 2 * size)
		return -EBADMSG;
	for (size_t i = 0; i < 2 * size; i++)
		if (digit(s[i]) < 0)
			return -EBADMSG;
	for (size_t i = 0; i < size; i++)
		((uint8_t *)ret)[i] = (uint8_t)(digit(s[2 * i]) << 4 | digit(s[2 * i + 1]));
	return 0;
}

int field_array(const json_t *o, const char *key, size_t max, json_t **ret)
{
	json_t *value = json_object_get(o, key);

	if (!json_is_array(value) || json_array_size(value) > max)
		return -EBADMSG;
	*ret = value;
	return 0;
}

int field_bool_or(const json_t *o, const char *key, bool otherwise, bool *ret)
{
	const json_t *value = json_object_get(o, key);

	if (value && !json_is_boolean(value))
		return -EBADMSG;
	*ret = value ? json_is_true(value) : otherwise;
	return 0;
}

const char *field_hex(const void *bytes, size_t size, char *ret)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < size; i++) {
		ret[2 * i] = digits[((const uint8_t *)bytes)[i] >> 4];
		ret[2 * i + 1] = digits[((const uint8_t *)bytes)[i] & 15];
	}
	ret[2 * size] = '\0';
	return ret;
}
