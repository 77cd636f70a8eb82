#include "libclient/image/unit.h"

#include <stdio.h>
#include <string.h>

const char *unit_of(const char *name, char ret[UNIT_MAX])
{
	const char *end = strrchr(name, '.');

	for (const char *p = name; *p;) {
		size_t n = strcspn(p, ".");

		if (n > 0 && strspn(p, "0123456789") >= n) {
			end = p + n;
			break;
		}
		p += n;
		p += *p == '.';
	}
	(void)snprintf(ret, UNIT_MAX, "%.*s", end ? (int)(end - name) : 0, name);
	return ret;
}
