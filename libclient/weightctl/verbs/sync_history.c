/*
 * weightctl sync history: what was pushed and repaired, and how it ended.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/verb.h"

#define COUNT 20
#define COUNT_MAX 256 /* as many as an agent remembers */

struct past {
	const char *sync;
	const char *kind;
	const char *buffer;
	const char *group;
	const char *state;
	const char *phase;
	const char *by;
	const char *why;
	struct sync_version version;
	struct sync_share share;
	uint64_t n_nodes;
	uint64_t planned, payload; /* UINT64_MAX: unknown */
	uint64_t bytes, kernel; /* the same on the wire */
	uint64_t traced; /* the same as weightd-trace saw it */
	uint64_t n_untraced; /* receptions that are in `bytes` and not in `traced` */
	uint64_t n_broken; /* attempts that the numbers of bytes omit */
	uint64_t started_ns;
	uint64_t ended_ns;
	uint64_t took_ns; /* UINT64_MAX: unknown */
};

#define PAST(member) offsetof(struct past, member)

static const char *sync_history_version(const void *row, bool json)
{
	(void)json;
	return sync_version_text(((const struct past *)row)->version);
}

static const struct column columns[] = {
	{"SYNC", COLUMN_TEXT, PAST(sync), .help = "its name", .shown = true, .cut = true, .width = 8},
	{"KIND", COLUMN_TEXT, PAST(kind),
	 .help = "push, average, reshard, or repair of a node that was behind", .shown = true},
	{"BUFFER", COLUMN_TEXT, PAST(buffer), .help = "name of the buffer", .shown = true,
	 .cut = true, .width = 0.2},
	{"GROUP", COLUMN_TEXT, PAST(group), .help = "group of nodes"},
	{"VERSION", COLUMN_WORD, .word = sync_history_version,
	 .help = "TERM.NUMBER, the same on every node", .shown = true},
	{"TERM", COLUMN_VERSION, PAST(version.term), .help = "grows with each change of publisher"},
	{"NUMBER", COLUMN_VERSION, PAST(version.number), .help = "grows with each push"},
	{"STATE", COLUMN_TEXT, PAST(state), .help = "committed, failed or planned", .shown = true},
	{"NODES", COLUMN_U64, PAST(n_nodes), .help = "nodes that took part", .shown = true},
	{"BYTES", COLUMN_COUNTED, PAST(bytes), .help = "on the wire, as the nodes counted them",
	 .shown = true},
	{"SIZE", COLUMN_COUNTED, PAST(share.size), .help = "bytes of the version"},
	{"CHANGED", COLUMN_COUNTED, PAST(share.changed), .help = "bytes in parts that differ"},
	{"PATCH", COLUMN_COUNTED, PAST(share.patch), .help = "bytes sent instead of those"},
	{"DIFFER", COLUMN_COUNTED, PAST(share.differ), .help = "bytes of elements that differed"},
	{"BY", COLUMN_TEXT, PAST(by), .help = "form of the bytes sent: full, leaves or patch"},
	{"SHARE", COLUMN_PART, PAST(share.travelled), .help = "part of SIZE that was sent",
	 .shown = true},
	{"DENSITY", COLUMN_PART, PAST(share.differed),
	 .help = "part of SIZE that differed, by elements"},
	{"KERNEL", COLUMN_COUNTED, PAST(kernel), .help = "BYTES, as the kernels of the nodes did"},
	{"PAYLOAD", COLUMN_COUNTED, PAST(payload), .help = "BYTES, without what TLS adds"},
	{"PLANNED", COLUMN_COUNTED, PAST(planned), .help = "PAYLOAD, before any of it moved"},
	{"TRACED", COLUMN_COUNTED, PAST(traced), .help = "BYTES again, as weightd-trace saw them"},
	{"UNTRACED", COLUMN_U64, PAST(n_untraced),
	 .help = "receptions in BYTES that are not in TRACED"},
	{"BROKEN", COLUMN_U64, PAST(n_broken),
	 .help = "attempts broken or cut short; their bytes are in none of these"},
	{"STARTED", COLUMN_TIME, PAST(started_ns), .help = "start (UTC)"},
	{"ENDED", COLUMN_TIME, PAST(ended_ns), .help = "end (UTC)"},
	{"AGE", COLUMN_AGE, PAST(ended_ns), .help = "time since it ended", .shown = true},
	{"TOOK", COLUMN_DURATION, PAST(took_ns), .help = "from beginning to end", .shown = true},
	{"PHASE", COLUMN_TEXT, PAST(phase), .help = "phase of a failure"},
	{"WHY", COLUMN_TEXT, PAST(why), .help = "reason of a failure; below the table, too"},
	{},
};

