/*
 * weightctl stat: print the use of memory.
 *
 * First the server as a whole, then the slots, each with the memory of one version, and with --users the charges of
 * each user.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/stat_costs.h"
#include "libclient/weightctl/verbs/stat_holders.h"

enum {
	OPTION_USERS = OPTION_OWN,
};

#define STAT(member) offsetof(struct weightd_stat, member)

static const struct column totals[] = {
	COLUMN("HEADROOM", COLUMN_SIZE, STAT(headroom)),
	COLUMN("MEMORY", COLUMN_SIZE, STAT(slot_bytes)),
	COLUMN("KEPT", COLUMN_SIZE, STAT(kept_bytes)),
	COLUMN("LEAVING", COLUMN_SIZE, STAT(leaving_bytes)),
	COLUMN("ORPHANS", COLUMN_SIZE, STAT(orphan_bytes)),
	COLUMN("LAYOUTS", COLUMN_SIZE, STAT(layout_bytes)),
	COLUMN("QUARANTINED", COLUMN_U64, STAT(n_quarantined)),
	COLUMN("STORE", COLUMN_USED, STAT(store_used)), /* and store_max */
	{},
};

struct slot {
	struct weightd_slot_info info;
	uint64_t huge[2]; /* bytes, of all; UINT64_MAX: it is not the host's memory */
};

#define SLOT(member) offsetof(struct slot, info.member)

static const char *slot_state(const void *row, bool json)
{
	static const char *const names[] = {
		[WEIGHTD_SLOT_WRITING] = "writing", [WEIGHTD_SLOT_CURRENT] = "current",
		[WEIGHTD_SLOT_KEPT] = "kept",       [WEIGHTD_SLOT_LEAVING] = "leaving",
		[WEIGHTD_SLOT_ORPHAN] = "orphan",
	};
	const struct slot *slot = row;
	size_t state = slot->info.state;

	(void)json;
	return state < sizeof(names) / sizeof(*names) ? names[state] : NULL;
}

static const char *slot_user(const void *row, bool json)
{
	const struct slot *slot = row;

	(void)json;
	return user_name(slot->info.uid);
}

static const struct column slots[] = {
	{"NAME", COLUMN_TEXT, SLOT(name), .help = "name of the buffer, also after it was removed",
	 .shown = true, .cut = true, .width = 0.2},
	{"DEVICE", COLUMN_TEXT, SLOT(device), .help = "device of the memory", .shown = true,
	 .cut = true, .width = 0.1},
	{"VERSION", COLUMN_VERSION, SLOT(version), .help = "version with these bytes", .shown = true},
	{"STATE", COLUMN_WORD, .word = slot_state,
	 .help = "writing, current, kept, leaving or orphan (see weightctl(1))", .shown = true},
	{"REMOVED", COLUMN_BOOL, SLOT(removed), .help = "the buffer is gone"},
	{"SLOT", COLUMN_U64, SLOT(slot), .help = "number of the slot"},
	{"SIZE", COLUMN_SIZE, SLOT(n_bytes), .help = "size of the slot"},
	{"MEMORY", COLUMN_SIZE, SLOT(allocated), .help = "part of it with memory behind it",
	 .shown = true},
	{"HUGE", COLUMN_SIZE, SLOT(huge_bytes), .help = "part of it in huge pages, when allocated"},
	{"SHARE", COLUMN_PART, offsetof(struct slot, huge),
	 .help = "the same as a share of the slot", .shown = true},
	{"READERS", COLUMN_U32, SLOT(n_readers), .help = "attachments", .shown = true},
	{"USER", COLUMN_WORD, .word = slot_user, .help = "user charged for it", .shown = true,
	 .cut = true, .width = 0.1},
	{"UID", COLUMN_U32, SLOT(uid), .help = "the same as a number"},
	{},
};

static const char *user_user(const void *row, bool json)
{
	const struct weightd_user_info *info = row;

	(void)json;
	return user_name(info->uid);
}

#define USER(member) offsetof(struct weightd_user_info, member)

/* USED reads the limit that stands behind what is used. */
static const struct column users[] = {
	{"USER", COLUMN_WORD, .word = user_user, .shown = true, .cut = true, .width = 0.1},
	COLUMN("UID", COLUMN_U32, USER(uid)),
	{"SESSIONS", COLUMN_USED, USER(n_connections), .shown = true},
	{"READERS", COLUMN_USED, USER(n_readers), .shown = true},
	{"BUFFERS", COLUMN_USED, USER(n_buffers), .shown = true},
	{"VERSIONS", COLUMN_USED, USER(n_versions), .shown = true},
	{"MEMORY", COLUMN_USED_SIZE, USER(n_bytes), .shown = true},
	{"STORED", COLUMN_USED, USER(n_descriptors), .shown = true},
	{},
};

