#include "server/load/model.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/base/settings.h"

static struct model *model_of(struct settings *s)
{
	return s->values;
}

static void set_path(struct settings *s, const struct setting *key, const char *value)
{
	if (value[0] == '/')
		(void)snprintf(model_of(s)->path, sizeof(model_of(s)->path), "%s", value);
	else
		settings_report(s, "'%s' does not take '%s'; it takes a path that begins with /",
				key->name, value);
}

/* The manager looks the user up: no directory of users can be asked when generators run. */
static void set_user(struct settings *s, const struct setting *key, const char *value)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

	if (value[0] && value[0] != '-' && strspn(value, letters) == strlen(value)) {
		(void)snprintf(model_of(s)->user, sizeof(model_of(s)->user), "%s", value);
		model_of(s)->user_line = s->line;
	} else {
		settings_report(s, "'%s' does not take '%s'; it takes the name of a user, or a uid",
				key->name, value);
	}
}

#define KEY(n, ...)                                                                                \
	{                                                                                          \
		.section = "model", .name = n, __VA_ARGS__                                         \
	}
#define TEXT(n, member)                                                                            \
	KEY(n, .type = &setting_text, .offset = offsetof(struct model, member),                    \
	    .max = sizeof(((struct model *)0)->member))

static const struct setting keys[] = {
	KEY("path", .set = set_path, .needed = "/srv/models/llama-8b"),
	KEY("user", .set = set_user, .needed = "alice"),
	TEXT("name", name),
	TEXT("device", device),
	TEXT("options", options),
};

static const struct settings_form form = {
	.program = "weightd-load",
	.keys = keys,
	.n_keys = ARRAY_LEN(keys),
	.sections = "only [model]",
	.splits = "",
};

void model_name(const char *path, char ret[NAME_MAX + 1])
{
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	size_t n = strlen(file), end = strlen(".conf");

	if (n >= end && !strcmp(file + n - end, ".conf"))
		n -= end;
	(void)snprintf(ret, NAME_MAX + 1, "%.*s", (int)n, file);
}

int model_parse(const char *path, const char *text, size_t size, struct model *ret)
{
	struct model m = {.device = "host"};
	struct settings s = {.form = &form, .path = path, .values = &m};
	int r;

	model_name(path, m.name);
	r = settings_parse(&s, text, size);
	if (r == 0)
		*ret = m;
	return r;
}

int model_read(const char *path, struct model *ret)
{
	cleanup(freep) char *text = NULL;
	uint64_t size;
	int r = settings_read(form.program, path, &text, &size);

	if (r == -ENOENT)
		log_error("cannot read %s: it does not exist", path);
	return r < 0 ? r : model_parse(path, text, size, ret);
}
