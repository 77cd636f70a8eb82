/*
 * A setting
 *
 * One key in a file of settings: its name, the values it takes, and where they are stored. Its type
 * parses a value, and describes the accepted ones in errors.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct setting;
struct settings;

struct setting_type {
	size_t size; /* size of a value; 0: setting::max */
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
	size_t offset; /* offset of the value in the program's configuration */
	uint64_t min;
	uint64_t max;
	const char *word; /* stands for UINT64_MAX; NULL: there is none */
	const char *other_word; /* stands for UINT64_MAX - 1; NULL: there is none */
	const char *fallback; /* the default */
	const char *needed; /* an example, of a key that every file has to have; NULL: it may be left out */
	const char *help;
	bool repeats; /* may be given again in a section */
	bool reloads; /* a reload changes it, the others need a restart */
};

/* -EINVAL. Blocks where it has to find a group. */
int setting_parse(const struct setting *setting, const char *text, void *ret);

/* True when both values are the same. */
bool setting_equals(const struct setting *setting, const void *a, const void *b);

void setting_copy(const struct setting *setting, void *to, const void *from);
