#include "libclient/weightctl/output/width.h"

#include <stdint.h>
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

size_t width_of(const char *s, size_t size)
{
	size_t width;

	(void)width_measure(s, size, SIZE_MAX, &width);
	return width;
}

size_t width_fitting(const char *s, size_t size, size_t width)
{
	size_t used;

	return width_measure(s, size, width, &used);
}
