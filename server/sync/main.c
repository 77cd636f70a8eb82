/*
 * weightd-sync: carries versions of buffers between the weightds of several nodes, as one transaction
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/release.h"
#include "server/base/journal.h"
#include "server/base/log.h"
#include "server/sync/config.h"
#include "server/sync/world.h"

#define EXIT_USAGE 2

static const char usage[] =
	"Usage: weightd-sync [OPTIONS]\n"
	"Bring versions of model weights to the weightd of every node of a group, or to none.\n"
	"\n"
	"  --config PATH   read this file (default: " CONFIG_PATH ")\n"
	"  --check         say what is wrong in it, or with the certificates that it names,\n"
	"                  and exit\n"
	"  --socket PATH   where weightctl asks (default: what the file says, else\n"
	"                  $WEIGHTD_SYNC_SOCKET, else /run/weightd-sync/sync.sock)\n"
	"  --version       print the release and exit\n"
	"  --help          print this and exit\n";

enum option_code {
	OPTION_CONFIG = 256,
	OPTION_CHECK,
	OPTION_SOCKET,
	OPTION_VERSION,
	OPTION_HELP,
};

static const struct option options[] = {
	{"config", required_argument, NULL, OPTION_CONFIG},
	{"check", no_argument, NULL, OPTION_CHECK},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"version", no_argument, NULL, OPTION_VERSION},
	{"help", no_argument, NULL, OPTION_HELP},
	{0},
};

struct arguments {
	const char *config;
	const char *socket;
	bool check;
};

/* 0: run; 1: done, all was said; -EINVAL: likewise, and it was wrong. */
static int parse(int argc, char **argv, struct arguments *ret)
{
	struct arguments a = {.config = CONFIG_PATH};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case OPTION_CONFIG:
			a.config = optarg;
			break;
		case OPTION_CHECK:
			a.check = true;
			break;
		case OPTION_SOCKET:
			a.socket = optarg;
			break;
		case OPTION_VERSION:
			puts("weightd-sync " RELEASE);
			return 1;
		case OPTION_HELP:
			fputs(usage, stdout);
			return 1;
		default: /* getopt has said what is wrong */
			return -EINVAL;
		}
	}
	if (optind < argc) {
		fprintf(stderr,
			"weightd-sync: what is '%s'? There are only options; see weightd-sync --help\n",
			argv[optind]);
		return -EINVAL;
	}
	*ret = a;
	return 0;
}

/* Each job and each connection takes some descriptors: as many as we are allowed. */
static void raise_descriptor_limit(void)
{
	int r = fd_raise_limit();

	if (r < 0)
		log_warning("cannot raise the limit on descriptors: %s", strerror(-r));
}

int main(int argc, char **argv)
{
	struct arguments a;
	struct config config;
	int r = parse(argc, argv, &a);

	if (r != 0)
		return r < 0 ? EXIT_USAGE : EXIT_SUCCESS;
	log_set_name("weightd-sync");
	log_init(LOG_LEVEL_INFO);
	journal_init();
	(void)signal(SIGPIPE, SIG_IGN); /* who reads what we write may go before us */
	if (config_load(a.config, a.socket, &config) < 0)
		return EXIT_USAGE;
	log_set_level(config.log_level);
	if (a.check) {
		r = world_check(&config) < 0 ? EXIT_USAGE : EXIT_SUCCESS;
	} else {
		raise_descriptor_limit();
		r = world_run(&config) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
	}
	config_deinit(&config);
	return r;
}
