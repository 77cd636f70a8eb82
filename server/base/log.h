/*
 * The log
 *
 * Lines on stderr: with the journal's level prefix where the journal reads them, for people
 * otherwise. The caller that decides logs, once, with the cause; helpers return errors and stay
 * silent.
 */
#pragma once

#include <stdbool.h>

enum log_level {
	LOG_LEVEL_ERROR = 3, /* the numbers of syslog */
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7,
};

/* Sets the prefix of lines for people, by default "weightd"; a literal. */
void log_set_name(const char *name);

void log_init(enum log_level max_level);
void log_set_level(enum log_level max_level);

/* True when lines of that level are written. */
bool log_is_told(enum log_level level);

/* True when stderr is the journal's, as log_init() found it. */
bool log_is_journal(void);

/* "error", "warning", "info", "debug". -EINVAL. */
int log_parse_level(const char *name, enum log_level *ret);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *fmt, ...);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
