/*
 * A table of structs: columns chosen by -o, printed as lines or as a JSON list
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/json.h"

#define TABLE_COLUMNS_MAX 32

/* How a verb prints its rows. */
struct table_format {
	const char *verb; /* named by the error for a wrong column */
	const char *columns; /* -o, NULL: not given */
	bool json;
	bool noheadings;
	bool bytes;
};

struct table {
	const struct table_format *format;
	const struct column *columns[TABLE_COLUMNS_MAX];
	size_t n_columns;
	FILE *cells; /* NULL for JSON, which is written row by row */
	char *text; /* of all cells, row by row, each with a NUL */
	size_t text_size;
	size_t n_rows;
	struct json *json;
	FILE *out; /* NULL: standard output */
	bool is_redrawn; /* on a screen, which cuts lines: never as records */
};

/* Chooses the columns; a wrong -o ends the program. Before anything is done, so that it can. */
void table_init(struct table *t, const struct table_format *format, const struct column *columns);
void table_deinit(struct table *t);

/* With --json the rows become the list `key` of the object open in `j`, else `j` may be NULL. */
void table_begin(struct table *t, struct json *j, const char *key);
void table_row(struct table *t, const void *row);
/* 0, or EXIT_FAILED after printing why. */
int table_end(struct table *t);
