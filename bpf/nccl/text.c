#include "bpf/nccl/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/utf8.h"

#define STRING_SIZE 128 /* weightd-trace takes none that is longer */

/* Characters that a JSON text holds unescaped. */
static bool is_plain(uint32_t c)
{
	return c >= 0x20 && c != 0x7f;
}

void text_copy(char *ret, size_t size, const char *s)
{
	const unsigned char *at = (const unsigned char *)(s ? s : "");
	size_t n = 0, left = strnlen((const char *)at, 4 * size);
	uint32_t c;

	while (left > 0) {
		size_t length = utf8_decode(at, left, &c);
		bool is_good = length > 0 && is_plain(c);
		size_t take = length > 0 ? length : 1;

		if (n + (is_good ? length : 1) >= size)
			break;
		if (is_good)
			memcpy(ret + n, at, length);
		else
			ret[n] = '?';
		n += is_good ? length : 1;
		at += take;
		left -= take;
	}
	ret[n] = '\0';
}

void text_begin(struct text *t)
{
	t->n = 0;
	t->is_full = false;
	t->s[0] = '\0';
}

void text_add(struct text *t, const char *format, ...)
{
	size_t left = sizeof(t->s) - t->n;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(t->s + t->n, left, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= left)
		t->is_full = true;
	else
		t->n += (size_t)n;
}

void text_string(struct text *t, const char *key, const char *value)
{
	char clean[STRING_SIZE];

	text_copy(clean, sizeof(clean), value);
	if (!*clean) {
		text_add(t, ",\"%s\":null", key);
		return;
	}
	text_add(t, ",\"%s\":\"", key);
	for (const char *c = clean; *c; c++)
		text_add(t, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
	text_add(t, "\"");
}

void text_number(struct text *t, const char *key, int64_t value)
{
	text_add(t, ",\"%s\":%" PRId64, key, value);
}

void text_number_if(struct text *t, const char *key, bool is_known, uint64_t value)
{
	if (is_known && value <= INT64_MAX)
		text_number(t, key, (int64_t)value);
	else
		text_add(t, ",\"%s\":null", key);
}
