/*
 * Names of syncs that weightd-trace or a recording knows, of which one is meant by how it begins
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define NAMES_SHOWN_MAX 8
#define NAME_SHOWN_MAX 127 /* bytes of each, as of all that weightd-trace has */
/* ", ", and how many more. */
#define NAMES_TEXT_MAX (NAMES_SHOWN_MAX * (NAME_SHOWN_MAX + 2) + 32)

struct names {
	const char *prefix;
	json_t *all; /* whether they begin so, as keys, in their order */
};

void names_init(struct names *n, const char *prefix);
void names_deinit(struct names *n);

/* Whether it begins so. */
bool names_add(struct names *n, const char *name);

/*
 * The one that is meant, which is the whole name where there is one, though others begin so; NULL: none begins so. 0, or
 * EXIT_FAILED after telling that it is more than one.
 */
int names_find(const struct names *n, const char **ret);

/* Of all; "": there are none. */
void names_text(const struct names *n, char ret[NAMES_TEXT_MAX]);
