#include "ipc/base/suggestion.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NAME_MAX_SIZE 256 /* longer ones get no suggestion */
#define DISTANCE_MAX 4

static unsigned min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* ASCII only: names of a million tensors are compared. */
static char small(char c)
{
	return (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

static bool is_same(char a, char b)
{
	return small(a) == small(b);
}

/*
 * How many characters have to be put in, taken out, changed, or swapped with the next; a capital is no
 * change. At least `limit`, which ends the search early: tables have millions of names.
 */
static unsigned distance(const char *a, size_t n_a, const char *b, size_t n_b, unsigned limit)
{
	unsigned rows[3][NAME_MAX_SIZE + 1];

	if ((n_a > n_b ? n_a - n_b : n_b - n_a) >= limit)
		return limit;
	while (n_a && n_b && is_same(*a, *b)) {
		a++, b++;
		n_a--, n_b--;
	}
	while (n_a && n_b && is_same(a[n_a - 1], b[n_b - 1])) {
		n_a--;
		n_b--;
	}
	for (unsigned j = 0; j <= n_b && j <= limit; j++)
		rows[0][j] = j;
	if (n_b > limit)
		rows[0][limit + 1] = limit;
	for (unsigned i = 1; i <= n_a; i++) {
		unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *first = rows[(i + 1) % 3];
		/* Further from the diagonal the distance is at least the limit. */
		const unsigned from = i > limit ? i - limit : 1, to = min((unsigned)n_b, i + limit);
		unsigned least = row[from - 1] = from == 1 ? i : limit;

		for (unsigned j = from; j <= to; j++) {
			row[j] = min(min(row[j - 1], above[j]) + 1,
				     above[j - 1] + !is_same(a[i - 1], b[j - 1]));
			if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) &&
			    is_same(a[i - 2], b[j - 1]))
				row[j] = min(row[j], first[j - 2] + 1);
			least = min(least, row[j]);
		}
		if (to < n_b)
			row[to + 1] = limit;
		if (least > limit) /* not at the limit itself: a swap reaches back by two rows */
			return limit;
	}
	return rows[n_a % 3][n_b];
}

const char *suggestion_find(const char *name, size_t size, const char *const *names, unsigned n)
{
	/* A name of one letter is near to itself alone. */
	unsigned best = size < 6 ? min(2, (unsigned)size)
				 : min((unsigned)size / 3, DISTANCE_MAX) + 1;
	const char *nearest = NULL;

	for (unsigned i = 0; i < n && size <= NAME_MAX_SIZE; i++) {
		size_t n_other = strlen(names[i]);
		unsigned d = best;

		if (n_other <= NAME_MAX_SIZE)
			d = distance(name, size, names[i], n_other, best);
		if (d < best) {
			best = d;
			nearest = names[i];
		}
	}
	return nearest;
}
