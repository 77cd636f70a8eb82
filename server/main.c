/*
 * weightd: owns the weight buffers of a machine and hands out their descriptors
 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/socket_path.h"
#include "server/base/headroom.h"
#include "server/base/journal.h"
#include "server/base/log.h"
#include "server/base/program.h"
#include "server/daemon.h"
#include "server/restart/keeper.h"
#include "server/state/config.h"

static const char usage[] =
	"Usage: weightd [OPTIONS]\n"
	"Own one flat buffer of model weights per device and share it between processes.\n"
	"\n"
	"  --config PATH        read this file (default: " CONFIG_PATH ",\n"
	"                       if it exists); options here override it\n"
	"  --check-config [PATH]\n"
	"                       report the errors in that file, and exit\n"
	"  --socket PATH        listen there (default: the socket passed by systemd, else\n"
	"                       $WEIGHTD_SOCKET, else " SOCKET_PATH_SYSTEM "\n"
	"                       as root and $XDG_RUNTIME_DIR/weightd.sock as a user)\n"
	"  --socket-mode MODE   permissions of that socket, octal (default 0660)\n"
	"  --reserve SIZE       memory to leave to other programs, e.g. 2G (default: a\n"
	"                       sixteenth of what there is, 512M at most)\n"
	"  --keeper             run as a parent that restarts the daemon when it dies\n"
	"  --log-level LEVEL    error, warning, info (default) or debug\n"
	"  --version            print the release and exit\n"
	"  --help               print this and exit\n";

enum option_code {
	OPTION_SOCKET_MODE = PROGRAM_OWN,
	OPTION_RESERVE,
	OPTION_LOG_LEVEL,
	OPTION_SOCKET,
	OPTION_CONFIG,
	OPTION_CHECK_CONFIG,
	OPTION_KEEPER,
};

static const struct option options[] = {
	{"config", required_argument, NULL, OPTION_CONFIG},
	{"check-config", optional_argument, NULL, OPTION_CHECK_CONFIG},
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"socket-mode", required_argument, NULL, OPTION_SOCKET_MODE},
	{"reserve", required_argument, NULL, OPTION_RESERVE},
	{"keeper", no_argument, NULL, OPTION_KEEPER},
	{"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
	{"version", no_argument, NULL, PROGRAM_VERSION},
	{"help", no_argument, NULL, PROGRAM_HELP},
	{0},
};

static const struct program program = {.name = "weightd", .usage = usage, .options = options};

struct arguments {
	const char *socket; /* not among `source.given`: an empty one is an error of its own */
	struct config_source source;
	bool check;
	bool keeper;
};

static int bad_value(const char *option, const char *value)
{
	fprintf(stderr, "weightd: --%s does not take '%s'; see weightd --help\n", option, value);
	return -EINVAL;
}

/* The value is tried here, so that a wrong one is reported also where the file has another. */
static int config_source_give(struct config_source *source, const char *key, const char *value)
{
	struct config trial = {0};
	unsigned i = 0;

	if (config_set(&trial, key, value) < 0)
		return bad_value(key, value);
	while (source->given[i].key && strcmp(source->given[i].key, key) != 0)
		i++;
	assert(i < CONFIG_GIVEN_MAX);
	source->given[i].key = key;
	source->given[i].value = value;
	return 0;
}

/* getopt takes optional arguments only as --check-config=PATH. */
static const char *optional_path(int argc, char **argv)
{
	if (optarg || optind >= argc || argv[optind][0] == '-')
		return optarg;
	return argv[optind++];
}

/* -EINVAL: a value is wrong, which was logged. */
static int arguments_parse(int argc, char **argv, struct arguments *ret)
{
	struct arguments a = {0};
	const char *path;
	int c, index = 0;

	while ((c = program_next_option(&program, argc, argv, &index)) != -1) {
		switch (c) {
		case OPTION_SOCKET_MODE:
		case OPTION_RESERVE:
		case OPTION_LOG_LEVEL:
			if (config_source_give(&a.source, options[index].name, optarg) < 0)
				return -EINVAL;
			break;
		case OPTION_SOCKET:
			a.socket = optarg;
			break;
		case OPTION_CONFIG:
			a.source.path = optarg;
			break;
		case OPTION_CHECK_CONFIG:
			path = optional_path(argc, argv);
			a.source.path = path ? path : a.source.path;
			a.check = true;
			break;
		case OPTION_KEEPER:
			a.keeper = true;
			break;
		}
	}
	*ret = a;
	return 0;
}

/* The same command without --keeper, for the child. */
static int run_keeper(int argc, char **argv)
{
	static const struct keeper_options keeper = {
		.store_max = KEEPER_STORE_MAX,
		.watchdog_ms = KEEPER_WATCHDOG_MS,
	};
	char **child = calloc((size_t)argc + 1, sizeof(*child));
	int n = 0, status;

	if (!child)
		return 1;
	for (int i = 0; i < argc; i++)
		if (strncmp(argv[i], "--k",
			    3)) /* getopt takes abbreviations, no other option has a k */
			child[n++] = argv[i];
	status = keeper_run(child, &keeper);
	free(child);
	return status;
}

static int daemon_serve(struct arguments *a, struct config *config)
{
	static struct daemon daemon; /* a closing thread that is stuck outlives daemon_deinit() */
	struct daemon_options o = {.socket = a->socket, .config = config, .source = a->source};
	int r;

	journal_init();
	program_raise_descriptor_limit();
	headroom_init(config->reserve);
	r = daemon_init(&daemon, &o);
	if (r < 0)
		return r == -EINVAL || r == -ENAMETOOLONG ? EXIT_USAGE : EXIT_FAILURE;
	r = daemon_run(&daemon);
	daemon_deinit(&daemon);
	journal_flush();
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Readers get their own open file of each memfd, read-only, by its name there; the keeper starts this program by it. */
static bool proc_is_there(void)
{
	if (access("/proc/self/fd", F_OK) == 0)
		return true;
	log_error("cannot serve without /proc: %s; mount it (mount -t proc proc /proc)",
		  strerror(errno));
	return false;
}

int main(int argc, char **argv)
{
	struct config config;
	struct arguments a;
	int r = arguments_parse(argc, argv, &a);

	if (r < 0)
		return EXIT_USAGE;
	config_init(&config);
	config_give(&config, &a.source);
	log_init(config.log_level);
	(void)signal(SIGPIPE, SIG_IGN); /* the reader of the log may exit before us */
	/*
	 * The kernel sends it when a process opens a slot while weightd tries a lease on it: see
	 * fd_is_open_elsewhere(), which gives the lease back at once.
	 */
	(void)signal(SIGIO, SIG_IGN);
	if (!a.check && !proc_is_there())
		return EXIT_FAILURE;
	if (a.keeper && !a.check)
		return run_keeper(argc, argv);
	if (config_load(&a.source, &config) < 0)
		return EXIT_USAGE;
	r = a.check ? EXIT_SUCCESS : daemon_serve(&a, &config);
	config_deinit(&config);
	return r;
}
