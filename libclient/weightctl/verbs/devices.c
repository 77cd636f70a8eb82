/*
 * weightctl devices: list the devices for buffers, with the reason for each that cannot be used.
 *
 * The table fits a terminal. The UUID of a GPU and the sentence about one that cannot be used do not fit into it, and
 * follow below.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

/* One row: people see the short name, programs the UUID, which is the same in every process. */
struct device {
	struct weightd_device_info info;
	const char *shown;
	uint32_t index; /* UINT32_MAX: none */
};

#define INFO(member) offsetof(struct device, info.member)

/* "vmm,ipc,rdma". Valid until the next call. */
static const char *devices_supports(const void *row, bool json)
{
	static char text[32];
	const struct weightd_device_info *info = &((const struct device *)row)->info;

	(void)json;
	(void)snprintf(text, sizeof(text), "%s%s%s%s", info->vmm ? ",vmm" : "",
		       info->ipc ? ",ipc" : "", info->fabric ? ",fabric" : "",
		       info->rdma ? ",rdma" : "");
	return *text ? text + 1 : NULL;
}

/* "13.0" of 13000. Valid until the next call. */
static const char *devices_driver(const void *row, bool json)
{
	static char text[32];
	const struct weightd_device_info *info = &((const struct device *)row)->info;

	(void)json;
	if (!info->driver)
		return NULL;
	(void)snprintf(text, sizeof(text), "%" PRIu32 ".%" PRIu32, info->driver / 1000,
		       info->driver % 1000 / 10);
	return text;
}

/* "9.0" of 90. Valid until the next call. */
static const char *devices_capability(const void *row, bool json)
{
	static char text[32];
	const struct weightd_device_info *info = &((const struct device *)row)->info;

	(void)json;
	if (!info->capability)
		return NULL;
	(void)snprintf(text, sizeof(text), "%" PRIu32 ".%" PRIu32, info->capability / 10,
		       info->capability % 10);
	return text;
}

/* "GPU-8e2a4d5c-..." of "cuda:GPU-8e2a4d5c-...". */
static const char *devices_uuid(const void *row, bool json)
{
	const struct weightd_device_info *info = &((const struct device *)row)->info;
	const char *colon = strchr(info->device, ':');

	(void)json;
	return colon ? colon + 1 : NULL;
}

static const char *devices_why(const void *row, bool json)
{
	const struct weightd_device_info *info = &((const struct device *)row)->info;

	(void)json;
	return *info->why ? info->why : NULL;
}

static const struct column columns[] = {
	{"DEVICE", COLUMN_TEXT, offsetof(struct device, shown),
	 .help = "host, or cuda: and a number", .shown = true},
	{"NAME", COLUMN_TEXT, INFO(name), .help = "model of the device", .shown = true, .cut = true,
	 .width = 0.3},
	{"TOTAL", COLUMN_SIZE, INFO(total), .help = "its memory", .shown = true},
	{"FREE", COLUMN_SIZE, INFO(free), .help = "free part of it", .shown = true},
	{"OURS", COLUMN_SIZE, INFO(ours), .help = "part of it in slots of weightd", .shown = true},
	{"SUPPORTS", COLUMN_WORD, .word = devices_supports,
	 .help = "vmm, ipc, fabric, rdma: see below", .shown = true},
	{"UUID", COLUMN_WORD, .word = devices_uuid,
	 .help = "UUID, behind cuda: a name for every process"},
	{"INDEX", COLUMN_INDEX, offsetof(struct device, index), .help = "its number for nvidia-smi"},
	{"GRANULARITY", COLUMN_SIZE, INFO(granularity), .help = "memory comes in multiples of it"},
	{"VMM", COLUMN_BOOL, INFO(vmm), .help = "buffers can be made there"},
	{"IPC", COLUMN_BOOL, INFO(ipc),
	 .help = "also such that are opened by cudaIpcOpenMemHandle()"},
	{"FABRIC", COLUMN_BOOL, INFO(fabric), .help = "other nodes reach it over NVLink"},
	{"RDMA", COLUMN_BOOL, INFO(rdma), .help = "network cards reach it"},
	{"MIG", COLUMN_BOOL, INFO(mig), .help = "a part of a GPU"},
	{"DRIVER", COLUMN_WORD, .word = devices_driver, .help = "newest CUDA release of the driver"},
	{"CAPABILITY", COLUMN_WORD, .word = devices_capability, .help = "compute capability"},
	{"WHY", COLUMN_WORD, .word = devices_why, .help = "reason if it cannot be used"},
	{},
};

static void device_say(const char *device, const char *is, const char *text)
{
	escape_name(stdout, device);
	(void)fputs(is, stdout);
	escape_text(stdout, text);
	(void)fputc('\n', stdout);
}

/* Below the table: what does not fit into it. */
static void print_sentences(struct cli *cli, const struct weightd_list *list)
{
	const struct weightd_device_info *info;
	bool any = false;

	for (size_t i = 0; (info = weightd_list_device(list, i)); i++) {
		const char *name = device_short(cli, info->device);

		if ((strcmp(name, info->device) || *info->why) && !any)
			any = fputc('\n', stdout) != EOF;
		if (strcmp(name, info->device))
			device_say(name, info->mig ? " is a part of a GPU, " : " is ", info->device);
		if (*info->why)
			device_say(name, ": ", info->why);
	}
}

static int devices_print(struct cli *cli, struct table *table, const struct weightd_list *list)
{
	struct json json = {.file = stdout};
	const struct weightd_device_info *info;
	int r;

	if (cli->format.json)
		json_open(&json, NULL, '{');
	table_begin(table, &json, "devices");
	for (size_t i = 0; (info = weightd_list_device(list, i)); i++) {
		const struct device row = {
			.info = *info,
			.shown = cli->format.json ? info->device : device_short(cli, info->device),
			.index = strchr(info->device, ':') ? info->index : UINT32_MAX,
		};

		if (cli->format.json ||
		    strcmp(info->device, "cuda")) /* not a device: the row has only a reason */
			table_row(table, &row);
	}
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	else if (!r && !cli->format.columns && !cli->format.noheadings)
		print_sentences(cli, list);
	return r;
}

static int devices_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(table_deinit) struct table table = {};
	const struct weightd_list *list;
	int r;

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind > 0)
		cli_usage(cli, "'devices' takes no arguments");
	table_init(&table, &cli->format, columns);
	if (server_connect(cli))
		return EXIT_FAILED;
	r = device_list(cli, true, &list);
	return r < 0 ? cli_fail(cli, r) : devices_print(cli, &table, list);
}

const struct verb verb_devices = {
	.name = "devices",
	.args = "",
	.summary = "List the devices for buffers: the host, and each GPU",
	.options = HELP_TABLE,
	.columns = columns,
	.run = devices_run,
};
