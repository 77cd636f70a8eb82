#include "libclient/weightctl/output/width.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

/* How far `s` reaches in `width` columns; what cannot be printed ends it. */
static size_t width_measure(const char *s, size_t size, size_t width, size_t *ret_width)
{
	mbstate_t state = {};
	size_t at = 0, used = 0;

	while (at < size) {
		wchar_t c;
		size_t n = mbrtowc(&c, s + at, size - at, &state);
		int columns = n && n <= size ? wcwidth(c) : -1;

		if (columns < 0 || used + (size_t)columns > width)
			break;
		used += (size_t)columns;
		at += n;
	}
	*ret_width = used;
	return at;
}

/* True if each byte is a character of one column. */
static bool is_printable_ascii(const char *s, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (s[i] < ' ' || s[i] > '~')
			return false;
	return true;
}

size_t width_of(const char *s, size_t size)
{
	size_t width;

	if (is_printable_ascii(s, size))
		return size;
	(void)width_measure(s, size, SIZE_MAX, &width);
	return width;
}

size_t width_fitting(const char *s, size_t size, size_t width)
{
	size_t used;

	return width_measure(s, size, width, &used);
}

size_t width_of_terminal(void)
{
	struct winsize size;
	const char *columns;
	int n;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
		return size.ws_col;
	columns = getenv("COLUMNS");
	n = columns ? atoi(columns) : 0;
	return n > 0 ? (size_t)n : 80;
}
