#include "libclient/weightctl/control/names.h"

#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/output/cli_error.h"

void names_init(struct names *n, const char *prefix)
{
	*n = (struct names){.prefix = prefix, .all = json_object()};
	if (!n->all)
		cli_out_of_memory();
}

void names_deinit(struct names *n)
{
	json_decref(n->all);
}

bool names_add(struct names *n, const char *name)
{
	bool fits = !strncmp(name, n->prefix, strlen(n->prefix));

	if (json_object_set_new(n->all, name, json_boolean(fits)) < 0)
		cli_out_of_memory();
	return fits;
}

static void write_text(const struct names *n, bool all, char ret[NAMES_TEXT_MAX])
{
	size_t n_named = 0, n_more = 0, at = 0;
	const char *name;
	json_t *fits;

	ret[0] = '\0';
	json_object_foreach(n->all, name, fits)
	{
		if (!all && !json_is_true(fits))
			continue;
		if (n_named == NAMES_SHOWN_MAX || strlen(name) > NAME_SHOWN_MAX)
			n_more++;
		else
			at += (size_t)snprintf(ret + at, NAMES_TEXT_MAX - at, "%s%s",
					       n_named++ ? ", " : "", name);
	}
	if (n_more)
		(void)snprintf(ret + at, NAMES_TEXT_MAX - at, "%s%zu more", n_named ? " and " : "",
			       n_more);
}

int names_find(const struct names *n, const char **ret)
{
	const char *name, *found = NULL;
	char text[NAMES_TEXT_MAX];
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

void names_text(const struct names *n, char ret[NAMES_TEXT_MAX])
{
	write_text(n, true, ret);
}
