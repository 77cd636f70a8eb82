/*
 * One sentence for each thread, overwritten by its next failure. Names in it come from another process: bytes that a
 * terminal would act on are spelled out.
 */
#include "libclient/train/plan/sentence.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/utf8.h"
#include "weightd-train.h"

#define SENTENCE_SIZE 1024

static _Thread_local char sentence[SENTENCE_SIZE];

int train_fail(int r, const char *fmt, ...)
{
	char text[SENTENCE_SIZE]; /* an argument may be the last sentence */
	va_list args;

	va_start(args, fmt);
	utf8_vformat(text, sizeof(text), fmt, args);
	va_end(args);
	memcpy(sentence, text, strlen(text) + 1);
	return r;
}

int train_out_of_memory(void)
{
	return train_fail(-ENOMEM, "there is not enough memory");
}

const char *weightd_train_error(void)
{
	return sentence;
}

/* Controls, and characters without a width or that change the direction of text. */
static bool steers(uint32_t c)
{
	return c < 0x20 || c == '\'' || c == '\\' || (c >= 0x7f && c <= 0x9f) || c == 0xad ||
	       (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
	       (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb);
}

const char *train_quote(struct train_quote *q, const char *name)
{
	static const char digits[] = "0123456789abcdef", cut[] = "'...";
	const unsigned char *p = (const unsigned char *)name;
	size_t left = strlen(name), at = 0;

	q->text[at++] = '\'';
	while (left) {
		uint32_t c = 0;
		size_t n = utf8_decode(p, left, &c), taken = n ? n : 1;
		bool spelled = n == 0 || steers(c);

		if (at + (spelled ? 4 * taken : taken) + sizeof(cut) > sizeof(q->text)) {
			memcpy(q->text + at, cut, sizeof(cut));
			return q->text;
		}
		for (size_t i = 0; i < taken; i++) {
			if (!spelled) {
				q->text[at++] = (char)p[i];
				continue;
			}
			q->text[at++] = '\\';
			q->text[at++] = 'x';
			q->text[at++] = digits[p[i] >> 4];
			q->text[at++] = digits[p[i] & 15];
		}
		p += taken;
		left -= taken;
	}
	q->text[at++] = '\'';
	q->text[at] = 0;
	return q->text;
}
