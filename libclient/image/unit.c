#include "libclient/image/unit.h"

#include <stdbool.h>
#include <string.h>

static bool is_number(const char *p, const char *end)
{
	bool found = p < end;

	for (; found && p < end; p++)
		found = *p >= '0' && *p <= '9';
	return found;
}

const char *unit_of(const char *name, char ret[UNIT_MAX])
{
	const char *end = name;

	for (const char *p = name; *p;) {
		const char *stop = strchrnul(p, '.');

		if (is_number(p, stop)) {
			end = stop;
			break;
		}
		if (*stop)
			end = stop;
		p = stop + (*stop == '.');
	}
	*(char *)mempcpy(ret, name, (size_t)(end - name)) = '\0';
	return ret;
}
