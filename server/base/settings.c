#include "server/base/settings.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/base/suggestion.h"
#include "server/base/ini.h"
#include "server/base/log.h"

#define FILE_SIZE_MAX (1 * MIB)
#define ERRORS_MAX 20
#define NAMES_SIZE 256 /* all keys of a section, for an error */

void settings_report_at(struct settings *s, unsigned line, const char *fmt, ...)
{
	char text[700];
	va_list args;

	if (++s->n_errors > ERRORS_MAX)
		return;
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (line > 0)
		log_error("%s:%u: %s", s->path, line, text);
	else
		log_error("%s: %s", s->path, text);
}

/* --- Sections --- */

/* The names of the sections, each once. Returns how many. */
static unsigned list_sections(const struct settings_form *form, const char **ret)
{
	unsigned n = 0;

	for (unsigned i = 0; i < form->n_keys; i++) /* those of a section stand together */
		if (n == 0 || strcmp(ret[n - 1], form->keys[i].section) != 0)
			ret[n++] = form->keys[i].section;
	if (form->open_section)
		ret[n++] = form->open_section;
	return n;
}

/* Lines after this belong to a refused section, until one is opened: one error for all of it. */
static void leave_section(struct settings *s)
{
	s->in_section = true;
	s->section = NULL;
	s->seen = s->lines;
}

static void settings_on_section(struct settings *s, const char *name)
{
	const char *names[SETTINGS_KEYS_MAX + 1], *nearest;
	unsigned n;

	leave_section(s);
	if (s->form->open && s->form->open(s, name))
		return;
	n = list_sections(s->form, names);
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(names[i], name)) {
			s->section = names[i];
			return;
		}
	nearest = suggestion_find(name, strcspn(name, " :"), names, n);
	settings_report(s, "there is no section [%s]; there are %s%s%s%s", name, s->form->sections,
			nearest ? ". Is [" : "", nearest ? nearest : "", nearest ? "] meant?" : "");
}

/* --- Keys --- */

static const struct setting *find_key(const struct settings *s, const char *name)
{
	for (unsigned i = 0; i < s->form->n_keys; i++) {
		const struct setting *key = &s->form->keys[i];

		if (!strcmp(key->section, s->section) && !strcmp(key->name, name))
			return key;
	}
	return NULL;
}

static void report_unknown(struct settings *s, const char *name)
{
	const char *names[SETTINGS_KEYS_MAX], *nearest;
	char all[NAMES_SIZE] = "";
	unsigned n_names = 0;
	size_t n = 0;

	for (unsigned i = 0; i < s->form->n_keys; i++) {
		const struct setting *key = &s->form->keys[i];

		if (strcmp(key->section, s->section) != 0 || n >= sizeof(all))
			continue;
		names[n_names++] = key->name;
		n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", n ? ", " : "", key->name);
	}
	nearest = suggestion_find(name, strcspn(name, " :"), names, n_names);
	settings_report(s, "[%s] has no key '%s'; it has %s%s%s%s", s->section, name, all,
			nearest ? ". Is '" : "", nearest ? nearest : "", nearest ? "' meant?" : "");
}

static void settings_set(struct settings *s, const struct setting *key, const char *value)
{
	void *to = s->form->place ? s->form->place(s, key) : (char *)s->values + key->offset;
	char takes[128];

	if (setting_parse(key, value, to) == 0)
		return;
	key->type->describe(key, takes, sizeof(takes));
	settings_report(s, "'%s'%s%s%s does not take '%s'; it takes %s", key->name,
			key->help ? " (" : "", key->help ? key->help : "", key->help ? ")" : "",
			value, takes);
}

static void settings_on_entry(struct settings *s, const char *name, const char *value)
{
	const struct setting *key = s->section ? find_key(s, name) : NULL;
	unsigned *seen = key ? &s->seen[key - s->form->keys] : NULL;

	if (!s->in_section) {
		settings_report(s, "'%s' comes before the first [section]", name);
	} else if (s->section && s->section == s->form->open_section) {
		s->form->entry(s, name, value);
	} else if (!key) {
		if (s->section)
			report_unknown(s, name);
	} else if (*seen && !key->repeats) {
		settings_report(s, "'%s' was given in line %u; give it once", name, *seen);
	} else {
		*seen = s->line;
		if (key->type)
			settings_set(s, key, value);
		else
			key->set(s, key, value);
	}
}

