/*
 * What every verb shares. An error is one sentence on standard error; text in it that came from
 * elsewhere is escaped here, once, whatever the library did to it.
 */
#include "libclient/weightctl/cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/column.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/escape.h"
#include "libclient/weightctl/progress.h"
#include "libclient/weightctl/user.h"

#define RETRY_MS 10

static void tell(const char *fmt, va_list args)
{
	char *text;

	if (vasprintf(&text, fmt, args) < 0)
		cli_out_of_memory();
	(void)fflush(stdout); /* so that both come in order on a terminal */
	(void)fputs("weightctl: ", stderr);
	escape_text(stderr, text);
	(void)fputc('\n', stderr);
	free(text);
}

int cli_error(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	tell(fmt, args);
	va_end(args);
	return EXIT_FAILED;
}

int cli_fail(const struct cli *cli, int r)
{
	const char *sentence = weightd_error(cli->w);
	cleanup(cli_freep) char *named = user_annotate(*sentence ? sentence : strerror(-r));

	return cli_error("%s", named);
}

void cli_usage(const struct cli *cli, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	tell(fmt, args);
	va_end(args);
	(void)fprintf(stderr, "Try 'weightctl %s%s--help'.\n", cli->verb ? cli->verb->name : "",
		      cli->verb ? " " : "");
	exit(EXIT_USAGE);
}

/* Not left to getopt, which would write the argument as it stands. */
void cli_wrong_option(const struct cli *cli, int option, char *argv[])
{
	char letter[] = {'-', (char)optopt, '\0'};
	const char *name = optopt > 0 && optopt <= CHAR_MAX ? letter : argv[optind - 1];

	cli_usage(cli, option == ':' ? "option '%s' wants an argument" : "wrong option '%s'", name);
}

void cli_out_of_memory(void)
{
	(void)fputs("weightctl: out of memory\n", stderr);
	exit(EXIT_FAILED);
}

void *cli_grown(void *list, size_t n, size_t size)
{
	if (n & (n - 1))
		return list;
	list = reallocarray(list, n ? 2 * n : 1, size);
	if (!list)
		cli_out_of_memory();
	return list;
}

static void help_columns(const struct column *columns)
{
	size_t width = 0;

	(void)puts("\nColumns (* shown if -o does not choose; JSON has all of them):");
	for (const struct column *c = columns; c->name; c++)
		if (strlen(c->name) > width)
			width = strlen(c->name);
	for (const struct column *c = columns; c->name; c++)
		(void)printf(" %c %-*s  %s\n", c->shown ? '*' : ' ', (int)width, c->name, c->help);
}

void cli_help(const struct verb *verb)
{
	static const char *const peer_options[] = {
		[PEER_SERVER] = "     --socket PATH      socket of the server\n",
		[PEER_AGENT] = "     --sync-socket PATH socket of weightd-sync\n",
		[PEER_TRACER] = "     --trace-socket PATH\n"
				"                        socket of weightd-trace\n",
		[PEER_NONE] = "",
	};

	(void)printf("Usage: weightctl %s [options]%s%s\n\n%s.\n\nOptions:\n", verb->name,
		     *verb->args ? " " : "", verb->args, verb->summary);
	(void)printf("%s%s%s", verb->options ? verb->options : "", peer_options[verb->peer],
		     " -h, --help             this text\n");
	if (verb->columns)
		help_columns(verb->columns);
}

int cli_option(struct cli *cli, int argc, char *argv[], const char *letters,
	       const struct option *options)
{
	int option;

	while ((option = getopt_long(argc, argv, letters, options, NULL)) >= 0) {
		switch (option) {
		case OPTION_SOCKET:
			cli->socket = optarg;
			break;
		case OPTION_SYNC_SOCKET:
			cli->sync_socket = optarg;
			break;
		case OPTION_TRACE_SOCKET:
			cli->trace_socket = optarg;
			break;
		case OPTION_DEVICE:
			cli->device = optarg;
			break;
		case 'J':
			cli->json = true;
			break;
		case 'o':
			cli->columns = optarg;
			break;
		case 'n':
			cli->noheadings = true;
			break;
		case 'b':
			cli->bytes = true;
			break;
		case 'h':
			cli_help(cli->verb);
			exit(EXIT_SUCCESS); /* main's atexit handler looks after write errors */
		case '?':
		case ':':
			cli_wrong_option(cli, option, argv);
		default:
			return option;
		}
	}
	return -1;
}

static int parse_number(const char *arg, int base, uint64_t *ret)
{
	unsigned long long n;
	char *end;

	if (!isdigit((unsigned char)*arg)) /* strtoull() takes signs and spaces */
		return -EINVAL;
	errno = 0;
	n = strtoull(arg, &end, base);
	if (errno || *end)
		return -EINVAL;
	*ret = n;
	return 0;
}

