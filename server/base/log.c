#include "server/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/num.h"

static _Atomic enum log_level max_level = LOG_LEVEL_INFO; /* read by every thread */
static bool to_journal;
static const char *program = "weightd";

/* The variable alone is inherited by children of a service, also by those with another stderr. */
static bool is_journal(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(fd, &st) == 0 &&
	       st.st_dev == device && st.st_ino == inode;
}

void log_set_name(const char *name)
{
	program = name;
}

void log_init(enum log_level level)
{
	max_level = level;
	to_journal = is_journal(STDERR_FILENO);
}

bool log_is_journal(void)
{
	return to_journal;
}

void log_set_level(enum log_level level)
{
	max_level = level;
}

bool log_is_told(enum log_level level)
{
	return level <= max_level;
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

/* In one write, so that lines of several processes do not mix; never waiting for a slow reader. */
static void write_line(const char *line, size_t size)
{
	static _Atomic unsigned n_lost;
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	char lost[64];
	int n;

	if (poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT)) {
		n_lost++;
		return;
	}
	if (n_lost > 0) {
		n = snprintf(lost, sizeof(lost), "%s: %u lines of the log were lost\n", program,
			     n_lost);
		n_lost = 0;
		if (write(STDERR_FILENO, lost, (size_t)n) < 0)
			n_lost++;
	}
	if (write(STDERR_FILENO, line, size) < 0)
		n_lost++; /* nowhere else to report it to */
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
		       : snprintf(line, sizeof(line), "%s: ", program);
	va_start(args, fmt);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, args);
	va_end(args);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n] = '\n';
	write_line(line, (size_t)n + 1);
	errno = saved;
}
