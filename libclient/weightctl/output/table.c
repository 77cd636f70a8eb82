/*
 * A table of structs. A terminal gets lines cut to its width, or a record for each row where the cut would
 * leave too little; anything else gets them whole. The texts of all cells stand behind each other until the
 * last is known, as its width may be that of the column.
 */
#include "libclient/weightctl/output/table.h"

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
	if (t->cells)
		(void)fclose(t->cells);
	free(t->text);
}

void table_begin(struct table *t, struct json *j, const char *key)
{
	if (t->format->json) {
		t->json = j;
		json_open(j, key, '[');
		return;
	}
	t->cells = open_memstream(&t->text, &t->text_size);
	if (!t->cells)
		cli_out_of_memory();
}

static void row_json(struct table *t, const void *row)
{
	json_open(t->json, NULL, '{');
	for (size_t i = 0; i < t->n_columns; i++)
		column_json(t->columns[i], row, t->json);
	json_close(t->json, '}');
}

void table_row(struct table *t, const void *row)
{
	if (t->json) {
		row_json(t, row);
		return;
	}
	for (size_t i = 0; i < t->n_columns; i++) {
		column_text(t->columns[i], row, t->format->bytes, t->cells);
		(void)fputc('\0', t->cells);
	}
	t->n_rows++;
}

/* --- Widths ------------------------------------------------------------------------------------- */

/* The columns that each takes whole, with its heading, also where headings are left out. */
static void table_measure(const struct table *t, size_t *whole)
{
	const char *cell = t->text;

	for (size_t i = 0; i < t->n_columns; i++)
		whole[i] = strlen(t->columns[i]->name);
	for (size_t n = t->n_rows; n > 0; n--)
		for (size_t i = 0; i < t->n_columns; i++) {
			size_t size = strlen(cell), width = width_of(cell, size);

			if (width > whole[i])
				whole[i] = width;
			cell += size + 1;
		}
}

/* The columns that each can do with on a terminal. */
static void table_least(const struct table *t, size_t terminal, const size_t *whole, size_t *least)
{
	for (size_t i = 0; i < t->n_columns; i++) {
		const struct column *c = t->columns[i];
		double hint = c->width < 1 ? c->width * (double)terminal : c->width;
		size_t heading = strlen(c->name);

		least[i] = (size_t)hint > heading ? (size_t)hint : heading;
		if (t->is_redrawn)
			least[i] = WIDTH_LEAST;
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

/* Makes the columns fit into the terminal. False: they do not, and headings can go to each value instead. */
static bool table_fit(const struct table *t, size_t *widths)
{
	const size_t terminal = width_of_terminal();
	size_t least[TABLE_COLUMNS_MAX];

	table_least(t, terminal, widths, least);
	if (widths_sum(least, t->n_columns) > terminal && !t->format->noheadings && !t->is_redrawn)
		return false;
	table_shrink(widths, least, t->n_columns, terminal);
	return true;
}

/* --- Printing ----------------------------------------------------------------------------------- */

static void print_spaces(FILE *out, size_t n)
{
	static const char spaces[] = "                                ";

	for (size_t now; n > 0; n -= now) {
		now = n < sizeof(spaces) - 1 ? n : sizeof(spaces) - 1;
		(void)fwrite_unlocked(spaces, 1, now, out);
	}
}

/* A cell in its column, or the part of it that fits and a mark. Nothing stands behind the last column of a line. */
static void print_cell(const struct table *t, size_t column, size_t width, const char *cell,
		       size_t size, FILE *out)
{
	bool is_number = column_is_number(t->columns[column]);
	bool is_last = column + 1 == t->n_columns;
	size_t used = width_of(cell, size);
	bool is_cut = used > width;

	if (is_cut) {
		size = width_fitting(cell, size, width - 1);
		used = width_of(cell, size) + 1;
	}
	if (is_number)
		print_spaces(out, width - used);
	(void)fwrite_unlocked(cell, 1, size, out);
	if (is_cut)
		(void)fputs(escape_mark(), out);
	if (!is_number && !is_last)
		print_spaces(out, width - used);
	(void)fputc_unlocked(is_last ? '\n' : ' ', out);
}

static void print_lines(const struct table *t, const size_t *widths, FILE *out)
{
	const char *cell = t->text;

	if (t->n_rows == 0)
		return;
	for (size_t i = 0; !t->format->noheadings && i < t->n_columns; i++)
		print_cell(t, i, widths[i], t->columns[i]->name, strlen(t->columns[i]->name), out);
	for (size_t row = 0; row < t->n_rows; row++)
		for (size_t i = 0; i < t->n_columns; i++) {
			size_t size = strlen(cell);

			print_cell(t, i, widths[i], cell, size, out);
			cell += size + 1;
		}
}

/* A line a value, and an empty one between two rows. */
static void print_records(const struct table *t, FILE *out)
{
	const char *cell = t->text;
	size_t width = 0;

	for (size_t i = 0; i < t->n_columns; i++)
		if (strlen(t->columns[i]->name) > width)
			width = strlen(t->columns[i]->name);
	for (size_t row = 0; row < t->n_rows; row++) {
		if (row)
			(void)fputc('\n', out);
		for (size_t i = 0; i < t->n_columns; i++) {
			(void)fprintf(out, "%-*s  %s\n", (int)width, t->columns[i]->name, cell);
			cell += strlen(cell) + 1;
		}
	}
}

int table_end(struct table *t)
{
	FILE *out = t->out ? t->out : stdout;
	size_t widths[TABLE_COLUMNS_MAX];

	if (t->json) {
		json_close(t->json, ']');
		return 0;
	}
	if (fflush(t->cells) < 0 || ferror(t->cells))
		cli_out_of_memory();
	table_measure(t, widths);
	if (isatty(STDOUT_FILENO) && !table_fit(t, widths))
		print_records(t, out);
	else
		print_lines(t, widths, out);
	return 0;
}