uint64_t cli_number(const struct cli *cli, const char *what, const char *arg, int base,
		    uint64_t min, uint64_t max)
{
	uint64_t n = 0;

	if (parse_number(arg, base, &n) < 0 || n < min || n > max)
		cli_usage(cli,
			  base == 8 ? "%s wants an octal number from %" PRIo64 " to %" PRIo64
				      ", not '%s'"
				    : "%s wants a number from %" PRIu64 " to %" PRIu64 ", not '%s'",
			  what, min, max, arg);
	return n;
}

uint64_t cli_bytes(const struct cli *cli, const char *what, const char *arg)
{
	static const char units[] = "kMGT";
	size_t n_digits = strspn(arg, "0123456789");
	const char *unit = arg[n_digits] ? strchr(units, arg[n_digits]) : NULL;
	uint64_t n = 0, factor = 1;
	char digits[24];

	for (const char *u = units; unit && u <= unit; u++)
		factor *= 1000;
	(void)snprintf(digits, sizeof(digits), "%.*s", (int)(n_digits < 23 ? n_digits : 23), arg);
	if (parse_number(digits, 10, &n) < 0 || arg[n_digits + (unit != NULL)] ||
	    __builtin_mul_overflow(n, factor, &n) || !n || n > INT64_MAX)
		cli_usage(cli, "%s wants a number of bytes, such as 500M or 2G, not '%s'", what,
			  arg);
	return n;
}

int cli_seconds(const struct cli *cli, const char *what, const char *arg)
{
	char *end;
	double s = strtod(arg, &end);

	if (end == arg || *end || !(s >= 0) || s > INT_MAX / 1000)
		cli_usage(cli, "%s wants seconds from 0 to %d, not '%s'", what, INT_MAX / 1000, arg);
	return (int)ceil(s * 1000);
}

const char *cli_device(const struct cli *cli)
{
	return cli->device ? cli->device : "host";
}

/* The failures to connect that pass once a server has started. */
static bool nobody_there(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

int cli_connect(struct cli *cli)
{
	return cli_connect_within(cli, 0);
}

int cli_connect_within(struct cli *cli, int timeout_ms)
{
	uint64_t deadline_ns = progress_now_ns() + (uint64_t)timeout_ms * 1000000;
	int r;

	r = weightd_new(&cli->w);
	if (r < 0)
		return cli_error("%s", strerror(-r));
	/* No event announces that a socket has a listener: inotify reports its file, which comes before. */
	while (nobody_there(r = weightd_connect(cli->w, cli->socket)) &&
	       progress_now_ns() < deadline_ns)
		(void)poll(NULL, 0, RETRY_MS);
	if (r >= 0)
		return device_resolve(cli);
	return cli_fail(cli, r);
}

struct target cli_target(const struct cli *cli, char *arg)
{
	struct target target = {.name = arg};
	char *at = strrchr(arg, '@');

	if (!at)
		return target;
	*at = '\0';
	if (parse_number(at + 1, 10, &target.version) < 0 || !target.version)
		cli_usage(cli, "'%s@%s' has no version behind the '@'; those are numbers from 1",
			  arg, at + 1);
	return target;
}

struct target *cli_targets(const struct cli *cli, int argc, char *argv[], size_t *ret_n)
{
	size_t n = (size_t)(argc - optind);
	struct target *targets;

	if (!n)
		cli_usage(cli, "'%s' wants at least one name", cli->verb->name);
	targets = calloc(n, sizeof(*targets));
	if (!targets)
		cli_out_of_memory();
	for (size_t i = 0; i < n; i++)
		targets[i] = cli_target(cli, argv[optind + (int)i]);
	*ret_n = n;
	return targets;
}

const char *cli_name(const struct cli *cli, const char *arg)
{
	if (strchr(arg, '@'))
		cli_usage(cli, "'%s' takes the name of a buffer without a version, not '%s'",
			  cli->verb->name, arg);
	return arg;
}

int cli_say_version(struct cli *cli, const char *name, uint64_t version)
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

	if (cli->json)
		column_json_object(columns, &said);
	else
		(void)printf("%s@%" PRIu64 " on %s\n", said.name, said.version,
			     device_short(cli, said.device));
	return 0;
}

int cli_write(const char *data, uint64_t size)
{
	while (size) {
		ssize_t n = write(STDOUT_FILENO, data, size); /* the kernel cuts it at 2 GiB */

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EPIPE) /* only seen where SIGPIPE is ignored */
			return EXIT_FAILED;
		if (n < 0)
			return cli_error("cannot write to standard output: %s", strerror(errno));
		data += n;
		size -= (uint64_t)n;
	}
	return 0;
}

int cli_attach(struct cli *cli, const struct target *target, struct weightd_buffer **ret)
{
	const struct weightd_attach_options options = {
		.size = sizeof(options),
		.device = cli->device,
		.version = target->version,
	};
	int r;

	r = weightd_attach(cli->w, target->name, &options, ret);
	return r < 0 ? absent_buffer(cli, target->name, r) : 0;
}
