/*
 * Names of syncs in weightd-trace or a recording, and the one selected by a prefix
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#define SYNC_PREFIX_SHOWN_MAX 8
#define SYNC_PREFIX_NAME_MAX 127 /* bytes of each, as of all that weightd-trace has */
/* ", ", and how many more. */
#define SYNC_PREFIX_TEXT_MAX (SYNC_PREFIX_SHOWN_MAX * (SYNC_PREFIX_NAME_MAX + 2) + 32)

struct sync_prefix {
	const char *prefix;
	json_t *all; /* keys: all names, in their order; values: true if the name has the prefix */
};

void sync_prefix_init(struct sync_prefix *n, const char *prefix);
void sync_prefix_deinit(struct sync_prefix *n);

/* True if it has the prefix. */
bool sync_prefix_add(struct sync_prefix *n, const char *name);

/*
 * The selected name: the one equal to the prefix, though others may have it as prefix; NULL: no name has it. 0, or
 * EXIT_FAILED after printing that several have.
 */
int sync_prefix_find(const struct sync_prefix *n, const char **ret);

/* All names as text; "": there are none. */
void sync_prefix_text(const struct sync_prefix *n, char ret[SYNC_PREFIX_TEXT_MAX]);
