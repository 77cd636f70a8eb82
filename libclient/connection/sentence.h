/*
 * Sentences
 *
 * The message of an error code: one line for a person that names the thing and the way out. Text from files or other
 * users passes through quote_bytes(), so that no sentence can disturb a terminal.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>

#include "ipc/base/quote.h"

#define SENTENCE_MAX 512

struct sentence {
	char text[SENTENCE_MAX];
};

/* Writes the sentence and returns `r`, a negative errno: return sentence_set(s, -EINVAL, ...). */
__attribute__((format(printf, 3, 4))) int sentence_set(struct sentence *s, int r, const char *fmt,
						       ...);
int sentence_vset(struct sentence *s, int r, const char *fmt, va_list args)
	__attribute__((format(printf, 3, 0)));