/* --- Lines --- */

static bool is_printable(const char *s)
{
	for (; *s; s++)
		if (iscntrl((unsigned char)*s) && *s != '\t')
			return false;
	return true;
}

static int settings_on_line(struct settings *s, const char *text)
{
	struct ini_line line;
	int r;

	if (!is_printable(text)) {
		settings_report(s, "a control character is in the way");
		return 0;
	}
	r = ini_line_read(text, &line);
	if (r == -ENOSYS) {
		log_error("%s cannot be read: this %s was built without inih (libinih-dev)",
			  s->path, s->form->program);
		return r;
	}
	if (r < 0 && text[strspn(text, " \t")] == '[')
		leave_section(s);
	if (r == -E2BIG)
		settings_report(s,
				"too long: a line has at most %d bytes, the name of a section %d%s",
				INI_LINE_MAX, INI_SECTION_MAX, s->form->splits);
	else if (r < 0)
		settings_report(s, "this is no [section], no 'key = value' and no '# comment'");
	else if (line.kind == INI_SECTION)
		settings_on_section(s, line.name);
	else if (line.kind == INI_ENTRY)
		settings_on_entry(s, line.name, line.value);
	return 0;
}

static int parse_lines(struct settings *s, char *text)
{
	char *line;
	int r;

	while ((line = strsep(&text, "\n"))) {
		size_t length = strlen(line);

		s->line++;
		if (length > 0 && line[length - 1] == '\r')
			line[length - 1] = '\0';
		r = settings_on_line(s, line);
		if (r < 0)
			return r;
	}
	return 0;
}

static void check_needed(struct settings *s)
{
	for (unsigned i = 0; i < s->form->n_keys; i++) {
		const struct setting *key = &s->form->keys[i];

		if (key->needed && !s->lines[i])
			settings_report_at(s, 0, "[%s] has no '%s'; write, say: %s = %s",
					   key->section, key->name, key->name, key->needed);
	}
}

int settings_parse(struct settings *s, const char *text, size_t size)
{
	cleanup(freep) char *copy = strndup(text, size);
	int r;

	assert(s->form->n_keys <= SETTINGS_KEYS_MAX);
	if (!copy) {
		log_error("%s: out of memory", s->path);
		return -ENOMEM;
	}
	if (strlen(copy) < size) {
		log_error("%s: a zero byte is in the way; this is no text", s->path);
		return -EINVAL;
	}
	r = size > 0 ? parse_lines(s, copy) : 0;
	if (r < 0)
		return r;
	check_needed(s);
	if (s->form->check)
		s->form->check(s);
	if (s->n_errors > ERRORS_MAX)
		log_error("%s: %u more errors are not shown", s->path, s->n_errors - ERRORS_MAX);
	return s->n_errors > 0 ? -EINVAL : 0;
}

/* --- The file --- */

/* Why it is not read, or NULL. `buf` is for what names the program. */
static const char *settings_distrust(const struct stat *st, const char *program, char *buf,
				     size_t size)
{
	if (!S_ISREG(st->st_mode))
		return "it is no file";
	if (st->st_uid != 0 && st->st_uid != geteuid()) {
		(void)snprintf(buf, size,
			       "it belongs neither to root nor to the user of %s (chown root)",
			       program);
		return buf;
	}
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return "others than its owner may write it (chmod go-w)";
	if ((uint64_t)st->st_size > FILE_SIZE_MAX)
		return "it is longer than 1 MiB";
	return NULL;
}

int settings_read(const char *program, const char *path, char **ret, uint64_t *ret_size)
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	cleanup(freep) char *text = NULL;
	char buf[128];
	const char *why;
	struct stat st;
	int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;

	if (r == 0 && (why = settings_distrust(&st, program, buf, sizeof(buf)))) {
		log_error("%s is not read: %s", path, why);
		return -EINVAL;
	}
	if (r == 0) {
		text = malloc((size_t)st.st_size + 1); /* malloc(0) may be NULL */
		r = text ? fd_read_all(fd, text, (uint64_t)st.st_size, ret_size) : -ENOMEM;
	}
	if (r == 0)
		*ret = take_ptr(text);
	else if (r != -ENOENT)
		log_error("cannot read %s: %s", path, strerror(-r));
	return r;
}
