/*
 * Quotes
 *
 * Names from files or other processes in a sentence, so that no sentence can disturb a terminal.
 */
#pragma once

#include <stddef.h>

#define QUOTE_MAX 160

struct quote {
	char text[QUOTE_MAX];
};

/*
 * The name in single quotes, control characters and broken UTF-8 escaped as \xNN, cut with "..." when
 * it is long. Safe in a signal handler. Returns q->text, so that it can stand in an argument list:
 *	quote_bytes(&(struct quote){0}, name, len)
 */
const char *quote_bytes(struct quote *q, const char *name, size_t len);
/* Likewise for a string. */
const char *quote_name(struct quote *q, const char *name);
