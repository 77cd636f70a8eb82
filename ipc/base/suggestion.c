#include "ipc/base/suggestion.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NAME_MAX_SIZE 64 /* longer ones get no suggestion */

static unsigned min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

static bool is_same(char a, char b)
{
	return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* How many characters have to be put in, taken out, changed, or swapped with the next; a capital is no change. */
static unsigned distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
	unsigned rows[3][NAME_MAX_SIZE + 1];

	for (unsigned j = 0; j <= n_b; j++)
		rows[0][j] = j;
	for (unsigned i = 1; i <= n_a; i++) {
		unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *first = rows[(i + 1) % 3];

		row[0] = i;
		for (unsigned j = 1; j <= n_b; j++) {
			row[j] = min(min(row[j - 1], above[j]) + 1,
				     above[j - 1] + !is_same(a[i - 1], b[j - 1]));
			if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) &&
			    is_same(a[i - 2], b[j - 1]))
				row[j] = min(row[j], first[j - 2] + 1);
		}
	}
	return rows[n_a % 3][n_b];
}

const char *suggestion_find(const char *name, const char *const *names, unsigned n)
{
	size_t n_name = strcspn(name, " :"), n_other;
	unsigned best = n_name < 6 ? 2 : (unsigned)n_name / 3 + 1;
	const char *nearest = NULL;

	for (unsigned i = 0; i < n; i++) {
		unsigned d;

		n_other = strlen(names[i]);
		d = n_other <= NAME_MAX_SIZE ? distance(name, n_name, names[i], n_other) : best;
		if (d < best) {
			best = d;
			nearest = names[i];
		}
	}
	return nearest;
}
