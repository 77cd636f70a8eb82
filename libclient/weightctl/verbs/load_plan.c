/*
 * The plan of a load: its files, the ranges to read from them, and where these go. JSON has the tensors, too.
 */
#include "libclient/weightctl/verbs/load_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/verb.h"

struct file_row {
	uint64_t number; /* as ranges have it */
	struct weightd_plan_file file;
};

#define FILE_ROW(member) offsetof(struct file_row, member)
#define RANGE(member) offsetof(struct weightd_plan_range, member)

static const struct column file_columns[] = {
	{"FILE", COLUMN_U64, FILE_ROW(number), .shown = true},
	{"SIZE", COLUMN_SIZE, FILE_ROW(file.n_bytes), .shown = true},
	{"RANGES", COLUMN_U64, FILE_ROW(file.n_ranges), .shown = true},
	{"PATH", COLUMN_TEXT, FILE_ROW(file.path), .shown = true, .cut = true, .width = 0.4},
	{},
};

static const struct column range_columns[] = {
	{"FILE", COLUMN_U32, RANGE(file), .shown = true},
	{"OFFSET", COLUMN_U64, RANGE(offset), .shown = true},
	{"DEST", COLUMN_U64, RANGE(dest), .shown = true},
	{"SIZE", COLUMN_SIZE, RANGE(n_bytes), .shown = true},
	{},
};

static const struct form {
	const char *name, *text;
} forms[] = {
	[WEIGHTD_PLAN_FILE] = {"file", "laid out as the file is"},
	[WEIGHTD_PLAN_PACKED] = {"packed", "laid out as one safetensors file"},
	[WEIGHTD_PLAN_FLAT] = {"flat", "each tensor at a multiple of 256 bytes"},
};

struct sums {
	uint64_t n_files, n_ranges, n_bytes; /* bytes to read */
};

static struct sums sum_up(const struct weightd_load_plan *p)
{
	struct weightd_plan_file file = {.size = sizeof(file)};
	struct sums sums = {0};

	while (weightd_load_plan_file(p, sums.n_files, &file) == 0) {
		sums.n_files++;
		sums.n_ranges += file.n_ranges;
		sums.n_bytes += file.n_bytes;
	}
	return sums;
}

static int print_files(struct cli *cli, struct json *json, const struct weightd_load_plan *p)
{
	cleanup(table_deinit) struct table table = {};
	struct file_row row = {.file = {.size = sizeof(row.file)}};

	table_init(&table, &cli->format, file_columns);
	table_begin(&table, json, "files");
	for (; weightd_load_plan_file(p, row.number, &row.file) == 0; row.number++)
		table_row(&table, &row);
	return table_end(&table);
}

static int print_ranges(struct cli *cli, struct json *json, const struct weightd_load_plan *p)
{
	cleanup(table_deinit) struct table table = {};
	struct weightd_plan_range range = {.size = sizeof(range)};

	table_init(&table, &cli->format, range_columns);
	table_begin(&table, json, "ranges");
	for (uint64_t i = 0; weightd_load_plan_range(p, i, &range) == 0; i++)
		table_row(&table, &range);
	return table_end(&table);
}

static void print_tensors(struct cli *cli, struct json *json, const struct weightd_layout *l)
{
	cleanup(table_deinit) struct table table = {};
	struct weightd_tensor tensor = {.size = sizeof(tensor)};

	table_init(&table, &cli->format, tensors_columns);
	table_begin(&table, json, "tensors");
	for (uint32_t i = 0; weightd_layout_tensor(l, i, &tensor) == 0; i++)
		table_row(&table, &tensor);
	(void)table_end(&table);
}

static int print_json(struct cli *cli, const char *name, const struct weightd_load_plan *p)
{
	const struct weightd_layout *layout = weightd_load_plan_layout(p);
	struct json json = {.file = stdout};

	json_open(&json, NULL, '{');
	json_put_string(&json, "name", name);
	json_put_string(&json, "device", cli_device(cli));
	json_put_string(&json, "layout", forms[weightd_load_plan_form(p)].name);
	json_put_number(&json, "read", sum_up(p).n_bytes);
	json_put_number(&json, "memory", weightd_layout_n_bytes(layout));
	(void)print_files(cli, &json, p);
	(void)print_ranges(cli, &json, p);
	print_tensors(cli, &json, layout);
	json_close(&json, '}');
	return 0;
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static int print_text(struct cli *cli, const char *name, const struct weightd_load_plan *p)
{
	const struct weightd_layout *layout = weightd_load_plan_layout(p);
	const struct sums sums = sum_up(p);
	uint64_t n = weightd_layout_n_tensors(layout);
	char read[SIZE_TEXT_MAX], memory[SIZE_TEXT_MAX];

	(void)printf("%s on %s\n%" PRIu64 " tensor%s, %s to read in %" PRIu64 " range%s of %" PRIu64
		     " file%s\n%s of memory, %s\n\n",
		     name, cli_device(cli), n, plural(n), size_text(read, sums.n_bytes),
		     sums.n_ranges, plural(sums.n_ranges), sums.n_files, plural(sums.n_files),
		     size_text(memory, weightd_layout_n_bytes(layout)),
		     forms[weightd_load_plan_form(p)].text);
	if (print_files(cli, NULL, p))
		return EXIT_FAILED;
	(void)putchar('\n');
	return print_ranges(cli, NULL, p);
}

int load_plan_print(struct cli *cli, const char *name, const char *const *paths, size_t n_paths,
		    const struct weightd_load_options *options)
{
	struct weightd_load_plan *plan;
	int r = weightd_new(&cli->w);

	if (r < 0)
		return cli_error("%s", strerror(-r));
	r = weightd_load_plan_new(cli->w, paths, n_paths, options, &plan);
	if (r < 0)
		return cli_fail(cli, r);
	r = cli->format.json ? print_json(cli, name, plan) : print_text(cli, name, plan);
	weightd_load_plan_free(plan);
	return r;
}
