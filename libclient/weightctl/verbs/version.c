/*
 * weightctl version: of this program, its library and, if there is one, the server.
 */
#include <stdio.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json.h"
#include "libclient/weightctl/verb.h"

#define TEXT(n) TEXT_OF(n)
#define TEXT_OF(n) #n
#define RELEASE                                                                                    \
	TEXT(WEIGHTD_VERSION_MAJOR) "." TEXT(WEIGHTD_VERSION_MINOR) "." TEXT(WEIGHTD_VERSION_PATCH)

static void version_print(const struct weightd *w, const struct weightd_server *server)
{
	(void)printf("weightctl   " RELEASE "\nlibweightd  %s in ", weightd_release());
	escape_text(stdout, weightd_library());
	(void)fputs("\nweightd     ", stdout);
	if (server) {
		escape_text(stdout, server->release);
		if (server->program[0]) {
			(void)fputs(" in ", stdout);
			escape_text(stdout, server->program);
		}
		(void)fputs(" on ", stdout);
		escape_text(stdout, weightd_socket(w));
	} else {
		(void)fputs("not reached: ", stdout);
		escape_text(stdout, weightd_error(w));
	}
	(void)fputc('\n', stdout);
}

static void print_json(const struct weightd *w, const struct weightd_server *server)
{
	struct json json = {.file = stdout};

	json_open(&json, NULL, '{');
	json_put_string(&json, "weightctl", RELEASE);
	json_put_string(&json, "libweightd", weightd_release());
	json_put_string(&json, "library", weightd_library());
	json_put_string(&json, "weightd", server ? server->release : NULL);
	json_put_string(&json, "program", server && server->program[0] ? server->program : NULL);
	json_put_string(&json, "socket", weightd_socket(w));
	json_close(&json, '}');
}

static int version_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_JSON, OPTIONS_COMMON, {}};
	struct weightd_server server = {.size = sizeof(server)};
	bool answered;

	(void)cli_option(cli, argc, argv, LETTERS_JSON, longs);
	if (argc - optind > 0)
		cli_usage(cli, "'version' takes no arguments");
	if (weightd_new(&cli->w) < 0)
		cli_out_of_memory();
	answered = weightd_connect(cli->w, cli->socket) >= 0 && weightd_ping(cli->w, &server) >= 0;
	(cli->format.json ? print_json : version_print)(cli->w, answered ? &server : NULL);
	return 0;
}

const struct verb verb_version = {
	.name = "version",
	.args = "",
	.summary = "Show the versions of weightctl, its library and the server",
	.options = HELP_JSON,
	.run = version_run,
};
