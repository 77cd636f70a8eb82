/*
 * A JSON writer without a tree: the outer two levels have one member a line, deeper levels share the line of their
 * parent, so that a row of a table stays a line; or all of it is on one. Write errors stay in the stream for main()
 * to find.
 */
#include "libclient/weightctl/output/json.h"

#include <inttypes.h>

#include "libclient/weightctl/output/escape.h"

#define DEPTH_BROKEN 2 /* levels that are broken into lines */

static void new_line(struct json *j)
{
	if (j->depth && j->depth <= DEPTH_BROKEN && !j->is_line)
		(void)fprintf(j->file, "\n%*s", (int)j->depth * 3, "");
	else if (j->depth)
		(void)fputs(j->comma ? " " : "", j->file);
}

static void json_begin(struct json *j, const char *key)
{
	if (j->comma)
		(void)fputc(',', j->file);
	new_line(j);
	j->comma = true;
	if (!key)
		return;
	escape_json(j->file, key);
	(void)fputs(": ", j->file);
}

void json_open(struct json *j, const char *key, char kind)
{
	json_begin(j, key);
	(void)fputc(kind, j->file);
	j->depth++;
	j->comma = false;
}

void json_close(struct json *j, char kind)
{
	bool empty = !j->comma;

	j->depth--;
	if (!empty && j->depth < DEPTH_BROKEN && !j->is_line)
		(void)fprintf(j->file, "\n%*s", (int)j->depth * 3, "");
	(void)fputc(kind, j->file);
	if (!j->depth)
		(void)fputc('\n', j->file);
	j->comma = true;
}

void json_put_string(struct json *j, const char *key, const char *s)
{
	if (!s) {
		json_put_null(j, key);
		return;
	}
	json_begin(j, key);
	escape_json(j->file, s);
}

void json_put_number(struct json *j, const char *key, uint64_t n)
{
	json_begin(j, key);
	(void)fprintf(j->file, "%" PRIu64, n);
}

void json_put_double(struct json *j, const char *key, double d)
{
	json_begin(j, key);
	(void)fprintf(j->file, "%.6g", d);
}

void json_put_bool(struct json *j, const char *key, bool b)
{
	json_begin(j, key);
	(void)fputs(b ? "true" : "false", j->file);
}

void json_put_null(struct json *j, const char *key)
{
	json_begin(j, key);
	(void)fputs("null", j->file);
}
