#include "bpf/base/json_null.h"

#include <string.h>

json_t *known_text(const char *s)
{
	return known_chars(s, s ? strlen(s) : 0);
}

json_t *known_chars(const char *s, size_t size)
{
	size_t n = s ? strnlen(s, size) : 0;
	json_t *text = n > 0 ? json_stringn(s, n) : NULL;

	return text ? text : json_null();
}

json_t *known_pid(pid_t pid)
{
	return pid ? json_integer(pid) : json_null();
}
