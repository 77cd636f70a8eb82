/*
 * Names of buffers and jobs
 *
 * The form of a name, and the reserved names: section [names] of weightd.conf has patterns, each with the users and
 * groups that may create buffers and jobs of these names. The most specific pattern decides: a whole name, else the
 * longest prefix. What exists is never touched.
 */
#pragma once

#include <stdbool.h>

struct channel_peer;
struct name_rule;
struct buffer_names;
struct settings;

/* 1 to 127 of [A-Za-z0-9._/:-], the first a letter or a digit. */
bool buffer_name_ok(const char *name);

/*
 * Adds the line "pattern = list" of the file: a name, or the start of names and a '*'; users, @groups, or '*' for all
 * users. *names may be NULL before. Errors are reported with the line. May block, since users are looked up by name.
 */
void buffer_names_add(struct buffer_names **names, struct settings *s, const char *pattern,
		      const char *list);

struct buffer_names *buffer_names_free(struct buffer_names *names);

/* The rule for the name; NULL: none, and every user may create it. */
const struct name_rule *buffer_names_find(const struct buffer_names *names, const char *name);

/* True for administrators too. */
bool name_rule_allows(const struct name_rule *rule, const struct channel_peer *peer);

/* Pattern and list as the file has them. */
const char *name_rule_pattern(const struct name_rule *rule);
const char *name_rule_list(const struct name_rule *rule);
