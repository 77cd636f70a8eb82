/*
 * Error messages and their exit codes
 *
 * An error is one sentence on standard error. Text from elsewhere in it is escaped here, once.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define cleanup(fn) __attribute__((cleanup(fn)))

enum {
	EXIT_FAILED = 1, /* refused or failed */
	EXIT_USAGE = 2,
	EXIT_SIGNAL = 128, /* plus the number of the signal */
};

/* Keeps the next message in `ret`, which the caller frees, instead of printing it; NULL: prints messages again. */
void cli_error_capture(char **ret);

/* Prints a message. Returns EXIT_FAILED: return cli_error(...). */
__attribute__((format(printf, 1, 2))) int cli_error(const char *fmt, ...);
/* Prints a message and names the help of `verb` ("": that of weightctl). Ends the program with EXIT_USAGE. */
_Noreturn __attribute__((format(printf, 2, 3))) void cli_usage_error(const char *verb,
								     const char *fmt, ...);
_Noreturn void cli_usage_verror(const char *verb, const char *fmt, va_list args);
_Noreturn void cli_out_of_memory(void);
/* A list of `n` that has room for one more: it grows at powers of two. */
void *cli_grown(void *list, size_t n, size_t size);

/*
 * Writes to standard output past stdio, for output that a reader must see at once. 0, or EXIT_FAILED after printing
 * why; silently if the reader of a pipe has closed it.
 */
int cli_write(const char *data, uint64_t size);

static inline void cli_freep(void *p)
{
	free(*(void **)p);
}
