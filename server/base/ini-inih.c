/*
 * Lines by inih
 *
 * inih receives the file line by line. Given a whole file it reports the number of the first
 * error's line only, skips a section without entries silently, cuts long lines and ignores text
 * behind a section's name; and how much of that can be configured differs between distributions.
 */
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "server/base/ini.h"

#define PROBE "\n*=" /* an entry behind a section's line, since inih reports entries alone */

static int ini_on_entry(void *user, const char *section, const char *name, const char *value)
{
	struct ini_line *line = user;

	if (!name || !value)
		return 1; /* reached in other builds of inih only */
	if (line->kind == INI_SECTION) {
		(void)snprintf(line->name, sizeof(line->name), "%s", section);
		return 1;
	}
	line->kind = INI_ENTRY;
	(void)snprintf(line->name, sizeof(line->name), "%s", name);
	(void)snprintf(line->value, sizeof(line->value), "%s", value);
	return 1;
}

/* inih ends a name at a ':' too, which names of buffers may have. Where a '=' follows, it alone ends the name. */
static void join_name(const char *text, struct ini_line *line)
{
	const char *colon = strchr(text, ':'), *end = strchr(text, '=');
	const char *value = strchr(line->value, '=');
	size_t length;

	if (!colon || !end || !value || colon > end)
		return;
	for (length = (size_t)(end - text); length > 0 && strchr(" \t", text[length - 1]);)
		length--;
	memcpy(line->name, text, length);
	line->name[length] = '\0';
	value += 1 + strspn(value + 1, " \t");
	memmove(line->value, value, strlen(value) + 1);
}

/* Behind [name] there is room for a comment. */
static int check_section(const char *line, const struct ini_line *parsed)
{
	const char *behind = strchr(line, ']');

	if (!behind)
		return -EBADMSG;
	behind += 1 + strspn(behind + 1, " \t");
	if (*behind && !strchr(";#", *behind))
		return -EBADMSG;
	return strlen(parsed->name) > INI_SECTION_MAX ? -E2BIG : 0;
}

int ini_line_read(const char *line, struct ini_line *ret)
{
	struct ini_line parsed = {.kind = INI_NOTHING};
	char text[INI_LINE_MAX + sizeof(PROBE)];
	int r;

	line += strspn(line, " \t"); /* or inih takes the line for the rest of the one before */
	if (!*line || strchr(";#", *line)) {
		*ret = parsed;
		return 0;
	}
	if (strlen(line) > INI_LINE_MAX)
		return -E2BIG;
	parsed.kind = *line == '[' ? INI_SECTION : INI_ENTRY;
	(void)snprintf(text, sizeof(text), "%s%s", line, *line == '[' ? PROBE : "");
	if (ini_parse_string(text, ini_on_entry, &parsed) != 0)
		return -EBADMSG;
	r = parsed.kind == INI_SECTION ? check_section(line, &parsed) : 0;
	if (parsed.kind == INI_ENTRY)
		join_name(line, &parsed);
	if (r == 0)
		*ret = parsed;
	return r;
}
