#include "libclient/weightctl/verbs/stat_holders.h"

#include <stddef.h>
#include <stdio.h>

#include "libclient/weightctl/output/service.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"

#define HOLDER(member) offsetof(struct weightd_holder_info, member)

static const char *holder_user(const void *row, bool json)
{
	const struct weightd_holder_info *info = row;

	(void)json;
	return user_name(info->uid);
}

static const char *holder_unit(const void *row, bool json)
{
	const struct weightd_holder_info *info = row;

	(void)json;
	return service_unit(info->pid);
}

static const char *holder_slice(const void *row, bool json)
{
	const struct weightd_holder_info *info = row;

	(void)json;
	return service_slice(info->pid);
}

static const struct column columns[] = {
	{"HOLDER", COLUMN_WORD, .word = holder_user, .shown = true, .cut = true, .width = 0.1},
	COLUMN("UID", COLUMN_U32, HOLDER(uid)),
	{"HELD", COLUMN_USED_SIZE, HOLDER(n_bytes), .shown = true},
	{"VERSIONS", COLUMN_U32, HOLDER(n_versions), .shown = true},
	{"OVER", COLUMN_BOOL, HOLDER(over), .shown = true},
	{"OLDEST", COLUMN_TEXT, HOLDER(name), .shown = true, .cut = true, .width = 0.2},
	{"DEVICE", COLUMN_TEXT, HOLDER(device), .shown = true, .cut = true, .width = 0.1},
	{"VERSION", COLUMN_VERSION, HOLDER(version), .shown = true},
	{"PID", COLUMN_U32, HOLDER(pid), .shown = true},
	{"UNIT", COLUMN_WORD, .word = holder_unit, .shown = true, .cut = true, .width = 0.2},
	{"SLICE", COLUMN_WORD, .word = holder_slice},
	{"SINCE", COLUMN_AGE, HOLDER(since_ns), .shown = true},
	{},
};

int stat_holders_print(const struct cli *cli, struct json *json, const struct weightd_list *list,
		       bool all)
{
	cleanup(table_deinit) struct table table = {};
	const struct weightd_holder_info *info;
	struct table_format usual = cli->format;
	bool any = cli->format.json;

	for (size_t i = 0; (info = weightd_list_holder(list, i)); i++)
		any |= all || info->over;
	if (!any)
		return 0;
	if (!cli->format.json)
		(void)fputc('\n', stdout);
	usual.columns = NULL; /* -o is about the slots */
	table_init(&table, &usual, columns);
	table_begin(&table, json, "holders");
	for (size_t i = 0; (info = weightd_list_holder(list, i)); i++)
		if (cli->format.json || all || info->over)
			table_row(&table, info);
	return table_end(&table);
}
