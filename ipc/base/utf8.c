#include "ipc/base/utf8.h"

#include <stdio.h>

size_t utf8_decode(const unsigned char *p, size_t left, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	uint32_t c = p[0];
	size_t n;

	if (c < 0x80) {
		*ret = c;
		return 1;
	}
	n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
	if (c < 0xc0 || c >= 0xf8 || n > left)
		return 0;
	c &= 0x7fu >> n;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return 0;
	*ret = c;
	return n;
}

/* Drops a character that the end of the buffer cut in two. */
static void trim_broken_end(char *text, size_t n)
{
	for (size_t back = 1; back <= 4 && back <= n; back++) {
		const unsigned char *p = (const unsigned char *)text + n - back;
		uint32_t c;

		if ((*p & 0xc0) == 0x80) /* inside a character: its beginning stands further left */
			continue;
		if (utf8_decode(p, back, &c) != back)
			text[n - back] = '\0';
		return;
	}
}

void utf8_vformat(char *ret, size_t size, const char *format, va_list args)
{
	int n = vsnprintf(ret, size, format, args);

	if (n < 0)
		ret[0] = '\0';
	else if ((size_t)n >= size)
		trim_broken_end(ret, size - 1);
}
