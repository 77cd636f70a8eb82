/*
 * weightd: owns the weight buffers of a machine and hands out their descriptors
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ipc/base/num.h"
#include "server/backend/headroom.h"
#include "server/keeper.h"
#include "server/log.h"
#include "server/server.h"

#define EXIT_USAGE 2

static const char usage[] =
	"Usage: weightd [OPTIONS]\n"
	"Own one flat buffer of model weights per device and share it between processes.\n"
	"\n"
	"  --socket PATH        listen there (default: the socket passed by systemd, else\n"
	"                       $WEIGHTD_SOCKET, else /run/weightd.sock as root and\n"
	"                       $XDG_RUNTIME_DIR/weightd.sock as a user)\n"
	"  --socket-mode MODE   permissions of that socket, octal (default 0660)\n"
	"  --reserve SIZE       memory to leave to everybody else, e.g. 2G (default: a\n"
	"                       sixteenth of what there is, 512M at most)\n"
	"  --keeper             run as a parent that restarts the daemon when it dies\n"
	"  --log-level LEVEL    error, warning, info (default) or debug\n"
	"  --version            print the release and exit\n"
	"  --help               print this and exit\n";

enum option_code {
	OPTION_SOCKET = 256,
	OPTION_SOCKET_MODE,
	OPTION_RESERVE,
	OPTION_KEEPER,
	OPTION_LOG_LEVEL,
	OPTION_VERSION,
	OPTION_HELP,
};

static const struct option options[] = {
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"socket-mode", required_argument, NULL, OPTION_SOCKET_MODE},
	{"reserve", required_argument, NULL, OPTION_RESERVE},
	{"keeper", no_argument, NULL, OPTION_KEEPER},
	{"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
	{"version", no_argument, NULL, OPTION_VERSION},
	{"help", no_argument, NULL, OPTION_HELP},
	{0},
};

struct arguments {
	struct server_options server;
	uint64_t reserve;
	enum log_level log_level;
	bool keeper;
};

static int parse_mode(const char *s, mode_t *ret)
{
	char *end;
	unsigned long v = strtoul(s, &end, 8);

	if (!*s || *end || v > 0777)
		return -EINVAL;
	*ret = (mode_t)v;
	return 0;
}

static int bad_value(const char *option, const char *value)
{
	fprintf(stderr, "weightd: --%s does not take '%s'; see weightd --help\n", option, value);
	return -EINVAL;
}

/* 0: run; 1: done, all was said; -EINVAL: likewise, and it was wrong. */
static int parse(int argc, char **argv, struct arguments *ret)
{
	struct arguments a = {
		.server.socket_mode = 0660,
		.reserve = HEADROOM_RESERVE_DEFAULT,
		.log_level = LOG_LEVEL_INFO,
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case OPTION_SOCKET:
			a.server.socket = optarg;
			break;
		case OPTION_SOCKET_MODE:
			if (parse_mode(optarg, &a.server.socket_mode) < 0)
				return bad_value("socket-mode", optarg);
			break;
		case OPTION_RESERVE:
			if (num_parse_size(optarg, &a.reserve) < 0)
				return bad_value("reserve", optarg);
			break;
		case OPTION_KEEPER:
			a.keeper = true;
			break;
		case OPTION_LOG_LEVEL:
			if (log_parse_level(optarg, &a.log_level) < 0)
				return bad_value("log-level", optarg);
			break;
		case OPTION_VERSION:
			puts("weightd " SERVER_RELEASE);
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
			"weightd: what is '%s'? There are only options; see weightd --help\n",
			argv[optind]);
		return -EINVAL;
	}
	*ret = a;
	return 0;
}

/* Each buffer takes some descriptors: as many as we are allowed. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		log_warning("cannot raise the limit on descriptors: %s", strerror(errno));
}

/* The same command without --keeper, for the child. */
static int run_keeper(int argc, char **argv)
{
	char **child = calloc((size_t)argc + 1, sizeof(*child));
	int n = 0, status;

	if (!child)
		return 1;
	for (int i = 0; i < argc; i++)
		if (strncmp(argv[i], "--k",
			    3)) /* getopt takes abbreviations, no other option has a k */
			child[n++] = argv[i];
	status = keeper_run(child);
	free(child);
	return status;
}

int main(int argc, char **argv)
{
	struct arguments a;
	static struct server server; /* a closer that is stuck outlives server_deinit() */
	int r = parse(argc, argv, &a);

	if (r != 0)
		return r < 0 ? EXIT_USAGE : EXIT_SUCCESS;
	log_init(a.log_level);
	(void)signal(SIGPIPE, SIG_IGN); /* who reads the log may go before us */
	if (a.keeper)
		return run_keeper(argc, argv);
	raise_descriptor_limit();
	headroom_init(a.reserve);
	r = server_init(&server, &a.server);
	if (r < 0)
		return r == -EINVAL || r == -ENAMETOOLONG ? EXIT_USAGE : EXIT_FAILURE;
	r = server_run(&server);
	server_deinit(&server);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
