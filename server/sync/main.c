/*
 * weightd-sync: carries versions of buffers between the weightds of several nodes, as one transaction
 */
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "server/base/journal.h"
#include "server/base/log.h"
#include "server/base/program.h"
#include "server/sync/config.h"
#include "server/sync/daemon.h"
#include "server/sync/drop_in.h"

static const char usage[] =
	"Usage: weightd-sync [OPTIONS]\n"
	"Replicate versions of model weights to every node of a group, or to none.\n"
	"\n"
	"  --config PATH   read this file (default: " CONFIG_PATH ")\n"
	"  --check         say what is wrong in it, or with the certificates that it\n"
	"                  names, and exit\n"
	"  --print-drop-in\n"
	"                  print a drop-in of the unit with the addresses of the file,\n"
	"                  for packets of no others, and exit\n"
	"  --socket PATH   where weightctl asks (default: what the file says, else\n"
	"                  $WEIGHTD_SYNC_SOCKET, else /run/weightd-sync/sync.sock)\n"
	"  --version       print the release and exit\n"
	"  --help          print this and exit\n";

enum option_code {
	OPTION_CONFIG = PROGRAM_OWN,
	OPTION_CHECK,
	OPTION_PRINT_DROP_IN,
	OPTION_SOCKET,
};

static const struct option options[] = {
	{"config", required_argument, NULL, OPTION_CONFIG},
	{"check", no_argument, NULL, OPTION_CHECK},
	{"print-drop-in", no_argument, NULL, OPTION_PRINT_DROP_IN},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"version", no_argument, NULL, PROGRAM_VERSION},
	{"help", no_argument, NULL, PROGRAM_HELP},
	{0},
};

static const struct program program = {.name = "weightd-sync", .usage = usage, .options = options};

struct arguments {
	const char *config;
	const char *socket;
	bool check;
	bool print_drop_in;
};

static struct arguments parse_arguments(int argc, char **argv)
{
	struct arguments a = {.config = CONFIG_PATH};
	int c, index;

	while ((c = program_next_option(&program, argc, argv, &index)) != -1) {
		if (c == OPTION_CONFIG)
			a.config = optarg;
		else if (c == OPTION_SOCKET)
			a.socket = optarg;
		else if (c == OPTION_PRINT_DROP_IN)
			a.print_drop_in = true;
		else
			a.check = true;
	}
	return a;
}

int main(int argc, char **argv)
{
	struct arguments a = parse_arguments(argc, argv);
	struct config config;
	int r;

	log_set_name("weightd-sync");
	log_init(LOG_LEVEL_INFO);
	journal_init();
	(void)signal(SIGPIPE, SIG_IGN); /* the reader of our output may end before us */
	if (config_load(a.config, a.socket, &config) < 0)
		return EXIT_USAGE;
	log_set_level(config.log_level);
	if (a.check) {
		r = daemon_check(&config) < 0 ? EXIT_USAGE : EXIT_SUCCESS;
	} else if (a.print_drop_in) {
		r = drop_in_print(&config) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
	} else {
		program_raise_descriptor_limit();
		r = daemon_run(&config) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
		journal_flush();
	}
	config_deinit(&config);
	return r;
}
