/*
 * Whatever reaches a sentence from outside is made of bytes that somebody else chose. Only text that a
 * terminal prints as it stands passes; everything else is spelled out.
 */
#include "libclient/sentence.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"

/* What may follow the last character of a cut name. */
static const char cut_mark[] = "'...";

/*
 * Decodes one character of UTF-8. Returns its length, or 0 when there is none at p: broken, overlong, a
 * surrogate or above U+10FFFF.
 */
static size_t utf8_decode(const unsigned char *p, size_t left, uint32_t *ret)
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

/*
 * Characters that steer a terminal or change the order or look of what stands around them; and the two
 * that would make a quoted name ambiguous.
 */
static bool needs_escape(uint32_t c)
{
	static const struct {
		uint32_t first, last;
	} ranges[] = {
		{0x00, 0x1f},     {'\'', '\''},     {'\\', '\\'},
		{0x7f, 0x9f}, /* controls, C1 included */
		{0xad, 0xad},     {0x61c, 0x61c},   {0x180e, 0x180e}, /* invisible */
		{0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, /* line ends, bidirectional */
		{0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
	};

	for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
		if (c >= ranges[i].first && c <= ranges[i].last)
			return true;
	return false;
}

/* Writes what stands for the character at p, and tells how many bytes it took; 0 when it has no room. */
static size_t quote_one(const unsigned char *p, size_t left, char *out, size_t room,
			size_t *ret_taken)
{
	uint32_t c = 0;
	size_t n = utf8_decode(p, left, &c);
	bool escape = n == 0 || needs_escape(c);
	size_t size;

	if (n == 0)
		n = 1;
	size = escape ? 4 * n : n;
	if (size > room)
		return 0;
	if (!escape)
		memcpy(out, p, n);
	for (size_t i = 0; escape && i < n; i++)
		(void)snprintf(out + 4 * i, 5, "\\x%02x", p[i]);
	*ret_taken = n;
	return size;
}

const char *sentence_quote(struct sentence_quote *q, const char *name, size_t len)
{
	const unsigned char *p = (const unsigned char *)name;
	const size_t end = sizeof(q->text) - sizeof(cut_mark);
	size_t at = 0, taken = 0;

	q->text[at++] = '\'';
	while (len > 0) {
		size_t n = quote_one(p, len, q->text + at, end - at, &taken);

		if (n == 0)
			break;
		at += n;
		p += taken;
		len -= taken;
	}
	(void)snprintf(q->text + at, sizeof(q->text) - at, "%s", len > 0 ? cut_mark : "'");
	return q->text;
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

int sentence_vset(struct sentence *s, int r, const char *fmt, va_list args)
{
	char text[SENTENCE_MAX]; /* the arguments may contain s->text */
	int n;

	n = vsnprintf(text, sizeof(text), fmt, args);
	if (n < 0)
		text[0] = '\0';
	if (n >= (int)sizeof(text))
		trim_broken_end(text, sizeof(text) - 1);
	memcpy(s->text, text, sizeof(text));
	return r;
}

int sentence_set(struct sentence *s, int r, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	r = sentence_vset(s, r, fmt, args);
	va_end(args);
	return r;
}
