/*
 * weightctl show: print one buffer with all its attributes, and its versions.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/form.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

/* A version and its buffer. */
struct show_row {
	struct weightd_version_info version;
	const struct weightd_buffer_info *buffer;
};

#define INFO(member) offsetof(struct show_row, version.member)

static const char *show_user(const void *row, bool json)
{
	const struct show_row *r = row;

	(void)json;
	return user_name(r->version.uid);
}

static const char *show_form(const void *row, bool json)
{
	const struct show_row *r = row;

	(void)json;
	return version_form(&r->version);
}

static const char *show_why(const void *row, bool json)
{
	const struct show_row *r = row;

	(void)json;
	return version_form_why(r->buffer, &r->version);
}

static const struct column columns[] = {
	{"VERSION", COLUMN_VERSION, INFO(version), .help = "number of the version", .shown = true},
	{"CURRENT", COLUMN_BOOL, INFO(current), .help = "the version that attach returns",
	 .shown = true},
	{"TENSORS", COLUMN_U64, INFO(n_tensors), .help = "number of tensors", .shown = true},
	{"SIZE", COLUMN_SIZE, INFO(n_bytes), .help = "size of its flat range", .shown = true},
	{"READERS", COLUMN_U32, INFO(n_readers), .help = "attachments", .shown = true},
	{"AGE", COLUMN_AGE, INFO(published_ns), .help = "time since it was published", .shown = true},
	{"PUBLISHED", COLUMN_TIME, INFO(published_ns), .help = "the same as a date (UTC)"},
	{"MEMORY", COLUMN_SIZE, INFO(slot_bytes), .help = "memory it takes", .shown = true},
	{"HUGE", COLUMN_SIZE, INFO(huge_bytes), .help = "part of it in huge pages", .shown = true},
	{"USER", COLUMN_WORD, .word = show_user, .help = "user that published it", .shown = true,
	 .cut = true, .width = 0.1},
	{"UID", COLUMN_U32, INFO(uid), .help = "the same as a number"},
	{"FORM", COLUMN_WORD, .word = show_form,
	 .help = "image: it is a file; flat: its digests are behind its bytes", .shown = true},
	{"WHY", COLUMN_WORD, .word = show_why, .help = "reason if it is no file", .shown = true},
	{"LAYOUT", COLUMN_HASH, INFO(layout_hash), .help = "hash of its layout"},
	{"DIGEST", COLUMN_DIGEST, INFO(digest), .help = "digest of its bytes"},
	{},
};

/* Those of the current version, whose writer chose the text. */
static void print_attributes(const struct weightd_files *files)
{
	const char *key, *value;
	int width = 0;

	for (size_t i = 0; weightd_files_attribute(files, i, &key, &value) >= 0; i++)
		if ((int)strlen(key) > width)
			width = (int)strlen(key);
	if (width)
		(void)fputc('\n', stdout);
	for (size_t i = 0; weightd_files_attribute(files, i, &key, &value) >= 0; i++) {
		(void)printf("%-*s  ", width, key);
		escape_text(stdout, value);
		(void)fputc('\n', stdout);
	}
}

/* NULL: it has none, the server is older, or they cannot be read: the rest is shown without. */
static struct weightd_files *find_attributes(struct cli *cli, const struct weightd_buffer_info *info)
{
	struct weightd_files *files;

	if (!info->version ||
	    weightd_files_get(cli->w, info->name, info->device, info->version, &files) < 0)
		return NULL;
	return files;
}

static int show_print(struct cli *cli, struct table *table, const struct weightd_buffer_info *info,
		      const struct weightd_list *versions)
{
	cleanup(server_files_freep) struct weightd_files *files = find_attributes(cli, info);
	struct weightd_buffer_info row = *info;
	struct json json = {.file = stdout};
	const struct weightd_version_info *version;
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		column_json_all(ls_columns, info, &json);
		server_put_attributes(files, &json);
	} else {
		row.device = device_short(cli, info->device);
		column_text_all(ls_columns, &row, cli->format.bytes, stdout);
		if (files)
			print_attributes(files);
		if (weightd_list_count(versions))
			(void)fputc('\n', stdout);
	}
	table_begin(table, &json, "versions");
	for (size_t i = 0; (version = weightd_list_version(versions, i)); i++)
		table_row(table, &(struct show_row){*version, info});
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

/* The buffer on the device asked for. */
static const struct weightd_buffer_info *show_find(const struct weightd_list *list,
						   const char *device)
{
	const struct weightd_buffer_info *info;

	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++)
		if (!strcmp(info->device, device))
			return info;
	return NULL;
}

static int show_buffer(struct cli *cli, struct table *table, const char *name)
{
	cleanup(cli_list_freep) struct weightd_list *buffers = NULL, *versions = NULL;
	const struct weightd_buffer_info *info;
	int r;

	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_list(cli->w, name, &buffers);
	if (r < 0)
		return cli_fail(cli, r);
	info = show_find(buffers, cli_device(cli));
	if (info && !cli_owns(cli, name, info->uid))
		return EXIT_FAILED;
	r = weightd_list_versions(cli->w, name, cli->device, &versions);
	if (r >= 0 && info)
		return show_print(cli, table, info, versions);
	/* The list leaves out what may not be read, and what was removed after it was there. */
	return absent_buffer(cli, name, r < 0 ? r : -ENOENT);
}

static int show_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		OPTIONS_DEVICE, OPTIONS_OWNER, OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(table_deinit) struct table table = {};

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind != 1)
		cli_usage(cli, "'show' wants one name");
	table_init(&table, &cli->format, columns);
	return show_buffer(cli, &table, cli_name(cli, argv[optind]));
}

const struct verb verb_show = {
	.name = "show",
	.args = "NAME",
	.summary = "Show a buffer and its versions",
	.options = HELP_TABLE HELP_DEVICE HELP_OWNER,
	.columns = columns,
	.run = show_run,
};
