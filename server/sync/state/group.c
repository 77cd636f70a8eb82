/* Groups are configuration, and constant. A node refuses members with another configuration. */
#include "server/sync/state/group.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

static const char *const POLICIES[] = {
	[POLICY_ALL] = "all",
	[POLICY_QUORUM] = "quorum",
	[POLICY_EACH] = "each",
};

const char *policy_name(enum policy p)
{
	return POLICIES[p];
}

int policy_parse(const char *name, enum policy *ret)
{
	for (unsigned i = 0; i < ARRAY_LEN(POLICIES); i++) {
		if (strcmp(POLICIES[i], name) == 0) {
			*ret = (enum policy)i;
			return 0;
		}
	}
	return -EINVAL;
}

const struct group *group_find(const struct agent_config *config, const char *name)
{
	for (unsigned i = 0; i < config->n_groups; i++)
		if (strcmp(config->groups[i].name, name) == 0)
			return &config->groups[i];
	return NULL;
}

static bool has(const char *const *names, unsigned n, const char *name)
{
	for (unsigned i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

bool group_has_member(const struct group *g, const char *node)
{
	return has(g->members, g->n_members, node);
}

bool group_has_publisher(const struct group *g, const char *node)
{
	return has(g->publishers, g->n_publishers, node);
}

uint64_t group_term(const struct group *g, const char *node, uint64_t least)
{
	uint64_t rank = 0, turn;

	/* Ordered by name, since files may list them in different orders. */
	for (unsigned i = 0; i < g->n_publishers; i++)
		rank += strcmp(g->publishers[i], node) < 0;
	turn = (rank + 1) % g->n_publishers;
	return least + (turn + g->n_publishers - least % g->n_publishers) % g->n_publishers;
}

static int compare_names(const void *x, const void *y)
{
	const char *const *a = x, *const *b = y;

	return strcmp(*a, *b);
}

int group_fill_row(const struct group *g, const struct agent_config *config, bool *ret)
{
	size_t n = g->n_members + g->n_publishers;
	cleanup(freep) const char **names = calloc(n + 1, sizeof(*names));

	if (!names)
		return -ENOMEM;
	memcpy(names, g->members, g->n_members * sizeof(*names));
	memcpy(names + g->n_members, g->publishers, g->n_publishers * sizeof(*names));
	qsort(names, n, sizeof(*names), compare_names);
	for (unsigned i = 0; i <= config->n_peers; i++) {
		const char *name = i < config->n_peers ? config->peers[i] : config->name;

		ret[i] = bsearch(&name, names, n, sizeof(*names), compare_names);
	}
	return 0;
}

bool group_has_buffer(const struct group *g, const char *buffer)
{
	return fnmatch(g->buffers, buffer, 0) == 0;
}

const char *group_device(const struct agent_config *config, const char *name)
{
	const struct group *g = group_find(config, name);

	return g ? g->device : GROUP_DEVICE_DEFAULT;
}

const struct group *group_of_buffer(const struct agent_config *config, const char *buffer,
				    const char *name, char why[WHY_SIZE])
{
	const struct group *found = NULL;

	if (name) {
		found = group_find(config, name);
		if (!found)
			snprintf(why, WHY_SIZE, "there is no group '%s' in sync.conf", name);
		else if (!group_has_buffer(found, buffer))
			snprintf(why, WHY_SIZE, "'%s' is no buffer of the group '%s', which has %s",
				 buffer, name, found->buffers);
		return found && group_has_buffer(found, buffer) ? found : NULL;
	}
	for (unsigned i = 0; i < config->n_groups; i++) {
		if (!group_has_buffer(&config->groups[i], buffer))
			continue;
		if (found) {
			snprintf(why, WHY_SIZE,
				 "'%s' is in the groups '%s' and '%s'; name one with --group",
				 buffer, found->name, config->groups[i].name);
			return NULL;
		}
		found = &config->groups[i];
	}
	if (!found)
		snprintf(why, WHY_SIZE,
			 "no group of sync.conf has the buffer '%s'; 'buffers' of each says "
			 "which it has",
			 buffer);
	return found;
}
