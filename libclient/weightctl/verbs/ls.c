/*
 * weightctl ls: the buffers of the server, a line each, and below them the jobs.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/ls_jobs.h"

#define INFO(member) offsetof(struct weightd_buffer_info, member)

/*
 * Programs check whether the buffer can be attached, and have "writing" as a separate field; people see one word.
 */
static const char *ls_state(const void *row, bool json)
{
	const struct weightd_buffer_info *info = row;

	if (info->state == WEIGHTD_UPDATING)
		return "updating";
	if (info->state == WEIGHTD_TORN)
		return "torn";
	if (info->writing && !json)
		return "writing";
	if (info->state != WEIGHTD_READY)
		return "empty";
	return info->version < info->newest && !json ? "rolled-back" : "ready";
}

static const char *ls_kind(const void *row, bool json)
{
	const struct weightd_buffer_info *info = row;

	(void)json;
	if (info->exclusive)
		return "exclusive";
	return info->reusable ? "reusable" : "sealed";
}

static const char *ls_handle(const void *row, bool json)
{
	const struct weightd_buffer_info *info = row;

	(void)json;
	switch (info->memory) {
	case WEIGHTD_MEMORY_CUDA:
		return "vmm";
	case WEIGHTD_MEMORY_CUDA_IPC:
		return "ipc";
	default:
		return NULL;
	}
}

static const char *ls_user(const void *row, bool json)
{
	const struct weightd_buffer_info *info = row;

	(void)json;
	return user_name(info->uid);
}

static const char *ls_group(const void *row, bool json)
{
	const struct weightd_buffer_info *info = row;

	(void)json;
	return user_group_name(info->gid);
}

const struct column ls_columns[] = {
	{"NAME", COLUMN_TEXT, INFO(name), .help = "name of the buffer", .shown = true, .cut = true,
	 .width = 0.2},
	{"DEVICE", COLUMN_TEXT, INFO(device), .help = "device of its memory", .shown = true,
	 .cut = true, .width = 0.1},
	{"VERSION", COLUMN_VERSION, INFO(version), .help = "current version", .shown = true},
	{"STATE", COLUMN_WORD, .word = ls_state,
	 .help = "empty, ready, rolled-back, writing, updating or torn", .shown = true},
	{"KIND", COLUMN_WORD, .word = ls_kind, .help = "sealed, reusable or exclusive"},
	{"HANDLE", COLUMN_WORD, .word = ls_handle,
	 .help = "kind of GPU memory: vmm or ipc, as for load"},
	{"NEWEST", COLUMN_VERSION, INFO(newest), .help = "newest version: a rollback goes before it"},
	{"WRITING", COLUMN_BOOL, INFO(writing), .help = "the next version has a writer"},
	{"TENSORS", COLUMN_U64, INFO(n_tensors), .help = "tensors of the current version",
	 .shown = true},
	{"SIZE", COLUMN_SIZE, INFO(n_bytes), .help = "size of the current version", .shown = true},
	{"READERS", COLUMN_U32, INFO(n_readers), .help = "attachments, of all versions",
	 .shown = true},
	{"AGE", COLUMN_AGE, INFO(published_ns),
	 .help = "time since the current version was published", .shown = true},
	{"PUBLISHED", COLUMN_TIME, INFO(published_ns), .help = "the same as a date (UTC)"},
	{"KEPT", COLUMN_U32, INFO(n_versions), .help = "versions that exist"},
	{"KEEP", COLUMN_U32, INFO(keep), .help = "versions to keep, the newest included"},
	{"MEMORY", COLUMN_SIZE, INFO(slot_bytes), .help = "memory of all versions"},
	{"HUGE", COLUMN_SIZE, INFO(huge_bytes), .help = "part of it in huge pages"},
	{"USER", COLUMN_WORD, .word = ls_user, .help = "owner"},
	{"UID", COLUMN_U32, INFO(uid), .help = "the same as a number"},
	{"GROUP", COLUMN_WORD, .word = ls_group, .help = "group"},
	{"GID", COLUMN_U32, INFO(gid), .help = "the same as a number"},
	{"MODE", COLUMN_MODE, INFO(mode), .help = "permissions"},
	{"LAYOUT", COLUMN_HASH, INFO(layout_hash), .help = "hash of the current version's layout"},
	{"DIGEST", COLUMN_DIGEST, INFO(digest), .help = "digest of the current version's bytes"},
	{},
};

