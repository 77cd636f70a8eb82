/*
 * A JSON writer without a tree, for objects with nested lists and for lists of millions
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *file;
	unsigned depth;
	bool is_line; /* all of a document on one */
	bool comma; /* something stands before in the innermost object or list */
};

/* `key` is NULL inside of a list and at the top. `kind` is '{' or '['. */
void json_open(struct json *j, const char *key, char kind);
void json_close(struct json *j, char kind);
/* NULL is null. */
void json_put_string(struct json *j, const char *key, const char *s);
void json_put_number(struct json *j, const char *key, uint64_t n);
/* As precise as six digits are. */
void json_put_double(struct json *j, const char *key, double d);
void json_put_bool(struct json *j, const char *key, bool b);
void json_put_null(struct json *j, const char *key);
