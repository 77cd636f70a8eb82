/*
 * Sizes and times as a person reads them.
 */
#include "libclient/weightctl/output/size.h"

#include <inttypes.h>
#include <stdio.h>

#define SECOND UINT64_C(1000000000)
#define PER_SECOND_MAX 1e18

const char *size_text(char buf[SIZE_TEXT_MAX], uint64_t bytes)
{
	static const char units[] = " kMGTPE";
	double n = (double)bytes;
	unsigned unit = 0;

	if (bytes < 1000) {
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 " B", bytes);
		return buf;
	}
	while (n >= 999.95) { /* would be printed as 1000.0 */
		n /= 1000;
		unit++;
	}
	(void)snprintf(buf, SIZE_TEXT_MAX, "%.1f %cB", n, units[unit]);
	return buf;
}

uint64_t size_per_second(uint64_t bytes, uint64_t ns)
{
	double rate = (double)bytes * (double)SECOND / (double)ns;

	return rate < PER_SECOND_MAX ? (uint64_t)rate : (uint64_t)PER_SECOND_MAX;
}

const char *size_rate(char buf[SIZE_TEXT_MAX], uint64_t bytes, uint64_t ns)
{
	char size[SIZE_TEXT_MAX];
	double per_second;

	if (!ns)
		return "-";
	per_second = (double)bytes * (double)SECOND / (double)ns;
	(void)snprintf(buf, SIZE_TEXT_MAX, "%.20s/s",
		       size_text(size, per_second < 1e19 ? (uint64_t)per_second : UINT64_MAX));
	return buf;
}

bool size_percent(uint64_t part, uint64_t whole, double *ret)
{
	if (whole == UINT64_MAX || part > whole || !whole)
		return false;
	*ret = 100 * (double)part / (double)whole;
	return true;
}

const char *size_part(char buf[SIZE_TEXT_MAX], uint64_t part, uint64_t whole)
{
	double percent;

	if (!size_percent(part, whole, &percent))
		return NULL;
	if (part && percent < 0.1)
		return "<0.1%";
	if (part != whole && percent > 99.9)
		return ">99.9%";
	(void)snprintf(buf, SIZE_TEXT_MAX, "%.1f%%", percent);
	return buf;
}

const char *size_duration(char buf[SIZE_TEXT_MAX], uint64_t ns)
{
	uint64_t s = ns / SECOND;

	if (ns < 999500) /* less than what would be printed as 1000 us */
		(void)snprintf(buf, SIZE_TEXT_MAX, "%.0f us", (double)ns / 1e3);
	else if (ns < 999500000)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%.0f ms", (double)ns / 1e6);
	else if (ns < 59950000000)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%.1f s", (double)ns / 1e9);
	else if (s < 3600)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
	else if (s < 86400)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 " h %" PRIu64 " min", s / 3600,
			       s % 3600 / 60);
	else
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 " d %" PRIu64 " h", s / 86400,
			       s % 86400 / 3600);
	return buf;
}

const char *size_age(char buf[SIZE_TEXT_MAX], uint64_t ns)
{
	uint64_t s = ns / SECOND;

	if (s < 120)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 "s", s);
	else if (s < 120 * 60)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 "m", s / 60);
	else if (s < 48 * 3600)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 "h", s / 3600);
	else
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 "d", s / 86400);
	return buf;
}

const char *size_clock(char buf[SIZE_TEXT_MAX], uint64_t ns)
{
	uint64_t s = ns / SECOND;

	if (s < 3600)
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 ":%02u", s / 60, (unsigned)(s % 60));
	else
		(void)snprintf(buf, SIZE_TEXT_MAX, "%" PRIu64 ":%02u:%02u", s / 3600,
			       (unsigned)(s % 3600 / 60), (unsigned)(s % 60));
	return buf;
}
