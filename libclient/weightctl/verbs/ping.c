/*
 * weightctl ping: measure round trips to the server, and print its identity.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

#define COUNT_MAX 1000000
#define WAIT_MS 10000 /* --wait without a number */

enum {
	OPTION_WAIT = OPTION_OWN,
};

struct pong {
	struct weightd_server server;
	const char *socket;
	const char *release;
	const char *program;
	const char *library;
	const char *libweightd;
	uint64_t count;
	uint64_t min_ns;
	uint64_t median_ns;
	uint64_t max_ns;
};

#define SERVER(member) offsetof(struct pong, server.member)

static const struct column columns[] = {
	COLUMN("SOCKET", COLUMN_TEXT, offsetof(struct pong, socket)),
	COLUMN("RELEASE", COLUMN_TEXT, offsetof(struct pong, release)),
	COLUMN("PROGRAM", COLUMN_TEXT, offsetof(struct pong, program)),
	COLUMN("LIBRARY", COLUMN_TEXT, offsetof(struct pong, library)),
	COLUMN("LIBWEIGHTD", COLUMN_TEXT, offsetof(struct pong, libweightd)),
	COLUMN("PID", COLUMN_U32, SERVER(pid)),
	COLUMN("INSTANCE", COLUMN_HEX, SERVER(instance)),
	COLUMN("UPTIME", COLUMN_DURATION, SERVER(uptime_ns)),
	COLUMN("BUFFERS", COLUMN_U64, SERVER(n_buffers)),
	COLUMN("MEMORY", COLUMN_SIZE, SERVER(n_bytes)),
	COLUMN("SESSIONS", COLUMN_U64, SERVER(n_sessions)),
	COLUMN("LEASES", COLUMN_U64, SERVER(n_leases)),
	COLUMN("COUNT", COLUMN_U64, offsetof(struct pong, count)),
	COLUMN("RTT_MIN", COLUMN_DURATION, offsetof(struct pong, min_ns)),
	COLUMN("RTT_MEDIAN", COLUMN_DURATION, offsetof(struct pong, median_ns)),
	COLUMN("RTT_MAX", COLUMN_DURATION, offsetof(struct pong, max_ns)),
	{},
};

static int ping_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int ping_measure(struct cli *cli, struct pong *pong, uint64_t *times)
{
	int r;

	for (uint64_t i = 0; i < pong->count; i++) {
		uint64_t start = clock_now_ns();

		pong->server = (struct weightd_server){.size = sizeof(pong->server)};
		r = weightd_ping(cli->w, &pong->server);
		if (r < 0)
			return cli_fail(cli, r);
		times[i] = clock_now_ns() - start;
	}
	qsort(times, pong->count, sizeof(*times), ping_compare);
	pong->min_ns = times[0];
	pong->median_ns = times[pong->count / 2];
	pong->max_ns = times[pong->count - 1];
	pong->socket = weightd_socket(cli->w);
	pong->release = pong->server.release;
	pong->program = pong->server.program[0] ? pong->server.program : NULL;
	pong->library = weightd_library();
	pong->libweightd = weightd_release();
	return 0;
}

static int ping_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"count", required_argument, NULL, 'c'},
		{"wait", optional_argument, NULL, OPTION_WAIT},
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct pong pong = {.count = 1};
	uint64_t *times;
	int option, wait_ms = 0, r;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "c:", longs)) >= 0) {
		if (option == OPTION_WAIT)
			wait_ms = optarg ? cli_seconds(cli, "--wait", optarg) : WAIT_MS;
		else
			pong.count = cli_number(cli, "--count", optarg, 10, 1, COUNT_MAX);
	}
	if (argc - optind > 0)
		cli_usage(cli, "'ping' takes no arguments");
	if (server_connect_within(cli, wait_ms))
		return EXIT_FAILED;
	times = calloc(pong.count, sizeof(*times));
	if (!times)
		cli_out_of_memory();
	r = ping_measure(cli, &pong, times);
	free(times);
	if (r)
		return r;
	if (cli->format.json)
		column_json_object(columns, &pong);
	else
		column_text_all(columns, &pong, false, stdout);
	return 0;
}

const struct verb verb_ping = {
	.name = "ping",
	.args = "",
	.summary = "Measure the time of a request, and identify the server",
	.options = " -c, --count COUNT      requests to send, one after the other (1)\n"
		   "     --wait[=SECONDS]   wait for a server that is starting (10)\n" HELP_JSON,
	.run = ping_run,
};
