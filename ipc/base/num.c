#include "ipc/base/num.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int num_parse(const char *s, int base, uint64_t *ret)
{
	unsigned long long v;
	char *end;

	if (!isdigit((unsigned char)*s))
		return -EINVAL; /* strtoull() takes signs and blanks */
	errno = 0;
	v = strtoull(s, &end, base);
	if (*end || errno)
		return -EINVAL;
	*ret = v;
	return 0;
}

int num_parse_size(const char *s, uint64_t *ret)
{
	static const char suffixes[] = "KMGT";
	unsigned shift = 0;
	double v;
	char *end;

	if (!isdigit((unsigned char)*s))
		return -EINVAL;
	v = strtod(s, &end);
	if (end != s + strspn(s, "0123456789.")) /* strtod() accepts hexadecimal and exponents too */
		return -EINVAL;
	if (*end) {
		const char *suffix = strchr(suffixes, toupper((unsigned char)*end));

		if (!suffix)
			return -EINVAL;
		shift = 10 * (unsigned)(suffix - suffixes + 1);
		end++;
		if (!strcmp(end, "iB") || !strcmp(end, "B"))
			end += strlen(end);
	}
	if (*end)
		return -EINVAL;
	v *= (double)((uint64_t)1 << shift);
	if (!(v < 9e18))
		return -ERANGE;
	*ret = (uint64_t)v;
	return 0;
}

const char *num_format_size(char buf[NUM_SIZE_MAX], uint64_t bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
	double v = (double)bytes;
	size_t unit = 0;

	while (v >= 999.95 && unit + 1 < ARRAY_LEN(units)) {
		v /= 1000;
		unit++;
	}
	(void)snprintf(buf, NUM_SIZE_MAX, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
	return buf;
}

uint64_t num_now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