/* All that is asked for, before anything is printed. */
struct memory {
	const char *name; /* NULL: of all buffers */
	bool with_users;
	struct weightd_stat total;
	struct weightd_list *slots;
	struct weightd_list *users;
	struct weightd_list *holders;
	struct weightd_list *costs;
};

static void memory_deinit(struct memory *m)
{
	weightd_list_free(m->slots);
	weightd_list_free(m->users);
	weightd_list_free(m->holders);
	weightd_list_free(m->costs);
}

static int stat_ask(struct cli *cli, struct memory *m)
{
	int r;

	r = weightd_stat(cli->w, &m->total);
	if (r >= 0)
		r = weightd_list_slots(cli->w, m->name, &m->slots);
	if (r >= 0 && m->with_users)
		r = weightd_list_users(cli->w, &m->users);
	if (r >= 0 && m->with_users)
		r = weightd_list_costs(cli->w, &m->costs);
	if (r >= 0)
		r = weightd_list_holders(cli->w, &m->holders);
	if (r < 0)
		return cli_fail(cli, r);
	if (m->name && !weightd_list_count(m->slots))
		return cli_error("there is no memory of a buffer '%s'; %s", m->name,
				 absent_hint(cli, m->name));
	return 0;
}

static int print_slots(struct cli *cli, struct table *table, struct json *json,
		       const struct weightd_list *list)
{
	const struct weightd_slot_info *info;

	table_begin(table, json, "slots");
	for (size_t i = 0; (info = weightd_list_slot(list, i)); i++) {
		struct slot slot = {.info = *info, .huge = {info->huge_bytes, info->n_bytes}};

		if (!cli->format.json)
			slot.info.device = device_short(cli, info->device);
		if (strcmp(info->device, "host") != 0)
			slot.huge[0] = UINT64_MAX;
		table_row(table, &slot);
	}
	return table_end(table);
}

/* -o is about the slots. */
static int print_users(const struct cli *cli, struct json *json, const struct weightd_list *list)
{
	cleanup(table_deinit) struct table table = {};
	const struct weightd_user_info *info;
	struct table_format usual = cli->format;

	usual.columns = NULL;
	table_init(&table, &usual, users);
	table_begin(&table, json, "users");
	for (size_t i = 0; (info = weightd_list_user(list, i)); i++)
		table_row(&table, info);
	return table_end(&table);
}

static int stat_print(struct cli *cli, struct table *table, const struct memory *m)
{
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		column_json_all(totals, &m->total, &json);
	} else {
		column_text_all(totals, &m->total, cli->format.bytes, stdout);
		if (weightd_list_count(m->slots))
			(void)fputc('\n', stdout);
	}
	r = print_slots(cli, table, &json, m->slots);
	if (!r && m->with_users) {
		if (!cli->format.json)
			(void)fputc('\n', stdout);
		r = print_users(cli, &json, m->users);
	}
	if (!r && m->with_users)
		r = stat_costs_print(cli, &json, m->costs);
	if (!r)
		r = stat_holders_print(cli, &json, m->holders, m->with_users);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

static int stat_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"users", no_argument, NULL, OPTION_USERS},
		OPTIONS_TABLE,
		OPTIONS_COMMON,
		{},
	};
	cleanup(memory_deinit) struct memory m = {.total = {.size = sizeof(m.total)}};
	cleanup(table_deinit) struct table table = {};

	while (cli_option(cli, argc, argv, LETTERS_TABLE, longs) >= 0)
		m.with_users = true;
	if (argc - optind > 1)
		cli_usage(cli, "'stat' wants one name at most");
	if (argc - optind == 1)
		m.name = cli_name(cli, argv[optind]);
	m.with_users |= cli->format.json;
	table_init(&table, &cli->format, slots);
	if (server_connect(cli) || stat_ask(cli, &m))
		return EXIT_FAILED;
	return stat_print(cli, &table, &m);
}

const struct verb verb_stat = {
	.name = "stat",
	.args = "[NAME]",
	.summary = "Show the use of memory, by all buffers or by one",
	.options = "     --users            use, limits and costs of users\n" HELP_TABLE,
	.columns = slots,
	.run = stat_run,
};
