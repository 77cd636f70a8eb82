#include "libclient/weightctl/control/sync_prefix.h"

#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/output/cli_error.h"

void sync_prefix_init(struct sync_prefix *n, const char *prefix)
{
	*n = (struct sync_prefix){.prefix = prefix, .all = json_object()};
	if (!n->all)
		cli_out_of_memory();
}

void sync_prefix_deinit(struct sync_prefix *n)
{
	json_decref(n->all);
}

bool sync_prefix_add(struct sync_prefix *n, const char *name)
{
	bool fits = !strncmp(name, n->prefix, strlen(n->prefix));

	if (json_object_set_new(n->all, name, json_boolean(fits)) < 0)
		cli_out_of_memory();
	return fits;
}

static void write_text(const struct sync_prefix *n, bool all, char ret[SYNC_PREFIX_TEXT_MAX])
{
	size_t n_named = 0, n_more = 0, at = 0;
	const char *name;
	json_t *fits;

	ret[0] = '\0';
	json_object_foreach(n->all, name, fits)
	{
		if (!all && !json_is_true(fits))
			continue;
		if (n_named == SYNC_PREFIX_SHOWN_MAX || strlen(name) > SYNC_PREFIX_NAME_MAX)
			n_more++;
		else
			at += (size_t)snprintf(ret + at, SYNC_PREFIX_TEXT_MAX - at, "%s%s",
					       n_named++ ? ", " : "", name);
	}
	if (n_more)
		(void)snprintf(ret + at, SYNC_PREFIX_TEXT_MAX - at, "%s%zu more",
			       n_named ? " and " : "", n_more);
}

int sync_prefix_find(const struct sync_prefix *n, const char **ret)
{
	const char *name, *found = NULL;
	char text[SYNC_PREFIX_TEXT_MAX];
	size_t n_found = 0;
	json_t *fits;

	json_object_foreach(n->all, name, fits)
	{
		if (!json_is_true(fits))
			continue;
		found = name;
		n_found++;
	}
	if (json_object_get(n->all, n->prefix)) {
		*ret = n->prefix;
		return 0;
	}
	if (n_found > 1) {
		write_text(n, false, text);
		return cli_error("'%s' begins the names of %zu syncs: %s", n->prefix, n_found, text);
	}
	*ret = found;
	return 0;
}

void sync_prefix_text(const struct sync_prefix *n, char ret[SYNC_PREFIX_TEXT_MAX])
{
	write_text(n, true, ret);
}
