/*
 * The connection to weightd. It is made once the arguments are understood, so that a wrong one costs no connection.
 */
#include "libclient/weightctl/server.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"

#define RETRY_MS 10

/* The failures to connect that pass once a server has started. */
static bool nobody_there(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

int server_connect(struct cli *cli)
{
	return server_connect_within(cli, 0);
}

int server_connect_within(struct cli *cli, int timeout_ms)
{
	uint64_t deadline_ns = clock_now_ns() + (uint64_t)timeout_ms * 1000000;
	int r;

	r = weightd_new(&cli->w);
	if (r < 0)
		return cli_error("%s", strerror(-r));
	/* No event announces that a socket has a listener: inotify reports its file, which exists before. */
	while (nobody_there(r = weightd_connect(cli->w, cli->socket)) && clock_now_ns() < deadline_ns)
		(void)poll(NULL, 0, RETRY_MS);
	if (r >= 0)
		return device_resolve(cli);
	return cli_fail(cli, r);
}

int server_print_version(struct cli *cli, const char *name, uint64_t version)
{
	struct said {
		const char *name;
		const char *device;
		uint64_t version;
	} said = {name, cli_device(cli), version};
	static const struct column columns[] = {
		COLUMN("NAME", COLUMN_TEXT, offsetof(struct said, name)),
		COLUMN("DEVICE", COLUMN_TEXT, offsetof(struct said, device)),
		COLUMN("VERSION", COLUMN_U64, offsetof(struct said, version)),
		{},
	};

	if (cli->format.json)
		column_json_object(columns, &said);
	else
		(void)printf("%s@%" PRIu64 " on %s\n", said.name, said.version,
			     device_short(cli, said.device));
	return 0;
}

int server_attach(struct cli *cli, const struct target *target, struct weightd_buffer **ret)
{
	const struct weightd_attach_options options = {
		.size = sizeof(options),
		.device = cli->device,
		.version = target->version,
		.owner = cli->owner,
	};
	int r;

	r = weightd_attach(cli->w, target->name, &options, ret);
	return r < 0 ? absent_version(cli, target->name, target->version, r) : 0;
}

/* The number of the current version; 0: the buffer is missing or has none, which the next request reports. */
static uint64_t current_version(struct cli *cli, const char *name)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	const struct weightd_buffer_info *info;

	if (weightd_list(cli->w, name, &list) < 0)
		return 0;
	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++)
		if (!strcmp(info->device, cli_device(cli)))
			return info->version;
	return 0;
}

int server_files(struct cli *cli, struct target *target, struct weightd_files **ret)
{
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	int r;

	/* Its lease makes sure that the files are those of this buffer, and of no later one with its name. */
	if (cli->owner && server_attach(cli, target, &b))
		return EXIT_FAILED;
	if (b)
		target->version = weightd_buffer_version(b);
	if (!target->version)
		target->version = current_version(cli, target->name);
	r = weightd_files_get(cli->w, target->name, cli->device, target->version, ret);
	return r < 0 ? absent_version(cli, target->name, target->version, r) : 0;
}

void server_put_attributes(const struct weightd_files *files, struct json *json)
{
	const char *key, *value;

	json_open(json, "attributes", '{');
	for (size_t i = 0; files && weightd_files_attribute(files, i, &key, &value) >= 0; i++)
		json_put_string(json, key, value);
	json_close(json, '}');
}
