/*
 * A setting
 *
 * One key of a file of settings: what it is called, what it takes, and where that belongs. Its type reads a
 * value, and says for a person what it would have taken.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct setting;
struct settings;

struct setting_type {
	size_t size; /* of a value; 0: setting::max */
	int (*parse)(const struct setting *setting, const char *text, void *ret); /* -EINVAL */
	void (*describe)(const struct setting *setting, char *buf, size_t size);
};

extern const struct setting_type setting_text; /* char[max] */
extern const struct setting_type setting_mode; /* octal, uint64_t like the next three */
extern const struct setting_type setting_bytes;
extern const struct setting_type setting_count;
extern const struct setting_type setting_seconds; /* ns; min and max are ms */
extern const struct setting_type setting_level; /* enum log_level */
extern const struct setting_type setting_group; /* gid_t; -1 for "" */
extern const struct setting_type setting_switch; /* bool, yes or no */

struct setting {
	const char *section;
	const char *name;
	const struct setting_type *type; /* NULL: `set` does all */
	void (*set)(struct settings *s, const struct setting *setting, const char *text);
	size_t offset; /* of the value in the program's configuration */
	uint64_t min;
	uint64_t max;
	const char *word; /* stands for UINT64_MAX; NULL: there is none */
	const char *fallback; /* the value where the file says nothing */
	const char *needed; /* an example, of a key that every file has to have; NULL: it may be left out */
	const char *help;
	bool repeats; /* may be given again in a section */
	bool reloads; /* a reload changes it, the others need a restart */
};

/* -EINVAL. Blocks where it has to find a group. */
int setting_parse(const struct setting *setting, const char *text, void *ret);

/* Whether two values are the same. */
bool setting_equals(const struct setting *setting, const void *a, const void *b);

void setting_copy(const struct setting *setting, void *to, const void *from);
