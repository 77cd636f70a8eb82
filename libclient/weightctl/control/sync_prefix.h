/*
 * Names of syncs that weightd-trace or a recording knows, of which one is meant by how it begins
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define SYNC_PREFIX_SHOWN_MAX 8
#define SYNC_PREFIX_NAME_MAX 127 /* bytes of each, as of all that weightd-trace has */
/* ", ", and how many more. */
#define SYNC_PREFIX_TEXT_MAX (SYNC_PREFIX_SHOWN_MAX * (SYNC_PREFIX_NAME_MAX + 2) + 32)

struct sync_prefix {
	const char *prefix;
	json_t *all; /* whether they begin so, as keys, in their order */
};

void sync_prefix_init(struct sync_prefix *n, const char *prefix);
void sync_prefix_deinit(struct sync_prefix *n);

/* Whether it begins so. */
bool sync_prefix_add(struct sync_prefix *n, const char *name);

/*
 * The one that is meant, which is the whole name where there is one, though others begin so; NULL: none begins so. 0, or
 * EXIT_FAILED after telling that it is more than one.
 */
int sync_prefix_find(const struct sync_prefix *n, const char **ret);

/* Of all; "": there are none. */
void sync_prefix_text(const struct sync_prefix *n, char ret[SYNC_PREFIX_TEXT_MAX]);
