#include "server/state/buffer_names.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/wire.h"
#include "server/base/nss.h"
#include "server/base/settings.h"
#include "server/state/access.h"

#define RULES_MAX 1024
#define BLANKS " \t"

/* A user, a group, or all users. */
struct grantee {
	enum {
		GRANTEE_USER,
		GRANTEE_GROUP,
		GRANTEE_ALL
	} kind;
	uint32_t id;
};

struct name_rule {
	char *pattern;
	char *list;
	size_t prefix; /* bytes before the '*'; SIZE_MAX: a whole name */
	unsigned line;
	struct grantee *grantees;
	unsigned n_grantees;
};

struct buffer_names {
	struct name_rule *rules;
	unsigned n_rules;
};

static bool name_char_ok(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* The first `n` bytes of a name, which is valid so far. */
static bool name_start_ok(const char *name, size_t n)
{
	if (n > 0 && !name_char_ok(name[0]))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!name_char_ok(name[i]) && !strchr("._/:-", name[i]))
			return false;
	return true;
}

bool buffer_name_ok(const char *name)
{
	return name[0] && name_start_ok(name, strlen(name));
}

static void name_rule_deinit(struct name_rule *r)
{
	free(r->pattern);
	free(r->list);
	free(r->grantees);
}

struct buffer_names *buffer_names_free(struct buffer_names *names)
{
	if (!names)
		return NULL;
	for (unsigned i = 0; i < names->n_rules; i++)
		name_rule_deinit(&names->rules[i]);
	free(names->rules);
	free(names);
	return NULL;
}

/* --- A line of the file. False: the error was reported. --- */

static bool parse_pattern(struct name_rule *r, struct settings *s, const char *pattern)
{
	size_t length = strlen(pattern);
	bool is_prefix = length > 0 && pattern[length - 1] == '*';
	size_t n = is_prefix ? length - 1 : length;

	if (length == 0 || !name_start_ok(pattern, n)) {
		settings_report(
			s,
			"'%s' matches no name of a buffer: a pattern is a name (letters, digits "
			"and . _ / : -), or the start of names and one '*' at its end: llama/*",
			pattern);
		return false;
	}
	if (length >= WIRE_NAME_SIZE) {
		settings_report(s, "'%s' is too long: names of buffers have at most %d bytes",
				pattern, WIRE_NAME_SIZE - 1);
		return false;
	}
	r->prefix = is_prefix ? n : SIZE_MAX;
	return true;
}

static bool parse_grantee(struct settings *s, const char *word, struct grantee *ret)
{
	uint32_t id = 0;

	if (!strcmp(word, "*"))
		ret->kind = GRANTEE_ALL;
	else if (word[0] == '@')
		ret->kind = GRANTEE_GROUP;
	else
		ret->kind = GRANTEE_USER;
	if (ret->kind == GRANTEE_GROUP && nss_find_group(word + 1, &id) < 0) {
		settings_report(
			s,
			"there is no group '%s'; give the name of one behind the '@', or a number",
			word + 1);
		return false;
	}
	if (ret->kind == GRANTEE_USER && nss_find_user(word, &id) < 0) {
		settings_report(
			s,
			"there is no user '%s'; give users, @groups (names or numbers), or * for all "
			"users, with blanks between them",
			word);
		return false;
	}
	ret->id = id;
	return true;
}

static bool parse_list(struct name_rule *r, struct settings *s, const char *list)
{
	cleanup(freep) char *words = strdup(list);
	char *rest = words, *word;

	r->grantees = calloc(strlen(list) / 2 + 1, sizeof(*r->grantees));
	if (!words || !r->grantees) {
		settings_report(s, "out of memory");
		return false;
	}
	while ((word = strsep(&rest, BLANKS)))
		if (*word && !parse_grantee(s, word, &r->grantees[r->n_grantees++]))
			return false;
	if (r->n_grantees == 0)
		settings_report(
			s,
			"'%s' has no users; give users, @groups (names or numbers), * for all users, or "
			"root for administrators alone",
			r->pattern);
	return r->n_grantees > 0;
}

static bool is_new(const struct buffer_names *names, struct settings *s, const char *pattern)
{
	for (unsigned i = 0; names && i < names->n_rules; i++)
		if (!strcmp(names->rules[i].pattern, pattern)) {
			settings_report(s, "'%s' was given in line %u; give it once", pattern,
					names->rules[i].line);
			return false;
		}
	if (names && names->n_rules == RULES_MAX) {
		settings_report(s, "more than %d patterns of names", RULES_MAX);
		return false;
	}
	return true;
}

/* Takes the rule. -ENOMEM: it is the caller's. */
static int buffer_names_append(struct buffer_names **names, const struct name_rule *rule)
{
	struct buffer_names *n = *names ? *names : calloc(1, sizeof(*n));
	struct name_rule *more;

	if (!n)
		return -ENOMEM;
	*names = n;
	more = reallocarray(n->rules, n->n_rules + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	n->rules = more;
	n->rules[n->n_rules++] = *rule;
	return 0;
}

void buffer_names_add(struct buffer_names **names, struct settings *s, const char *pattern,
		      const char *list)
{
	cleanup(name_rule_deinit) struct name_rule rule = {.pattern = strdup(pattern),
							   .list = strdup(list),
							   .line = s->line};

	if (!rule.pattern || !rule.list) {
		settings_report(s, "out of memory");
		return;
	}
	if (!parse_pattern(&rule, s, pattern) || !is_new(*names, s, pattern) ||
	    !parse_list(&rule, s, list))
		return;
	if (buffer_names_append(names, &rule) < 0)
		settings_report(s, "out of memory");
	else
		rule = (struct name_rule){0};
}

/* --- Use --- */

static bool rule_matches(const struct name_rule *r, const char *name)
{
	return r->prefix == SIZE_MAX ? !strcmp(r->pattern, name)
				     : !strncmp(r->pattern, name, r->prefix);
}

const struct name_rule *buffer_names_find(const struct buffer_names *names, const char *name)
{
	const struct name_rule *best = NULL;

	for (unsigned i = 0; names && i < names->n_rules; i++) {
		const struct name_rule *r = &names->rules[i];

		if ((!best || r->prefix > best->prefix) && rule_matches(r, name))
			best = r;
	}
	return best;
}

bool name_rule_allows(const struct name_rule *rule, const struct channel_peer *peer)
{
	if (access_is_admin(peer))
		return true;
	for (unsigned i = 0; i < rule->n_grantees; i++) {
		const struct grantee *g = &rule->grantees[i];

		if (g->kind == GRANTEE_ALL || (g->kind == GRANTEE_USER && g->id == peer->uid) ||
		    (g->kind == GRANTEE_GROUP && access_in_group(peer, g->id)))
			return true;
	}
	return false;
}

const char *name_rule_pattern(const struct name_rule *rule)
{
	return rule->pattern;
}

const char *name_rule_list(const struct name_rule *rule)
{
	return rule->list;
}
