/*
 * Options and arguments. A wrong one ends the program before any verb has an effect.
 */
#include "libclient/weightctl/cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/user.h"

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
	cli_usage_verror(cli->verb ? cli->verb->name : "", fmt, args);
}

/* Not left to getopt, which would write the argument as it stands. */
void cli_wrong_option(const struct cli *cli, int option, char *argv[])
{
	char letter[] = {'-', (char)optopt, '\0'};
	const char *name = optopt > 0 && optopt <= CHAR_MAX ? letter : argv[optind - 1];

	cli_usage(cli, option == ':' ? "option '%s' wants an argument" : "wrong option '%s'", name);
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

static void take_owner(struct cli *cli)
{
	static uint32_t uid;

	if (user_parse(optarg, &uid) < 0)
		cli_usage(cli, "--owner wants a user, and there is no user '%s'", optarg);
	cli->owner = &uid;
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
		case OPTION_OWNER:
			take_owner(cli);
			break;
		case 'J':
			cli->format.json = true;
			break;
		case 'o':
			cli->format.columns = optarg;
			break;
		case 'n':
			if (optarg)
				return option; /* a verb that counts: of tables it has no argument */
			cli->format.noheadings = true;
			break;
		case 'b':
			cli->format.bytes = true;
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

int64_t cli_duration(const struct cli *cli, const char *what, const char *arg)
{
	static const struct {
		const char *unit;
		double seconds;
	} units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
	char *end;
	double ms = strtod(arg, &end) * 1000;

	for (size_t i = 0; end != arg && i < sizeof(units) / sizeof(*units); i++)
		if (!strcmp(end, units[i].unit) && ms * units[i].seconds > 0 &&
		    ms * units[i].seconds < 1e15)
			return (int64_t)ceil(ms * units[i].seconds);
	cli_usage(cli, "%s wants a time, such as 90, 10m, 2h or 7d, not '%s'", what, arg);
}

bool cli_owns(const struct cli *cli, const char *name, uint32_t uid)
{
	cleanup(cli_freep) char *demanded = NULL;

	if (!cli->owner || *cli->owner == uid)
		return true;
	demanded = strdup(user_name(*cli->owner));
	if (!demanded)
		cli_out_of_memory();
	(void)cli_error("'%s' belongs to user %s, not to %s as demanded (--owner)", name,
			user_name(uid), demanded);
	return false;
}

const char *cli_device(const struct cli *cli)
{
	return cli->device ? cli->device : "host";
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
