#include "tests/bench/stopwatch.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
	struct timespec ts;

	(void)clock_gettime(clock, &ts); /* cannot fail for these clocks */
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

uint64_t stopwatch_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t stopwatch_cpu_ns(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

void stopwatch_fail(const char *format, ...)
{
	va_list args;

	(void)fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	(void)vfprintf(stderr, format, args);
	va_end(args);
	(void)fputc('\n', stderr);
	exit(1);
}

uint64_t stopwatch_number(const char *text)
{
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || end == text || *end)
		stopwatch_fail("'%s' is no number", text);
	return v;
}
