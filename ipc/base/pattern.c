#include "ipc/base/pattern.h"

#include <stddef.h>
#include <string.h>

/* The `]` that ends the set at `p`; NULL: it is no set. The first byte of a set may be a `]`. */
static const char *set_end(const char *p)
{
	const char *from = p + 1;

	if (*p != '[')
		return NULL;
	from += *from == '!';
	return *from ? strchr(from + 1, ']') : NULL;
}

static bool set_has(const char *p, const char *end, char c)
{
	const unsigned char byte = (unsigned char)c;
	bool is_inverse = *++p == '!', found = false;

	for (p += is_inverse; p < end; p++) {
		const unsigned char low = (unsigned char)p[0];

		if (p[1] == '-' && p + 2 < end) {
			found |= low <= byte && byte <= (unsigned char)p[2];
			p += 2;
		} else {
			found |= low == byte;
		}
	}
	return found != is_inverse;
}

/* True if the first element of a pattern, no `*`, matches the byte; `*ret_rest` is behind the element. */
static bool element_matches(const char *pattern, char c, const char **ret_rest)
{
	const char *end = set_end(pattern);

	*ret_rest = end ? end + 1 : pattern + 1;
	return end ? set_has(pattern, end, c) : *pattern == '?' || *pattern == c;
}

bool pattern_matches(const char *pattern, const char *name)
{
	const char *star = NULL, *behind = NULL, *rest;

	while (*name) {
		if (*pattern == '*') {
			star = pattern++;
			behind = name;
		} else if (*pattern && element_matches(pattern, *name, &rest)) {
			pattern = rest;
			name++;
		} else if (star) { /* it stands for one more byte */
			pattern = star + 1;
			name = ++behind;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return !*pattern;
}

static unsigned min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* The next row of the table: `row` after the element at `pattern`, from `above` before it. Returns its least entry. */
static unsigned distance_row(const char *pattern, const char *name, size_t n, const unsigned *above,
			     unsigned *row, const char **ret_rest)
{
	const bool is_star = *pattern == '*';
	unsigned least = row[0] = is_star ? above[0] : above[0] + 1;

	*ret_rest = pattern + 1;
	for (size_t j = 1; j <= n; j++) {
		if (is_star)
			row[j] = min(above[j], row[j - 1]);
		else
			row[j] = min(min(above[j], row[j - 1]) + 1,
				     above[j - 1] + !element_matches(pattern, name[j - 1], ret_rest));
		least = min(least, row[j]);
	}
	return least;
}

unsigned pattern_distance(const char *pattern, const char *name, unsigned limit)
{
	unsigned rows[2][PATTERN_DISTANCE_MAX + 1];
	size_t n = strnlen(name, PATTERN_DISTANCE_MAX + 1);
	unsigned i = 0;

	if (n > PATTERN_DISTANCE_MAX ||
	    strnlen(pattern, n + PATTERN_DISTANCE_MAX) > PATTERN_DISTANCE_MAX)
		return limit;
	for (size_t j = 0; j <= n; j++)
		rows[0][j] = (unsigned)j;
	for (; *pattern; i++)
		if (distance_row(pattern, name, n, rows[i % 2], rows[(i + 1) % 2], &pattern) >= limit)
			return limit;
	return min(rows[i % 2][n], limit);
}
