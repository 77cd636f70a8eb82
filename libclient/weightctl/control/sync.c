/*
 * Shared parts of the sync verbs.
 */
#include "libclient/weightctl/control/sync.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"

struct sync_version sync_version_of(const json_t *o)
{
	return (struct sync_version){
		.term = json_field_number(o, "term", 0),
		.number = json_field_number(o, "number", 0),
	};
}

const char *sync_version_text(struct sync_version v)
{
	static char text[48];

	if (!v.term && !v.number)
		return NULL;
	(void)snprintf(text, sizeof(text), "%" PRIu64 ".%" PRIu64, v.term, v.number);
	return text;
}

struct sync_share sync_share_of(const json_t *o)
{
	struct sync_share s = {
		.size = json_field_number(o, "size", UINT64_MAX),
		.changed = json_field_number(o, "changed", UINT64_MAX),
		.patch = json_field_number(o, "patch", UINT64_MAX),
		.differ = json_field_number(o, "differ", UINT64_MAX),
	};

	s.travelled[0] = s.patch != UINT64_MAX ? s.patch : s.changed;
	s.differed[0] = s.differ;
	s.travelled[1] = s.differed[1] = s.size;
	return s;
}

/* The one id among `rows` that begins with `arg`. */
static int find_among(const json_t *rows, const char *arg, char ret[SYNC_ID_MAX])
{
	const char *found = NULL;
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *id = json_field_text(row, "sync");

		if (!id || strlen(id) != SYNC_ID_MAX - 1 || strncmp(id, arg, strlen(arg)) != 0)
			continue;
		if (found && strcmp(found, id) != 0)
			return cli_error("several syncs begin with '%s', such as %s and %s; add "
					 "more digits",
					 arg, found, id);
		found = id;
	}
	if (!found)
		return cli_error("no sync begins with '%s'; 'weightctl sync status' lists those under "
				 "way",
				 arg);
	(void)strcpy(ret, found);
	return 0;
}

int sync_find(const struct cli *cli, const char *arg, char ret[SYNC_ID_MAX])
{
	cleanup(json_decrefp) json_t *rows = NULL;
	size_t n = strspn(arg, "0123456789abcdef");

	if (!n || arg[n] || n >= SYNC_ID_MAX)
		cli_usage(cli, "'%s' cannot be a sync; those are up to %d hexadecimal digits", arg,
			  SYNC_ID_MAX - 1);
	if (n == SYNC_ID_MAX - 1) {
		(void)strcpy(ret, arg);
		return 0;
	}
	if (control_client_rows(cli, json_pack("{s:s, s:n}", "op", "status", "sync"), &rows))
		return EXIT_FAILED;
	return find_among(rows, arg, ret);
}

bool sync_begins_with(const char *sentence, const char *what)
{
	size_t n = strlen(what);

	sentence += strncmp(sentence, "sync ", 5) ? 0 : 5;
	return !strncmp(sentence, what, n) && (sentence[n] == ' ' || sentence[n] == ':');
}

void sync_say(FILE *f, const char *what, const char *sentence)
{
	if (!what || !sync_begins_with(sentence, what)) {
		escape_text(f, what ? what : "-");
		(void)fputs(": ", f);
	}
	escape_text(f, sentence);
	(void)fputc('\n', f);
}
