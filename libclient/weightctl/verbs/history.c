/*
 * weightctl history: the versions of a buffer that are there and those that were, and what became of them.
 */
#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

#define INFO(member) offsetof(struct weightd_version_info, member)

static const char *history_state(const void *row, bool json)
{
	const struct weightd_version_info *info = row;

	(void)json;
	if (info->end != WEIGHTD_END_NONE)
		return weightd_end_name(info->end);
	return info->current ? "current" : "kept";
}

static const char *history_user(const void *row, bool json)
{
	const struct weightd_version_info *info = row;

	(void)json;
	return user_name(info->uid);
}

static const struct column columns[] = {
	{"VERSION", COLUMN_VERSION, INFO(version), .help = "number of the version", .shown = true},
	{"STATE", COLUMN_WORD, .word = history_state,
	 .help = "current, kept, or the reason of its end (see weightctl(1))", .shown = true},
	{"AGE", COLUMN_AGE, INFO(published_ns), .help = "time since it was published", .shown = true},
	{"PUBLISHED", COLUMN_TIME, INFO(published_ns), .help = "the same as a date (UTC)"},
	{"GONE", COLUMN_AGE, INFO(ended_ns), .help = "time since its end", .shown = true},
	{"ENDED", COLUMN_TIME, INFO(ended_ns), .help = "the same as a date (UTC)"},
	{"USER", COLUMN_WORD, .word = history_user, .help = "user that published it", .shown = true,
	 .cut = true, .width = 0.1},
	{"UID", COLUMN_U32, INFO(uid), .help = "the same as a number"},
	{"PID", COLUMN_U32, INFO(pid), .help = "process that published it", .shown = true},
	{"READERS", COLUMN_U32, INFO(n_readers), .help = "attachments", .shown = true},
	{"TENSORS", COLUMN_U64, INFO(n_tensors), .help = "number of tensors"},
	{"SIZE", COLUMN_SIZE, INFO(n_bytes), .help = "size of its flat range", .shown = true},
	{"MEMORY", COLUMN_SIZE, INFO(slot_bytes), .help = "memory it takes"},
	{"HUGE", COLUMN_SIZE, INFO(huge_bytes), .help = "part of it in huge pages"},
	{"LAYOUT", COLUMN_HASH, INFO(layout_hash), .help = "hash of its layout"},
	{"DIGEST", COLUMN_DIGEST, INFO(digest), .help = "digest of its bytes", .shown = true,
	 .cut = true, .width = 0.2},
	{},
};

static int history_print(const struct cli *cli, struct table *table, const char *name,
			 const struct weightd_list *list)
{
	struct json json = {.file = stdout};
	const struct weightd_version_info *version;
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "name", name);
		json_put_string(&json, "device", cli_device(cli));
	}
	table_begin(table, &json, "versions");
	for (size_t i = 0; (version = weightd_list_version(list, i)); i++)
		table_row(table, version);
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

static int history_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_DEVICE, OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	cleanup(table_deinit) struct table table = {};
	const char *name;
	int r;

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind != 1)
		cli_usage(cli, "'history' wants one name");
	table_init(&table, &cli->format, columns);
	name = cli_name(cli, argv[optind]);
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_list_history(cli->w, name, cli->device, &list);
	if (r < 0)
		return absent_buffer(cli, name, r);
	return history_print(cli, &table, name, list);
}

const struct verb verb_history = {
	.name = "history",
	.args = "NAME",
	.summary = "Show present and past versions, and why past ones ended",
	.options = HELP_TABLE HELP_DEVICE,
	.columns = columns,
	.run = history_run,
};
