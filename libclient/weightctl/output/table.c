/*
 * A table of structs. A terminal gets lines cut to its width, or a record for each row where the cut would
 * leave too little; anything else gets them whole. Cells are escaped before libsmartcols sees them, so that
 * all of weightctl escapes alike, and cut here, since it cuts without a mark.
 */
#include "libclient/weightctl/output/table.h"

#include <libsmartcols/libsmartcols.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "ipc/base/suggestion.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/width.h"

#define WIDTH_LEAST 4 /* least width of a column on a screen, heading included */

static void table_choose(struct table *t, const struct column *c)
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
		if (c->shown || t->format->json)
			table_choose(t, c);
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
			table_choose(t, c);
			return;
		}
	}
	nearest = nearest_column(columns, name, len);
	if (nearest)
		cli_usage_error(t->format->verb, "there is no column '%.*s'; is it '%s'?", (int)len,
				name, nearest);
	cli_usage_error(t->format->verb, "there is no column '%.*s'", (int)len, name);
}

void table_init(struct table *t, const struct table_format *format, const struct column *columns)
{
	const char *at = format->columns;

	*t = (struct table){.format = format};
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
	int flags = column_is_number(c) ? SCOLS_FL_RIGHT : 0;

	if (!scols_table_new_column(t->rows, c->name, 0, flags))
		cli_out_of_memory();
}

void table_begin(struct table *t, struct json *j, const char *key)
{
	if (t->format->json) {
		t->json = j;
		json_open(j, key, '[');
		return;
	}
	t->rows = scols_new_table();
	t->cell = open_memstream(&t->cell_text, &t->cell_size);
	if (!t->rows || !t->cell)
		cli_out_of_memory();
	(void)scols_table_enable_noencoding(t->rows, 1);
	(void)scols_table_enable_noheadings(t->rows, t->format->noheadings);
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
	column_text(c, row, t->format->bytes, t->cell);
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

static struct libscols_cell *cell_at(struct table *t, size_t row, size_t column)
{
	return scols_line_get_cell(scols_table_get_line(t->rows, row), column);
}

/* The columns that each takes whole, with its heading, and those that it can do with. */
static void table_measure(struct table *t, size_t terminal, size_t *whole, size_t *least)
{
	const size_t n_rows = scols_table_get_nlines(t->rows);

	for (size_t i = 0; i < t->n_columns; i++) {
		const struct column *c = t->columns[i];
		double hint = c->width < 1 ? c->width * (double)terminal : c->width;

		whole[i] = strlen(c->name); /* also where headings are left out */
		least[i] = (size_t)hint > whole[i] ? (size_t)hint : whole[i];
		if (t->is_redrawn)
			least[i] = WIDTH_LEAST;
		for (size_t row = 0; row < n_rows; row++) {
			const char *text = scols_cell_get_data(cell_at(t, row, i));
			size_t width = width_of(text, strlen(text));

			if (width > whole[i])
				whole[i] = width;
		}
		if (!c->cut || least[i] > whole[i])
			least[i] = whole[i];
	}
}

static size_t widths_sum(const size_t *widths, size_t n)
{
	size_t all = n ? n - 1 : 0; /* a space between two */

	for (size_t i = 0; i < n; i++)
		all += widths[i];
	return all;
}

/* Takes from the widest that can give, column by column. */
static void table_shrink(size_t *widths, const size_t *least, size_t n, size_t terminal)
{
	while (widths_sum(widths, n) > terminal) {
		size_t widest = n;

		for (size_t i = 0; i < n; i++)
			if (widths[i] > least[i] && (widest == n || widths[i] > widths[widest]))
				widest = i;
		if (widest == n)
			return;
		widths[widest]--;
	}
}

static void table_cut(struct table *t, struct libscols_cell *c, size_t width)
{
	const char *text = scols_cell_get_data(c);
	size_t size = strlen(text);

	if (width_of(text, size) <= width)
		return;
	rewind(t->cell);
	(void)fwrite(text, 1, width_fitting(text, size, width - 1), t->cell);
	(void)fputs(escape_mark(), t->cell);
	(void)fputc('\0', t->cell);
	if (fflush(t->cell) < 0 || scols_cell_set_data(c, t->cell_text) < 0)
		cli_out_of_memory();
}

/* A line a value, and an empty one between two rows. */
static void print_records(struct table *t, FILE *out)
{
	const size_t n_rows = scols_table_get_nlines(t->rows);
	size_t width = 0;

	for (size_t i = 0; i < t->n_columns; i++)
		if (strlen(t->columns[i]->name) > width)
			width = strlen(t->columns[i]->name);
	for (size_t row = 0; row < n_rows; row++) {
		if (row)
			(void)fputc('\n', out);
		for (size_t i = 0; i < t->n_columns; i++)
			(void)fprintf(out, "%-*s  %s\n", (int)width, t->columns[i]->name,
				      scols_cell_get_data(cell_at(t, row, i)));
	}
}

/*
 * Makes the table fit into the terminal. False: it does not, and its headings can go to each value
 * instead.
 */
static bool table_fit(struct table *t)
{
	const size_t terminal = scols_table_get_termwidth(t->rows);
	const size_t n_rows = scols_table_get_nlines(t->rows);
	size_t widths[TABLE_COLUMNS_MAX], least[TABLE_COLUMNS_MAX];

	table_measure(t, terminal, widths, least);
	if (widths_sum(least, t->n_columns) > terminal && !t->format->noheadings && !t->is_redrawn)
		return false;
	table_shrink(widths, least, t->n_columns, terminal);
	for (size_t i = 0; i < t->n_columns; i++) {
		table_cut(t, scols_column_get_header(scols_table_get_column(t->rows, i)), widths[i]);
		for (size_t row = 0; row < n_rows; row++)
			table_cut(t, cell_at(t, row, i), widths[i]);
	}
	return true;
}

int table_end(struct table *t)
{
	FILE *out = t->out ? t->out : stdout;
	int r;

	if (t->json) {
		json_close(t->json, ']');
		return 0;
	}
	if (isatty(STDOUT_FILENO) && !table_fit(t)) {
		print_records(t, out);
		return 0;
	}
	(void)scols_table_set_stream(t->rows, out);
	(void)scols_table_set_termforce(t->rows, SCOLS_TERMFORCE_NEVER); /* it fits, or is whole */
	r = scols_print_table(t->rows);
	return r < 0 ? cli_error("cannot print the table: %s", strerror(-r)) : 0;
}
