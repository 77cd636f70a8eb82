/*
 * weightctl tensors: the tensor table of a version.
 */
#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

#define TENSOR(member) offsetof(struct weightd_tensor, member)

static const char *tensors_dtype(const void *row, bool json)
{
	const struct weightd_tensor *tensor = row;

	(void)json;
	return weightd_dtype_name(tensor->dtype);
}

/* People also see which bytes are counted elsewhere; programs have "tied" as a separate field. */
static const char *tensors_role(const void *row, bool json)
{
	const struct weightd_tensor *tensor = row;

	if (tensor->tied_to != WEIGHTD_NOT_TIED && !json)
		return "tied";
	return tensor->role == WEIGHTD_BUFFER ? "buffer" : "param";
}

/* Names are long and differ at their ends, hence few columns beside them. */
const struct column tensors_columns[] = {
	{"INDEX", COLUMN_U32, TENSOR(index), .help = "place in the layout", .shown = true},
	{"NAME", COLUMN_TEXT, TENSOR(name), .help = "name of the tensor", .shown = true,
	 .cut = true, .width = 0.4},
	{"DTYPE", COLUMN_WORD, .word = tensors_dtype, .help = "type of the elements", .shown = true},
	{"SHAPE", COLUMN_SHAPE, .help = "dimensions, outermost first", .shown = true},
	{"OFFSET", COLUMN_U64, TENSOR(offset), .help = "bytes from the start of the buffer"},
	{"SIZE", COLUMN_SIZE, TENSOR(n_bytes), .help = "size of its bytes", .shown = true},
	{"ROLE", COLUMN_WORD, .word = tensors_role,
	 .help = "param, tied, or buffer: readers take a copy", .shown = true},
	{"UNIT", COLUMN_TEXT, TENSOR(unit), .help = "module block it belongs to", .cut = true,
	 .width = 0.2},
	{"TIED", COLUMN_INDEX, TENSOR(tied_to), .help = "index of the tensor whose bytes it shares"},
	{},
};

static int tensors_print(const struct cli *cli, struct table *table, const struct weightd_buffer *b)
{
	struct weightd_tensor tensor = {.size = sizeof(tensor)};
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "name", weightd_buffer_name(b));
		json_put_string(&json, "device", weightd_buffer_device(b));
		json_put_number(&json, "version", weightd_buffer_version(b));
	}
	table_begin(table, &json, "tensors");
	for (uint32_t i = 0; weightd_buffer_tensor(b, i, &tensor) >= 0; i++)
		table_row(table, &tensor);
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

static int tensors_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		OPTIONS_DEVICE, OPTIONS_OWNER, OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	cleanup(table_deinit) struct table table = {};
	struct target target;

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind != 1)
		cli_usage(cli, "'tensors' wants one name");
	table_init(&table, &cli->format, tensors_columns);
	target = cli_target(cli, argv[optind]);
	if (server_connect(cli) || server_attach(cli, &target, &b))
		return EXIT_FAILED;
	return tensors_print(cli, &table, b);
}

const struct verb verb_tensors = {
	.name = "tensors",
	.args = "NAME[@VERSION]",
	.summary = "List the tensors of a version",
	.options = HELP_TABLE HELP_DEVICE HELP_OWNER,
	.columns = tensors_columns,
	.run = tensors_run,
};
