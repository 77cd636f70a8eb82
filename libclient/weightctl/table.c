/*
 * A table of structs. A terminal gets lines cut to its width, anything else gets them whole; cells
 * are escaped before libsmartcols sees them, so that all of weightctl escapes alike.
 */
#include "libclient/weightctl/table.h"

#include <libsmartcols/libsmartcols.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ipc/base/suggestion.h"

static void choose(struct table *t, const struct column *c)
{
	for (size_t i = 0; i < t->n_columns; i++)
		if (t->columns[i] == c)
			return; /* a name twice would be no good JSON */
	if (t->n_columns < TABLE_COLUMNS_MAX)
		t->columns[t->n_columns++] = c;
}

static void choose_usual(struct table *t, const struct column *columns)
{
	for (const struct column *c = columns; c->name; c++)
		if (c->shown || t->cli->json)
			choose(t, c);
}

static const char *nearest_column(const struct column *columns, const char *name, size_t len)
{
	const char *names[TABLE_COLUMNS_MAX];
	unsigned n = 0;

	for (const struct column *c = columns; c->name && n < TABLE_COLUMNS_MAX; c++)
		names[n++] = c->name;
	return suggestion_find(name, len, names, n);
}

static void choose_by_name(struct table *t, const struct column *columns, const char *name,
			   size_t len)
{
	const char *nearest;

	for (const struct column *c = columns; c->name; c++) {
		if (strlen(c->name) == len && !strncasecmp(c->name, name, len)) {
			choose(t, c);
			return;
		}
	}
	nearest = nearest_column(columns, name, len);
	if (nearest)
		cli_usage(t->cli, "there is no column '%.*s'; is it '%s'?", (int)len, name, nearest);
	cli_usage(t->cli, "there is no column '%.*s'", (int)len, name);
}

void table_init(struct table *t, const struct cli *cli, const struct column *columns)
{
	const char *at = cli->columns;

	*t = (struct table){.cli = cli};
	if (!at || *at == '+')
		choose_usual(t, columns);
	if (!at)
		return;
	at += *at == '+';
	for (;;) {
		size_t len = strcspn(at, ",");

		choose_by_name(t, columns, at, len);
		if (!at[len])
			return;
		at += len + 1;
	}
}

void table_deinit(struct table *t)
{
	scols_unref_table(t->rows);
	if (t->cell)
		(void)fclose(t->cell);
	free(t->cell_text);
}

static void add_column(struct table *t, const struct column *c)
{
	int flags = (c->cut ? SCOLS_FL_TRUNC : 0) | (column_is_number(c) ? SCOLS_FL_RIGHT : 0);

	if (!scols_table_new_column(t->rows, c->name, c->width, flags))
		cli_out_of_memory();
}

void table_begin(struct table *t, struct json *j, const char *key)
{
	if (t->cli->json) {
		t->json = j;
		json_open(j, key, '[');
		return;
	}
	t->rows = scols_new_table();
	t->cell = open_memstream(&t->cell_text, &t->cell_size);
	if (!t->rows || !t->cell)
		cli_out_of_memory();
	(void)scols_table_enable_noencoding(t->rows, 1);
	(void)scols_table_enable_noheadings(t->rows, t->cli->noheadings);
	for (size_t i = 0; i < t->n_columns; i++)
		add_column(t, t->columns[i]);
}

static void row_json(struct table *t, const void *row)
{
	json_open(t->json, NULL, '{');
	for (size_t i = 0; i < t->n_columns; i++)
		column_json(t->columns[i], row, t->json);
	json_close(t->json, '}');
}

/* The text of a cell, in a buffer that is used again for the next. */
static const char *cell(struct table *t, const struct column *c, const void *row)
{
	rewind(t->cell);
	column_text(c, row, t->cli->bytes, t->cell);
	(void)fputc('\0', t->cell);
	if (fflush(t->cell) < 0)
		cli_out_of_memory();
	return t->cell_text;
}

void table_row(struct table *t, const void *row)
{
	struct libscols_line *line;

	if (t->json) {
		row_json(t, row);
		return;
	}
	line = scols_table_new_line(t->rows, NULL);
	if (!line)
		cli_out_of_memory();
	for (size_t i = 0; i < t->n_columns; i++)
		if (scols_line_set_data(line, i, cell(t, t->columns[i], row)) < 0)
			cli_out_of_memory();
}

int table_end(struct table *t)
{
	int r;

	if (t->json) {
		json_close(t->json, ']');
		return 0;
	}
	if (t->out)
		(void)scols_table_set_stream(t->rows, t->out);
	r = scols_print_table(t->rows);
	return r < 0 ? cli_error("cannot print the table: %s", strerror(-r)) : 0;
}
