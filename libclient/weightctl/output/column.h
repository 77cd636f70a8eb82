/*
 * A named value inside of a struct
 *
 * A verb describes its struct once, as a const list of columns, from which this file makes tables, key and value
 * lines, JSON and the help text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/output/json.h"

enum column_kind {
	COLUMN_TEXT, /* const char *; NULL is none */
	COLUMN_WORD, /* text that column::word() makes of the struct */
	COLUMN_U32,
	COLUMN_U64,
	COLUMN_VERSION, /* u64; 0 is none */
	COLUMN_INDEX, /* u32; UINT32_MAX is none. With column::word() that text, in JSON the number */
	COLUMN_SIZE, /* u64 of bytes */
	COLUMN_COUNTED, /* the same; UINT64_MAX is none */
	COLUMN_COUNT, /* u64, how many; UINT64_MAX is none */
	COLUMN_PART, /* two u64: how much, of how much; UINT64_MAX is none */
	COLUMN_OF, /* two u32: how many, of how many; in JSON the first */
	COLUMN_USED, /* two u64: how many, and how many there may be, WEIGHTD_UNLIMITED is no limit */
	COLUMN_USED_SIZE, /* the same in bytes */
	COLUMN_AGE, /* u64 of ns, CLOCK_REALTIME; 0 is none; how long ago that was */
	COLUMN_TIME, /* the same as a date */
	COLUMN_DURATION, /* u64 of ns; UINT64_MAX is none */
	COLUMN_MICROSECONDS, /* the same as "62.9 us", whatever it is */
	COLUMN_CLOCK, /* the same in whole seconds: "1:02" */
	COLUMN_DOUBLE, /* double; none where it is not finite */
	COLUMN_RATE, /* u64 of bytes a second; 0 is none */
	COLUMN_BOOL,
	COLUMN_MODE, /* u32 of permission bits */
	COLUMN_DIGEST, /* 16 bytes; all zero is none */
	COLUMN_HASH, /* 16 bytes */
	COLUMN_HEX, /* u64 that is a name rather than a number */
	COLUMN_SHAPE, /* struct weightd_tensor: its shape */
};

struct column {
	const char *name; /* NULL ends a list; in JSON lower case, with its unit, "_ns" */
	enum column_kind kind;
	size_t offset; /* in the struct */
	const char *help;
	bool shown; /* in a table without -o */
	bool cut; /* on a narrow terminal, but not below */
	double width; /* < 1 a share of the terminal, else a number of columns */
	const char *(*word)(const void *row, bool json);
};

/* A column that is never chosen for a table, so that it needs no more. */
/* clang-format off */
#define COLUMN(name_, kind_, offset_) {.name = (name_), .kind = (kind_), .offset = (offset_)}
/* clang-format on */

/* The value for a person, "-" for none; `bytes` for exact sizes. */
void column_text(const struct column *c, const void *row, bool bytes, FILE *f);
/* A member of the open object; null for none. */
void column_json(const struct column *c, const void *row, struct json *j);
/* True for what is read from the right. */
bool column_is_number(const struct column *c);

/* All of the columns as lines of name and value, or as members of the open object. */
void column_text_all(const struct column *columns, const void *row, bool bytes, FILE *f);
void column_json_all(const struct column *columns, const void *row, struct json *j);
/* The same as one JSON document on standard output. */
void column_json_object(const struct column *columns, const void *row);

/* "xxh3:0123..." of 16 bytes. */
#define COLUMN_DIGEST_MAX 40
const char *column_digest(char buf[COLUMN_DIGEST_MAX], const uint8_t *digest);
