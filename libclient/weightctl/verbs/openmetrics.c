/*
 * The service defines the metrics: new ones need no new weightctl. An invalid name, or a value that is no number, is
 * left out, because a reader would reject the whole text.
 */
#include "libclient/weightctl/verbs/openmetrics.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/atomic_file.h"
#include "libclient/weightctl/output/json_field.h"

enum metric_type {
	TYPE_GAUGE,
	TYPE_COUNTER,
	TYPE_HISTOGRAM,
	N_TYPES, /* unknown */
};

static const char *const type_names[N_TYPES] = {"gauge", "counter", "histogram"};

static enum metric_type type_of(const char *name)
{
	enum metric_type type = 0;

	while (type < N_TYPES && (!name || strcmp(name, type_names[type]) != 0))
		type++;
	return type;
}

/* A colon is for rules of the reader's own. */
static bool is_name(const char *s)
{
	if (!s || !*s || isdigit((unsigned char)*s))
		return false;
	for (; *s; s++)
		if (!isalnum((unsigned char)*s) && *s != '_')
			return false;
	return true;
}

/* Writes a label's value or a help text. Omits all bytes that would move the cursor of a terminal. */
static void put_escaped(FILE *f, const char *s)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '\n')
			(void)fputs("\\n", f);
		else if (c == '"' || c == '\\')
			(void)fprintf(f, "\\%c", c);
		else if (c == 0xc2 && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0)
			(void)fputc('?', f), s++;
		else
			(void)fputc(c < 0x20 || c == 0x7f ? '?' : c, f);
	}
}

static void put_labels(FILE *f, json_t *labels)
{
	const char *key, *before = "{";
	json_t *value;

	json_object_foreach(labels, key, value)
	{
		if (!is_name(key) || !json_is_string(value))
			continue;
		(void)fprintf(f, "%s%s=\"", before, key);
		put_escaped(f, json_string_value(value));
		(void)fputc('"', f);
		before = ",";
	}
	if (*before == ',')
		(void)fputc('}', f);
}

/* The ending that OpenMetrics gives to the name; NULL: a sample of a histogram without its suffix. */
static const char *suffix_of(enum metric_type type, const json_t *sample)
{
	const char *suffix = json_field_text(sample, "suffix");

	if (type != TYPE_HISTOGRAM)
		return type == TYPE_COUNTER ? "_total" : "";
	return is_name(suffix) ? suffix : NULL;
}

static void put_sample(FILE *f, const char *name, enum metric_type type, const json_t *sample)
{
	const char *suffix = suffix_of(type, sample);
	uint64_t value = json_field_number(sample, "value", UINT64_MAX);
	uint64_t ns = json_field_number(sample, "value_ns", UINT64_MAX);

	const json_t *real = json_object_get(sample, "value_real");

	if (!suffix || (value == UINT64_MAX && ns == UINT64_MAX && !json_is_real(real)))
		return;
	(void)fprintf(f, "%s%s", name, suffix);
	put_labels(f, json_object_get(sample, "labels"));
	if (json_is_real(real))
		(void)fprintf(f, " %.9g\n", json_real_value(real));
	else if (value < UINT64_MAX)
		(void)fprintf(f, " %" PRIu64 "\n", value);
	else
		(void)fprintf(f, " %" PRIu64 ".%09" PRIu64 "\n", ns / 1000000000, ns % 1000000000);
}

static void put_head(FILE *f, const char *name, enum metric_type type, const json_t *row)
{
	const char *unit = json_field_text(row, "unit"), *help = json_field_text(row, "help");

	(void)fprintf(f, "# TYPE %s %s\n", name, type_names[type]);
	if (is_name(unit))
		(void)fprintf(f, "# UNIT %s %s\n", name, unit);
	if (!help)
		return;
	(void)fprintf(f, "# HELP %s ", name);
	put_escaped(f, help);
	(void)fputc('\n', f);
}

static void put_all(FILE *f, const json_t *rows)
{
	const char *before = "";
	const json_t *row, *sample;
	size_t i, k;

	json_array_foreach(rows, i, row)
	{
		const char *name = json_field_text(row, "metric");
		enum metric_type type = type_of(json_field_text(row, "type"));

		if (!is_name(name) || type == N_TYPES)
			continue;
		if (strcmp(name, before) != 0)
			put_head(f, name, type, row);
		before = name;
		json_array_foreach(json_object_get(row, "samples"), k, sample)
			put_sample(f, name, type, sample);
	}
	(void)fputs("# EOF\n", f);
}

char *openmetrics_text(const json_t *rows)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		cli_out_of_memory();
	put_all(f, rows);
	if (fclose(f) == EOF)
		cli_out_of_memory();
	return text;
}

int openmetrics_write(const json_t *rows, const char *path)
{
	cleanup(cli_freep) char *text = openmetrics_text(rows);

	return path ? atomic_file_output(path, text) : cli_write(text, strlen(text));
}

const char *openmetrics_path(struct cli *cli, int argc, char *argv[], const struct option *longs)
{
	const char *path = NULL;

	while (cli_option(cli, argc, argv, LETTERS_COMMON, longs) >= 0)
		path = optarg;
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	return path;
}

int openmetrics_run(struct cli *cli, int argc, char *argv[], const struct option *longs)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	const char *path = openmetrics_path(cli, argc, argv, longs);

	if (control_client_rows(cli, json_pack("{s:s}", "op", "metrics"), &rows))
		return EXIT_FAILED;
	return openmetrics_write(rows, path);
}
