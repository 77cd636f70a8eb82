/*
 * Sentences
 *
 * The message of an error code: one line for a person that names the thing and the way out. Text from files or other
 * users passes through sentence_quote(), so that no sentence can disturb a terminal.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>

#define SENTENCE_MAX 512

struct sentence {
	char text[SENTENCE_MAX];
};

/* Writes the sentence and returns `r`, a negative errno: return sentence_set(s, -EINVAL, ...). */
__attribute__((format(printf, 3, 4))) int sentence_set(struct sentence *s, int r, const char *fmt,
						       ...);
int sentence_vset(struct sentence *s, int r, const char *fmt, va_list args)
	__attribute__((format(printf, 3, 0)));

#define SENTENCE_QUOTE_MAX 160

struct sentence_quote {
	char text[SENTENCE_QUOTE_MAX];
};

/*
 * The name in single quotes, control characters and broken UTF-8 escaped as \xNN, cut with "..." when
 * it is long. Safe in a signal handler. Returns q->text, so that it can stand in an argument list:
 *	sentence_quote(&(struct sentence_quote){0}, name, len)
 */
const char *sentence_quote(struct sentence_quote *q, const char *name, size_t len);
