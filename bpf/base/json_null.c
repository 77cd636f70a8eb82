#include "bpf/base/json_null.h"

#include <string.h>

json_t *text_or_null(const char *s)
{
	return chars_or_null(s, s ? strlen(s) : 0);
}

json_t *chars_or_null(const char *s, size_t size)
{
	size_t n = s ? strnlen(s, size) : 0;
	json_t *text = n > 0 ? json_stringn(s, n) : NULL;

	return text ? text : json_null();
}

json_t *pid_or_null(pid_t pid)
{
	return pid ? json_integer(pid) : json_null();
}
