/*
 * Lines of an INI file
 *
 * Parses one line. There are two implementations: ini-inih.c, and ini-none.c where inih is absent.
 */
#pragma once

#define INI_LINE_MAX 196 /* bytes that inih takes, comments aside */
#define INI_SECTION_MAX 48 /* it cuts longer names */

enum ini_kind {
	INI_NOTHING, /* blank, or a comment */
	INI_SECTION, /* [name] */
	INI_ENTRY, /* name = value */
};

struct ini_line {
	enum ini_kind kind;
	char name[INI_LINE_MAX + 1];
	char value[INI_LINE_MAX + 1];
};

/* -EBADMSG: none of these; -E2BIG: longer than above; -ENOSYS: built without inih. */
int ini_line_read(const char *line, struct ini_line *ret);
