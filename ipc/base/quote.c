/*
 * Whatever reaches a sentence from outside is made of bytes that another process chose. Only text that a
 * terminal prints as it stands passes; everything else is spelled out.
 */
#include "ipc/base/quote.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/utf8.h"

/* Possible text behind the last character of a cut name. */
static const char cut_mark[] = "'...";

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

/* Writes the escaped character at p, and returns how many bytes it took; 0: it has no room. */
static size_t quote_one(const unsigned char *p, size_t left, char *out, size_t room,
			size_t *ret_taken)
{
	static const char digits[] = "0123456789abcdef";
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
	for (size_t i = 0; escape && i < n; i++) {
		const char spelled[] = {'\\', 'x', digits[p[i] >> 4], digits[p[i] & 15]};

		memcpy(out + 4 * i, spelled, sizeof(spelled));
	}
	*ret_taken = n;
	return size;
}

const char *quote_bytes(struct quote *q, const char *name, size_t len)
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
	if (len > 0)
		memcpy(q->text + at, cut_mark, sizeof(cut_mark));
	else
		memcpy(q->text + at, "'", 2);
	return q->text;
}

const char *quote_name(struct quote *q, const char *name)
{
	return quote_bytes(q, name, strlen(name));
}
