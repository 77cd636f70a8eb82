#include "server/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/num.h"

static enum log_level max_level = LOG_LEVEL_INFO;
static bool to_journal;

void log_init(enum log_level level)
{
	max_level = level;
	to_journal = getenv("JOURNAL_STREAM") != NULL;
}

int log_parse_level(const char *name, enum log_level *ret)
{
	static const struct {
		const char *name;
		enum log_level level;
	} levels[] = {
		{"error", LOG_LEVEL_ERROR},
		{"warning", LOG_LEVEL_WARNING},
		{"info", LOG_LEVEL_INFO},
		{"debug", LOG_LEVEL_DEBUG},
	};

	for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
		if (!strcmp(levels[i].name, name)) {
			*ret = levels[i].level;
			return 0;
		}
	}
	return -EINVAL;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	int saved = errno;
	char line[1024];
	va_list args;
	int n;

	if (level > max_level)
		return;
	n = to_journal ? snprintf(line, sizeof(line), "<%d>", level)
		       : snprintf(line, sizeof(line), "weightd: ");
	va_start(args, fmt);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, args);
	va_end(args);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n] = '\n';
	/* One write, so that lines of several processes do not mix; nowhere to report a failure to. */
	if (write(STDERR_FILENO, line, (size_t)n + 1) < 0)
		(void)0;
	errno = saved;
}
