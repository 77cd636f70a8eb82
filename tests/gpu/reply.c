#include "tests/gpu/reply.h"

#include <stdarg.h>
#include <stdio.h>

void reply_ok(void)
{
	printf("{\"ok\": true}\n");
	(void)fflush(stdout);
}

void reply_done(const char *members, ...)
{
	va_list args;

	va_start(args, members);
	printf("{\"ok\": true");
	(void)vprintf(members, args);
	printf("}\n");
	va_end(args);
	(void)fflush(stdout);
}

void reply_open(void)
{
	printf("{\"ok\": true");
}

void reply_member(const char *name, uint64_t value)
{
	printf(", \"%s\": %lu", name, value);
}

void reply_list(const char *name, const uint64_t *values, size_t n)
{
	printf(", \"%s\": [", name);
	for (size_t i = 0; i < n; i++)
		printf("%s%lu", i ? ", " : "", values[i]);
	printf("]");
}

void reply_close(void)
{
	printf("}\n");
	(void)fflush(stdout);
}

void reply_failed(int code, const char *why, ...)
{
	char text[1024];
	va_list args;

	va_start(args, why);
	(void)vsnprintf(text, sizeof(text), why, args);
	va_end(args);
	for (char *c = text; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '\'';
	printf("{\"ok\": false, \"code\": %d, \"error\": \"%s\"}\n", code, text);
	(void)fflush(stdout);
}

void reply_result(const struct cuda_driver *cuda, cu_result r)
{
	char why[CUDA_WHY_SIZE];

	cuda_driver_explain(cuda, r, why);
	if (r)
		reply_failed(r, "%s", why);
	else
		reply_ok();
}
