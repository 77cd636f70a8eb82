/*
 * weightctl trace attached: list the present attachments of processes, as observed by weightd-trace
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/verb.h"

struct attachment {
	const char *buffer, *device, *comm;
	uint64_t version, bytes, lease, realtime_ns;
	uint32_t pid, uid, weightd; /* UINT32_MAX: unknown */
};

#define ATTACHMENT(member) offsetof(struct attachment, member)

static const char *trace_attached_user(const void *row, bool json)
{
	const struct attachment *a = row;

	(void)json;
	return a->uid == UINT32_MAX ? NULL : user_name(a->uid);
}

static const struct column columns[] = {
	{"BUFFER", COLUMN_TEXT, ATTACHMENT(buffer), .help = "its name", .shown = true, .cut = true,
	 .width = 0.3},
	{"VERSION", COLUMN_VERSION, ATTACHMENT(version), .help = "attached version", .shown = true},
	{"DEVICE", COLUMN_TEXT, ATTACHMENT(device), .help = "device of the memory", .shown = true,
	 .cut = true, .width = 6},
	{"SIZE", COLUMN_COUNTED, ATTACHMENT(bytes), .help = "size of the version", .shown = true},
	{"PID", COLUMN_INDEX, ATTACHMENT(pid), .help = "process that has it", .shown = true},
	{"PROCESS", COLUMN_TEXT, ATTACHMENT(comm), .help = "its name", .shown = true, .cut = true,
	 .width = 8},
	{"USER", COLUMN_WORD, .word = trace_attached_user, .help = "its user", .shown = true,
	 .cut = true, .width = 0.1},
	{"UID", COLUMN_INDEX, ATTACHMENT(uid), .help = "the same as a number"},
	{"AGE", COLUMN_AGE, ATTACHMENT(realtime_ns), .help = "time since it was attached",
	 .shown = true},
	{"TIME", COLUMN_TIME, ATTACHMENT(realtime_ns), .help = "likewise (UTC)"},
	{"LEASE", COLUMN_VERSION, ATTACHMENT(lease), .help = "weightd's number of it"},
	{"WEIGHTD", COLUMN_INDEX, ATTACHMENT(weightd), .help = "process of the weightd"},
	{},
};

static struct attachment attachment_of(const json_t *row)
{
	return (struct attachment){
		.buffer = json_field_text(row, "buffer"),
		.device = json_field_text(row, "device"),
		.comm = json_field_text(row, "comm"),
		.version = json_field_number(row, "version", 0),
		.bytes = json_field_number(row, "bytes", UINT64_MAX),
		.lease = json_field_number(row, "lease", 0),
		.realtime_ns = json_field_moment(row, "ns"),
		.pid = json_field_id(row, "pid"),
		.uid = json_field_id(row, "uid"),
		.weightd = json_field_id(json_object_get(row, "weightd"), "pid"),
	};
}

static int trace_attached_print(const struct cli *cli, struct table *table, const json_t *rows)
{
	struct json json = {.file = stdout};
	uint64_t n_lost = 0, n = 0;
	const json_t *row;
	size_t i;
	int r;

	if (cli->format.json)
		json_open(&json, NULL, '{');
	table_begin(table, &json, "attached");
	json_array_foreach(rows, i, row)
	{
		const struct attachment one = attachment_of(row);

		if (json_field_is_kind(row, "attached")) {
			table_row(table, &one);
			n++;
		} else if (json_field_is_kind(row, "gap")) {
			n_lost = json_field_number(row, "lost", 0);
		}
	}
	r = table_end(table);
	if (cli->format.json) {
		json_put_number(&json, "lost", n_lost);
		json_close(&json, '}');
	} else if (n_lost) {
		(void)fprintf(stderr,
			      "weightctl: %" PRIu64 " more were not seen to attach or detach\n",
			      n_lost);
	} else if (!n) {
		(void)fputs("weightctl: nothing that was attached since weightd-trace was started "
			    "is attached now\n",
			    stderr);
	}
	return r;
}

static int trace_attached_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_TABLE, OPTIONS_TRACER, {}};

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	return control_client_show(cli, argc, json_pack("{s:s}", "op", "attached"),
				   trace_attached_print);
}

const struct verb verb_trace_attached = {
	.name = "trace attached",
	.args = "",
	.summary = "Show present attachments",
	.options = HELP_TABLE,
	.columns = columns,
	.peer = PEER_TRACER,
	.run = trace_attached_run,
};
