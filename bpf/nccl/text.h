/*
 * JSON, written into a buffer of the caller
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_SIZE 4096 /* more than weightd-trace takes in one packet */

struct text {
	size_t n;
	bool is_full; /* something did not fit: the text is nothing that could be sent */
	char s[TEXT_SIZE];
};

/* Without control characters, at most `size` with the NUL, whole characters; what is no UTF-8 is "?". NULL is "". */
void text_copy(char *ret, size_t size, const char *s);

void text_begin(struct text *t);
void text_add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `, "key": ` and what it is; a text that is NULL or "" is null. */
void text_string(struct text *t, const char *key, const char *value);
void text_number(struct text *t, const char *key, int64_t value);
/* Null if it is unknown. */
void text_number_if(struct text *t, const char *key, bool is_known, uint64_t value);
