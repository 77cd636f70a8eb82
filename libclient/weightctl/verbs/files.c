/*
 * weightctl files: the files that a version has beside its weights.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

#define FILE_OF(member) offsetof(struct weightd_file, member)

static const struct column columns[] = {
	{"PATH", COLUMN_TEXT, FILE_OF(path), .help = "path in a model directory", .shown = true},
	{"SIZE", COLUMN_SIZE, FILE_OF(n_bytes), .help = "size of the file", .shown = true},
	{},
};

static int files_print(const struct cli *cli, struct table *table, const struct target *target,
		       const struct weightd_files *files)
{
	struct weightd_file file = {.size = sizeof(file)};
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "name", target->name);
		json_put_string(&json, "device", cli_device(cli));
		json_put_number(&json, "version", target->version);
		server_put_attributes(files, &json);
	}
	table_begin(table, &json, "files");
	for (size_t i = 0; weightd_files_file(files, i, &file) >= 0; i++)
		table_row(table, &file);
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

static int files_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		OPTIONS_DEVICE, OPTIONS_OWNER, OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(server_files_freep) struct weightd_files *files = NULL;
	cleanup(table_deinit) struct table table = {};
	struct target target;

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind != 1)
		cli_usage(cli, "'files' wants one name");
	table_init(&table, &cli->format, columns);
	target = cli_target(cli, argv[optind]);
	if (server_connect(cli) || server_files(cli, &target, &files))
		return EXIT_FAILED;
	if (weightd_files_count(files) == 0 && !cli->format.json && isatty(STDOUT_FILENO))
		(void)fprintf(stderr, "%s@%" PRIu64 " has no files beside its weights\n",
			      target.name, target.version);
	return files_print(cli, &table, &target, files);
}

const struct verb verb_files = {
	.name = "files",
	.args = "NAME[@VERSION]",
	.summary = "List the files beside the weights of a version",
	.options = HELP_TABLE HELP_DEVICE HELP_OWNER,
	.columns = columns,
	.run = files_run,
};