/* How many, or a list of them. */
static uint64_t count_of(const json_t *o, const char *key)
{
	const json_t *list = json_object_get(o, key);

	return json_is_array(list) ? json_array_size(list) : json_field_number(o, key, 0);
}

static struct past past_of(const json_t *row)
{
	struct past p = {
		.sync = json_field_text(row, "sync"),
		.kind = json_field_text(row, "kind"),
		.buffer = json_field_text(row, "buffer"),
		.group = json_field_text(row, "group"),
		.state = json_field_text(row, "state"),
		.phase = json_field_text(row, "phase"),
		.why = json_field_text(row, "why"),
		.version = sync_version_of(row),
		.share = sync_share_of(row),
		.by = json_field_text(row, "by"),
		.n_nodes = count_of(row, "nodes"),
		.planned = json_field_number(row, "planned", UINT64_MAX),
		.payload = json_field_number(row, "payload", UINT64_MAX),
		.bytes = json_field_number(row, "bytes", UINT64_MAX),
		.kernel = json_field_number(row, "kernel", UINT64_MAX),
		.traced = json_field_number(row, "traced", UINT64_MAX),
		.n_untraced = json_field_number(row, "untraced", 0),
		.n_broken = json_field_number(row, "broken", 0),
		.started_ns = json_field_number(row, "started_ns", 0),
		.ended_ns = json_field_number(row, "ended_ns", 0),
		.took_ns = UINT64_MAX,
	};

	if (p.started_ns && p.ended_ns >= p.started_ns)
		p.took_ns = p.ended_ns - p.started_ns;
	return p;
}

static int sync_history_print(const struct cli *cli, struct table *table, const json_t *rows)
{
	struct json json = {.file = stdout};
	bool any = false;
	const json_t *row;
	size_t i;
	int r;

	if (cli->format.json)
		json_open(&json, NULL, '{');
	table_begin(table, &json, "syncs");
	json_array_foreach(rows, i, row)
	{
		const struct past p = past_of(row);

		table_row(table, &p);
	}
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	if (r || cli->format.json || cli->format.columns || cli->format.noheadings)
		return r;
	json_array_foreach(rows, i, row)
	{
		if (!json_field_text(row, "why"))
			continue;
		if (!any)
			any = fputc('\n', stdout) != EOF;
		sync_say(stdout, json_field_text(row, "sync"), json_field_text(row, "why"));
	}
	return 0;
}

static int sync_history_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"count", required_argument, NULL, 'c'},
		OPTIONS_TABLE,
		OPTIONS_AGENT,
		{},
	};
	uint64_t count = COUNT;

	while (cli_option(cli, argc, argv, LETTERS_TABLE "c:", longs) >= 0)
		count = cli_number(cli, "--count", optarg, 10, 1, COUNT_MAX);
	return control_client_show(cli, argc,
				   json_pack("{s:s, s:I}", "op", "history", "n", (json_int_t)count),
				   sync_history_print);
}

const struct verb verb_sync_history = {
	.name = "sync history",
	.args = "",
	.summary = "Show finished syncs, newest first",
	.options = " -c, --count COUNT      how many of them (20)\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_AGENT,
	.run = sync_history_run,
};
