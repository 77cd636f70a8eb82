/*
 * UTF-8: validation and decoding
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Decodes one character of `left` bytes, of which there is one at least. Returns its length, or 0 when there is none at
 * p: broken, overlong, a surrogate or above U+10FFFF.
 */
size_t utf8_decode(const unsigned char *p, size_t left, uint32_t *ret);

/* As vsnprintf(), of `size` bytes, which are one at least; what is too long ends between characters. */
void utf8_vformat(char *ret, size_t size, const char *format, va_list args)
	__attribute__((format(printf, 3, 0)));
