#include "server/sync/suggestion.h"

#include <stddef.h>
#include <string.h>

#define NAME_MAX_SIZE 64 /* longer ones get no suggestion */

static unsigned min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* How many characters have to be put in, taken out or changed (Levenshtein). */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[NAME_MAX_SIZE + 1], n = (unsigned)strlen(b);

	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 0; a[i]; i++) {
		unsigned diagonal = row[0];

		row[0] = i + 1;
		for (unsigned j = 0; j < n; j++) {
			unsigned above = row[j + 1];

			row[j + 1] = min(min(row[j], above) + 1, diagonal + (a[i] != b[j]));
			diagonal = above;
		}
	}
	return row[n];
}

const char *suggestion_find(const char *name, const char *const *names, unsigned n)
{
	unsigned best = (unsigned)strlen(name) / 3 + 2;
	const char *nearest = NULL;

	for (unsigned i = 0; i < n; i++) {
		unsigned d = strlen(names[i]) <= NAME_MAX_SIZE ? distance(name, names[i]) : best;

		if (d < best) {
			best = d;
			nearest = names[i];
		}
	}
	return nearest;
}
