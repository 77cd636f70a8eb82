#include "libclient/load/folder/pipeline.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/image/file.h"
#include "libclient/image/file_path.h"
#include "libclient/load/folder/companion_name.h"

#define JSON_SIZE_MAX (16 * MIB)
#define NAMES_MAX 200 /* bytes of a list in a sentence */

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

static char *path_in(const char *directory, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the list of files");
}

/* NULL: the file is missing, too large or not JSON. */
static json_t *read_json(const char *directory, const char *name)
{
	cleanup(freep) char *path = path_in(directory, name);
	cleanup(file_deinit) struct file f = FILE_INIT;
	struct sentence ignored;

	if (!path || file_open(path, &f, &ignored) < 0 || f.is_directory ||
	    f.identity.size > JSON_SIZE_MAX)
		return NULL;
	return json_loadfd(f.fd, 0, NULL);
}

/* True if the folder has weights of any format. */
static bool has_weights(const char *directory, const char *component)
{
	cleanup(freep) char *path = path_in(directory, component);
	DIR *list = path ? opendir(path) : NULL;
	const struct dirent *entry;
	bool found = false;

	while (list && !found && (entry = readdir(list)))
		found = entry->d_name[0] != '.' && companion_is_weights(entry->d_name);
	if (list)
		(void)closedir(list);
	return found;
}

/* --- sentence-transformers: the transformer comes first, and other modules are small ------------- */

static int find_module(const char *directory, const json_t *modules, char **ret, struct sentence *s)
{
	struct sentence ignored;
	json_t *module;
	size_t i;

	json_array_foreach(modules, i, module)
	{
		const char *path = json_string_value(json_object_get(module, "path"));

		if (!path || file_path_check(path, strlen(path), &ignored) < 0 ||
		    !has_weights(directory, path))
			continue;
		*ret = strdup(path);
		return *ret ? 1 : out_of_memory(s);
	}
	return 0;
}

/* --- diffusers ---------------------------------------------------------------------------------- */

struct components {
	char names[NAMES_MAX];
	size_t n, n_named;
	char *first;
};

static int components_add(struct components *c, const char *name, struct sentence *s)
{
	size_t used = strlen(c->names);
	int n;

	if (c->n++ == 0) {
		c->first = strdup(name);
		if (!c->first)
			return out_of_memory(s);
	}
	if (c->n_named + 1 < c->n)
		return 0;
	n = snprintf(c->names + used, NAMES_MAX - used, "%s%s", used ? ", " : "", QUOTE(name));
	if ((size_t)n < NAMES_MAX - used)
		c->n_named++;
	else
		c->names[used] = '\0';
	return 0;
}

static int refuse_components(const char *directory, const struct components *c, struct sentence *s)
{
	char more[40] = "";

	if (c->n > c->n_named)
		(void)snprintf(more, sizeof(more), " and %zu more", c->n - c->n_named);
	return sentence_set(s, -EBADMSG,
			    "%s is a pipeline, and its components %s%s have weights each, but a "
			    "version is one file: load each component into a buffer of its own "
			    "(weightctl load NAME/%.40s DIR/%.40s)",
			    QUOTE_PATH(directory), c->names, more, c->first, c->first);
}

static int find_component(const char *directory, char **ret, struct sentence *s)
{
	struct components c = {0};
	struct dirent **entries = NULL;
	int n = scandir(directory, &entries, NULL, alphasort), r = 0;

	for (int i = 0; i < n; i++) {
		const char *name = entries[i]->d_name;

		if (r == 0 && name[0] != '.' && has_weights(directory, name))
			r = components_add(&c, name, s);
		free(entries[i]);
	}
	free(entries);
	if (r == 0 && c.n > 1)
		r = refuse_components(directory, &c, s);
	if (r == 0 && c.n == 1) {
		*ret = c.first;
		return 1;
	}
	free(c.first);
	return r;
}

int pipeline_find(const char *directory, char **ret_component, struct sentence *s)
{
	cleanup(json_decrefp) json_t *index = read_json(directory, "model_index.json");
	cleanup(json_decrefp) json_t *modules = read_json(directory, "modules.json");

	if (index)
		return find_component(directory, ret_component, s);
	return modules ? find_module(directory, modules, ret_component, s) : 0;
}
