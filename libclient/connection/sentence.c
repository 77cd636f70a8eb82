/*
 * One line for a person, cut where it is too long
 */
#include "libclient/connection/sentence.h"

#include <string.h>

#include "ipc/base/utf8.h"

int sentence_vset(struct sentence *s, int r, const char *fmt, va_list args)
{
	char text[SENTENCE_MAX]; /* the arguments may contain s->text */

	utf8_vformat(text, sizeof(text), fmt, args);
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
