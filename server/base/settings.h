/*
 * Files of settings
 *
 * The common part of weightd.conf and sync.conf: lines, sections and keys, the owner that such a
 * file must have, and the errors. A file is accepted as a whole or not at all: its errors are
 * logged with their lines, and the way out.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "server/base/setting.h"

#define SETTINGS_KEYS_MAX 32

struct settings_form {
	const char *program;
	const struct setting *keys;
	unsigned n_keys;
	const char *sections; /* all that there are, for a sentence */
	const char *splits; /* appended to the error of a line that is too long; "" */

	/* [KIND NAME]: sets `section` and `seen`, or reports. False: it is of no such kind. NULL: there are none. */
	bool (*open)(struct settings *s, const char *name);

	/* A section with keys of the file's own choice: each of its lines goes to `entry`. NULL: there is none. */
	const char *open_section;
	void (*entry)(struct settings *s, const char *name, const char *value);

	/* Returns the place of a section's value. NULL: it is in `values`, at the key's offset. */
	void *(*place)(struct settings *s, const struct setting *key);

	/* Checks what must fit together, after all lines were read. NULL: nothing. */
	void (*check)(struct settings *s);
};

/* A file while it is read: a part of the program's own, which has what `form` needs. */
struct settings {
	const struct settings_form *form;
	const char *path;
	void *values; /* the program's configuration, with its defaults */

	unsigned line;
	unsigned n_errors;
	bool in_section; /* behind the first of them */
	const char *section; /* the section of the next keys; NULL: it was refused */
	unsigned *seen; /* lines of the keys in this section; 0: not given. `lines`, unless it is one of several of a kind */
	unsigned lines[SETTINGS_KEYS_MAX];
};

/* 0; -EINVAL, -ENOSYS (there is no inih), -ENOMEM, and all was logged. */
int settings_parse(struct settings *s, const char *text, size_t size);

/*
 * The text of a file that must be writable by root and our user only: its writers decide what we
 * believe. -ENOENT is for the caller to log; all others were logged.
 */
int settings_read(const char *program, const char *path, char **ret, uint64_t *ret_size);

/* Line 0 stands for the whole file. */
__attribute__((format(printf, 3, 4))) void settings_report_at(struct settings *s, unsigned line,
							      const char *fmt, ...);

#define settings_report(s, ...) settings_report_at(s, (s)->line, __VA_ARGS__)