/* Why a person sees no line: `n_listed` buffers are on other devices, and the list leaves out some. */
static int explain_nothing(struct cli *cli, size_t n_listed)
{
	struct weightd_server server = {.size = sizeof(server)};
	int r;

	r = weightd_ping(cli->w, &server);
	if (r < 0)
		return cli_fail(cli, r);
	(void)fputs("no buffers", stderr);
	if (cli->device)
		(void)fprintf(stderr, " on %s", device_short(cli, cli->device));
	if (cli->owner)
		(void)fprintf(stderr, " of user %s", user_name(*cli->owner));
	if (n_listed)
		(void)fprintf(stderr, "; %zu %s", n_listed,
			      !cli->owner   ? "on other devices"
			      : cli->device ? "on other devices, or of other users"
					    : "of other users");
	if (server.n_buffers > n_listed)
		(void)fprintf(stderr, "; %" PRIu64 " that you may not read",
			      server.n_buffers - n_listed);
	(void)fputc('\n', stderr);
	return 0;
}

static size_t print_buffers(struct cli *cli, struct table *table, const struct weightd_list *list)
{
	const struct weightd_buffer_info *info;
	size_t n_rows = 0;

	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++) {
		struct weightd_buffer_info row = *info;

		if (cli->device && strcmp(info->device, cli->device))
			continue;
		if (cli->owner && *cli->owner != info->uid)
			continue;
		if (!cli->format.json)
			row.device = device_short(cli, info->device);
		table_row(table, &row);
		n_rows++;
	}
	return n_rows;
}

static int ls_print(struct cli *cli, struct table *table, const struct weightd_list *buffers,
		    const struct weightd_list *jobs)
{
	const size_t n_jobs = ls_jobs_count(cli, jobs);
	struct json json = {.file = stdout};
	size_t n_rows;
	int r;

	if (cli->format.json)
		json_open(&json, NULL, '{');
	table_begin(table, &json, "buffers");
	n_rows = print_buffers(cli, table, buffers);
	r = table_end(table);
	if (!r && !cli->format.json && n_rows && n_jobs)
		(void)putchar('\n');
	if (!r && (cli->format.json || n_jobs))
		r = ls_jobs_print(cli, &json, jobs);
	if (cli->format.json)
		json_close(&json, '}');
	else if (!r && n_rows + n_jobs == 0 && isatty(STDOUT_FILENO))
		r = explain_nothing(cli, weightd_list_count(buffers));
	return r;
}

/* A script that names columns, or wants no headings, reads lines of buffers. */
static bool shows_jobs(const struct cli *cli)
{
	if (cli->device && strcmp(cli->device, "host") != 0)
		return false;
	return cli->format.json || (!cli->format.columns && !cli->format.noheadings);
}

static int ls_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		OPTIONS_DEVICE, OPTIONS_OWNER, OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(cli_list_freep) struct weightd_list *buffers = NULL, *jobs = NULL;
	cleanup(table_deinit) struct table table = {};
	int r;

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind > 0)
		cli_usage(cli, "'ls' takes no arguments; 'show' shows one buffer");
	table_init(&table, &cli->format, ls_columns);
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_list(cli->w, NULL, &buffers);
	if (r < 0)
		return cli_fail(cli, r);
	if (shows_jobs(cli) && ls_jobs_fetch(cli, &jobs))
		return EXIT_FAILED;
	return ls_print(cli, &table, buffers, jobs);
}

const struct verb verb_ls = {
	.name = "ls",
	.args = "",
	.summary = "List the buffers, and the jobs of training runs",
	.options = HELP_TABLE
	"     --device DEVICE    only buffers on this device: host, cuda:0\n"
	"     --owner USER       only buffers and jobs of this user, by name or uid\n",
	.columns = ls_columns,
	.run = ls_run,
};
