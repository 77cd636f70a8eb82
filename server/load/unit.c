#include "server/load/unit.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/base/log.h"
#include "server/load/model.h"

#define TARGET "weightd-models.target"
#define TEMPLATE "weightd-load@"

/* Characters that the name of a unit has without an escape. */
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.-"

/* A quoted word without specifiers. */
static void put_word(FILE *file, const char *text)
{
	(void)fputc('"', file);
	for (; *text; text++) {
		if (strchr("\"\\%", *text))
			(void)fputc(*text == '%' ? '%' : '\\', file);
		(void)fputc(*text, file);
	}
	(void)fputc('"', file);
}

static void put_drop_in(FILE *file, const char *path, const struct model *m)
{
	(void)fprintf(file, "# Written by weightd-load-generator.\n[Unit]\nSourcePath=%s\n", path);
	if (!m)
		return;
	/* For an unknown user systemd logs the description, and runs nothing of ours. */
	(void)fprintf(file,
		      "Description=Model weights, loaded as user '%s' (%s:%u)\n"
		      "RequiresMountsFor=",
		      m->user, path, m->user_line);
	put_word(file, m->path);
	(void)fprintf(file, "\n\n[Service]\nDynamicUser=no\nUser=%s\n", m->user);
}

/* -errno; the folder may exist. */
static int make_folder(const char *path)
{
	return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int write_drop_in(const char *unit, const char *path, const struct model *m)
{
	char name[PATH_MAX];
	FILE *file;
	int r;

	(void)snprintf(name, sizeof(name), "%s.d", unit);
	r = make_folder(name);
	if (r < 0)
		return r;
	(void)snprintf(name, sizeof(name), "%s.d/model.conf", unit);
	file = fopen(name, "we");
	if (!file)
		return -errno;
	put_drop_in(file, path, m);
	return fclose(file) != 0 ? -errno : 0;
}

/* Makes `by` want a unit. systemd reads the names of links, and never follows these. */
static int want(const char *by, const char *unit, const char *file)
{
	char name[PATH_MAX], to[PATH_MAX];
	int r;

	(void)snprintf(name, sizeof(name), "%s.wants", by);
	r = make_folder(name);
	if (r < 0)
		return r;
	(void)snprintf(name, sizeof(name), "%s.wants/%s", by, unit);
	(void)snprintf(to, sizeof(to), "../%s", file);
	return symlink(to, name) < 0 && errno != EEXIST ? -errno : 0;
}

static int write_unit(const char *unit, const char *path, const struct model *m)
{
	int r = write_drop_in(unit, path, m);

	if (r == 0)
		r = want(TARGET, unit, TEMPLATE ".service");
	return r == 0 ? want("multi-user.target", TARGET, TARGET) : r;
}

int unit_generate(const char *path)
{
	char instance[NAME_MAX + 1], unit[NAME_MAX + sizeof(TEMPLATE ".service")];
	struct model m;
	int r;

	model_name(path, instance);
	if (!*instance || strspn(instance, LETTERS) < strlen(instance)) {
		log_error("%s is ignored: use letters, digits and :_.- for the name of the file",
			  path);
		return 0;
	}
	(void)snprintf(unit, sizeof(unit), TEMPLATE "%s.service", instance);
	r = write_unit(unit, path, model_read(path, &m) == 0 ? &m : NULL);
	if (r < 0)
		log_error("cannot write the unit of %s: %s", path, strerror(-r));
	return r;
}
