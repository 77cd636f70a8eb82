/*
 * Error messages. Standard output is flushed first, so that a terminal shows both in order.
 */
#include "libclient/weightctl/output/cli_error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/output/escape.h"

static char **captured;

void cli_error_capture(char **ret)
{
	captured = ret;
}

static void print_message(const char *fmt, va_list args)
{
	char *text;

	if (vasprintf(&text, fmt, args) < 0)
		cli_out_of_memory();
	if (captured) {
		free(*captured);
		*captured = text;
		return;
	}
	(void)fflush(stdout); /* keeps both in order on a terminal */
	(void)fputs("weightctl: ", stderr);
	escape_text(stderr, text);
	(void)fputc('\n', stderr);
	free(text);
}

int cli_error(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	print_message(fmt, args);
	va_end(args);
	return EXIT_FAILED;
}

void cli_usage_verror(const char *verb, const char *fmt, va_list args)
{
	print_message(fmt, args);
	(void)fprintf(stderr, "Try 'weightctl %s%s--help'.\n", verb, *verb ? " " : "");
	exit(EXIT_USAGE);
}

void cli_usage_error(const char *verb, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	cli_usage_verror(verb, fmt, args);
}

void cli_out_of_memory(void)
{
	(void)fputs("weightctl: out of memory\n", stderr);
	exit(EXIT_FAILED);
}

void *cli_grown(void *list, size_t n, size_t size)
{
	if (n & (n - 1))
		return list;
	list = reallocarray(list, n ? 2 * n : 1, size);
	if (!list)
		cli_out_of_memory();
	return list;
}

int cli_write(const char *data, uint64_t size)
{
	while (size) {
		ssize_t n = write(STDOUT_FILENO, data, size); /* the kernel cuts it at 2 GiB */

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EPIPE) /* only seen where SIGPIPE is ignored */
			return EXIT_FAILED;
		if (n < 0)
			return cli_error("cannot write to standard output: %s", strerror(errno));
		data += n;
		size -= (uint64_t)n;
	}
	return 0;
}
