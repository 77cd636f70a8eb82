/*
 * Untrusted text. The output is printable in the locale's encoding for any input.
 */
#include "libclient/weightctl/output/escape.h"

#include <langinfo.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

/*
 * glibc calls these printable, but they are invisible or change the order of what stands around them:
 * soft hyphen, bidirectional controls, zero-width spaces and joiners, line separators, the byte order
 * mark, interlinear annotation, tags.
 */
static const struct {
	uint32_t first, last;
} hidden[] = {
	{0xad, 0xad},     {0x61c, 0x61c},   {0x180b, 0x180f}, {0x200b, 0x200f},   {0x2028, 0x202e},
	{0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
};

static bool is_hidden(uint32_t c)
{
	for (size_t i = 0; i < sizeof(hidden) / sizeof(*hidden); i++)
		if (c >= hidden[i].first && c <= hidden[i].last)
			return true;
	return false;
}

/* Bytes of the sequence that begins with `c`; 0 if none does. */
static size_t sequence_length(unsigned char c)
{
	if (c < 0x80)
		return 1;
	if (c < 0xc2 || c > 0xf4)
		return 0;
	return c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* The code point at `s` and its length in bytes; 0 for a byte that starts no valid sequence. */
static size_t escape_decode_character(const char *s, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *p = (const unsigned char *)s;
	size_t len = sequence_length(*p);
	uint32_t c = len > 1 ? *p & (0x7fu >> len) : *p;

	for (size_t i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80) /* also the end of the string */
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	/* overlong, surrogate, beyond Unicode */
	if (!len || c < least[len] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
		return 0;
	*ret = c;
	return len;
}

#define ELLIPSIS 0x2026

static bool is_utf8(void)
{
	return !strcmp(nl_langinfo(CODESET), "UTF-8");
}

/*
 * The backslash is the one character of ASCII that names are written without: as an escape it is
 * followed by an x.
 */
const char *escape_mark(void)
{
	return is_utf8() ? "\u2026" : "\\";
}

/* Writes the characters of ASCII that stand for themselves in every output, and returns the first of the others. */
static const char *put_plain(FILE *f, const char *s)
{
	size_t n = 0;

	while (s[n] >= ' ' && s[n] <= '~' && s[n] != '"' && s[n] != '\\')
		n++;
	if (n)
		(void)fwrite_unlocked(s, 1, n, f);
	return s + n;
}

static void put_escaped(FILE *f, const char *s, bool is_name)
{
	bool utf8 = is_utf8();

	while (*(s = put_plain(f, s))) {
		uint32_t c = 0;
		size_t len = escape_decode_character(s, &c);

		if (len && (c < 0x80 || utf8) && iswprint((wint_t)c) && !is_hidden(c) &&
		    !(is_name && (c == '\\' || c == ELLIPSIS))) {
			(void)fwrite(s, 1, len, f);
		} else {
			len = len ? len : 1;
			for (size_t i = 0; i < len; i++)
				(void)fprintf(f, "\\x%02x", (unsigned char)s[i]);
		}
		s += len;
	}
}

void escape_text(FILE *f, const char *s)
{
	put_escaped(f, s, false);
}

void escape_name(FILE *f, const char *s)
{
	put_escaped(f, s, true);
}

static void put_unicode_escape(FILE *f, uint32_t c)
{
	if (c < 0x10000) {
		(void)fprintf(f, "\\u%04x", c);
		return;
	}
	c -= 0x10000;
	(void)fprintf(f, "\\u%04x\\u%04x", 0xd800 | c >> 10, 0xdc00 | (c & 0x3ff));
}

void escape_json(FILE *f, const char *s)
{
	(void)fputc('"', f);
	while (*(s = put_plain(f, s))) {
		uint32_t c = 0;
		size_t len = escape_decode_character(s, &c);

		if (!len)
			put_unicode_escape(f, 0xfffd);
		else if (c == '"' || c == '\\')
			(void)fprintf(f, "\\%c", (int)c);
		else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || is_hidden(c))
			put_unicode_escape(f, c);
		else
			(void)fwrite(s, 1, len, f); /* JSON is UTF-8 in every locale */
		s += len ? len : 1;
	}
	(void)fputc('"', f);
}
