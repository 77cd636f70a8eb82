/*
 * weightctl nodes: list the nodes that share versions with this node, with the reason for each that currently does
 * not.
 */
#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_BUFFERS = OPTION_OWN,
};

struct node {
	const char *name;
	const char *address;
	const char *state;
	const char *why;
	uint64_t since_ns;
	uint64_t rtt_ns; /* UINT64_MAX: not measured */
};

#define NODE(member) offsetof(struct node, member)

static const struct column columns[] = {
	{"NODE", COLUMN_TEXT, NODE(name), .help = "name of the node", .shown = true, .cut = true,
	 .width = 0.3},
	{"ADDRESS", COLUMN_TEXT, NODE(address), .help = "address of its agent", .shown = true,
	 .cut = true, .width = 0.3},
	{"STATE", COLUMN_TEXT, NODE(state), .help = "up, down, or self: this node", .shown = true},
	{"SINCE", COLUMN_AGE, NODE(since_ns), .help = "for how long", .shown = true},
	{"RTT", COLUMN_DURATION, NODE(rtt_ns), .help = "round trip to its agent", .shown = true},
	{"WHY", COLUMN_TEXT, NODE(why), .help = "reason if it is down; below the table, too"},
	{},
};

/* A committed version that a node has. */
struct head {
	const char *node;
	const char *buffer;
	const char *group;
	struct sync_version version; /* nodes agree on the newer of two by it */
	uint64_t local; /* its number in the weightd there; 0: unknown */
	const char *state;
	const char *root;
};

#define HEAD(member) offsetof(struct head, member)

static const char *head_version(const void *row, bool json)
{
	(void)json;
	return sync_version_text(((const struct head *)row)->version);
}

static const struct column heads[] = {
	{"NODE", COLUMN_TEXT, HEAD(node), .shown = true, .cut = true, .width = 0.2},
	{"BUFFER", COLUMN_TEXT, HEAD(buffer), .shown = true, .cut = true, .width = 0.3},
	{"GROUP", COLUMN_TEXT, HEAD(group), .shown = true, .cut = true, .width = 0.2},
	{"VERSION", COLUMN_WORD, .word = head_version, .shown = true},
	COLUMN("TERM", COLUMN_U64, HEAD(version.term)),
	COLUMN("NUMBER", COLUMN_U64, HEAD(version.number)),
	{"LOCAL", COLUMN_VERSION, HEAD(local), .shown = true},
	{"STATE", COLUMN_TEXT, HEAD(state), .shown = true},
	COLUMN("ROOT", COLUMN_TEXT, HEAD(root)),
	{},
};

static struct node node_of(const json_t *row)
{
	uint64_t rtt_us = json_field_number(row, "rtt_us", UINT64_MAX);

	return (struct node){
		.name = json_field_text(row, "node"),
		.address = json_field_text(row, "address"),
		.state = json_field_text(row, "state"),
		.why = json_field_text(row, "why"),
		.since_ns = json_field_number(row, "since_ns", 0),
		.rtt_ns = rtt_us && rtt_us < UINT64_MAX / 1000 ? rtt_us * 1000 : UINT64_MAX,
	};
}

static struct head head_of(const char *node, const json_t *row)
{
	return (struct head){
		.node = node,
		.buffer = json_field_text(row, "buffer"),
		.group = json_field_text(row, "group"),
		.version = sync_version_of(row),
		.local = json_field_number(row, "version", 0),
		.state = json_field_text(row, "state"),
		.root = json_field_text(row, "root"),
	};
}

/* Below the table: what does not fit into it. */
static void print_sentences(const json_t *rows)
{
	bool any = false;
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const struct node node = node_of(row);

		if (!node.why)
			continue;
		if (!any)
			any = fputc('\n', stdout) != EOF;
		sync_say(stdout, node.name, node.why);
	}
}

static int print_heads(struct cli *cli, struct json *json, const json_t *rows)
{
	const struct table_format all_columns = {.json = cli->format.json,
						 .noheadings = cli->format.noheadings};
	cleanup(table_deinit) struct table table = {};
	const json_t *row, *head;
	size_t i, k;

	table_init(&table, &all_columns, heads);
	table_begin(&table, json, "buffers");
	json_array_foreach(rows, i, row)
	{
		json_array_foreach(json_object_get(row, "heads"), k, head)
		{
			const struct head h = head_of(json_field_text(row, "node"), head);

			table_row(&table, &h);
		}
	}
	return table_end(&table);
}

static bool any_heads(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i,
			   row) if (json_array_size(json_object_get(row, "heads"))) return true;
	return false;
}

static int nodes_print(struct cli *cli, struct table *table, const json_t *rows, bool with_buffers)
{
	struct json json = {.file = stdout};
	const json_t *row;
	size_t i;
	int r;

	if (cli->format.json)
		json_open(&json, NULL, '{');
	table_begin(table, &json, "nodes");
	json_array_foreach(rows, i, row)
	{
		const struct node node = node_of(row);

		table_row(table, &node);
	}
	r = table_end(table);
	if (!r && !cli->format.json && !cli->format.columns && !cli->format.noheadings)
		print_sentences(rows);
	if (!r && with_buffers) {
		if (!cli->format.json && any_heads(rows))
			(void)fputc('\n', stdout);
		r = print_heads(cli, &json, rows);
	}
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

/* Adds rows of buffers that did not fit into the row of their node. */
static int add_heads(const struct cli *cli, json_t *rows)
{
	json_t *row, *all;
	size_t i;
	int r = 0;

	json_array_foreach(rows, i, row)
	{
		if (!json_field_number(row, "n_heads", 0))
			continue;
		r = control_client_rows(cli,
					json_pack("{s:s, s:O*}", "op", "heads", "node",
						  json_object_get(row, "node")),
					&all);
		if (r)
			return r;
		if (json_object_set_new(row, "heads", all) < 0)
			cli_out_of_memory();
	}
	return r;
}

static int nodes_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"buffers", no_argument, NULL, OPTION_BUFFERS},
		OPTIONS_TABLE,
		OPTIONS_AGENT,
		{},
	};
	cleanup(json_decrefp) json_t *rows = NULL;
	cleanup(table_deinit) struct table table = {};
	bool with_buffers = false;

	while (cli_option(cli, argc, argv, LETTERS_TABLE, longs) >= 0)
		with_buffers = true;
	if (argc - optind > 0)
		cli_usage(cli, "'nodes' takes no arguments");
	table_init(&table, &cli->format, columns);
	if (control_client_rows(cli, json_pack("{s:s}", "op", "nodes"), &rows))
		return EXIT_FAILED;
	with_buffers |= cli->format.json;
	if (with_buffers && add_heads(cli, rows))
		return EXIT_FAILED;
	return nodes_print(cli, &table, rows, with_buffers);
}

const struct verb verb_nodes = {
	.name = "nodes",
	.args = "",
	.summary = "List the nodes that versions are shared with",
	.options = "     --buffers          buffers of each node\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_AGENT,
	.run = nodes_run,
};
