/*
 * weightd-trace: counts in the kernel what the sockets of syncs carry
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/tracer.h"
#include "ipc/base/num.h"
#include "ipc/base/release.h"

#define EXIT_USAGE 2
#define FOLDER "/run/weightd-trace"
#define SOCKET FOLDER "/trace.sock"
#define SYSFS "/sys"
#define RING_SIZE (1 * MIB)

static const char usage[] =
	"Usage: weightd-trace [OPTIONS]\n"
	"Count in the kernel what TCP sockets carry for each sync.\n"
	"\n"
	"  --socket PATH   socket for clients (default: $WEIGHTD_TRACE_SOCKET,\n"
	"                  else " SOCKET ")\n"
	"  --meter KIND    bpf or diag; default: bpf if possible, else diag\n"
	"  --ring SIZE     memory for events, a power of two of 4K or more (1M)\n"
	"  --sysfs DIR     where the kernel lists RDMA devices (/sys)\n"
	"  --probes WHICH  on or off: observe calls of CUDA, NCCL and verbs, events of\n"
	"                  weightd, and memory that processes pass to each other (on,\n"
	"                  if the kernel supports that safely)\n"
	"  --version       print the release and exit\n"
	"  --help          print this and exit\n";

enum option_code {
	OPTION_SOCKET = 256,
	OPTION_METER,
	OPTION_RING,
	OPTION_SYSFS,
	OPTION_PROBES,
	OPTION_VERSION,
	OPTION_HELP,
};

static const struct option options[] = {
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"meter", required_argument, NULL, OPTION_METER},
	{"ring", required_argument, NULL, OPTION_RING},
	{"sysfs", required_argument, NULL, OPTION_SYSFS},
	{"probes", required_argument, NULL, OPTION_PROBES},
	{"version", no_argument, NULL, OPTION_VERSION},
	{"help", no_argument, NULL, OPTION_HELP},
	{0},
};

static _Noreturn void option_refuse(const char *what, const char *value, const char *wanted)
{
	(void)fprintf(stderr, "weightd-trace: %s cannot be '%s': %s\n", what, value, wanted);
	exit(EXIT_USAGE);
}

static uint32_t ring_size(const char *text)
{
	uint64_t size;

	if (num_parse_size(text, &size) < 0 || size < (uint64_t)sysconf(_SC_PAGESIZE) ||
	    size > GIB || !num_is_power_of_two(size))
		option_refuse("--ring", text, "it takes a power of two between a page and 1G");
	return (uint32_t)size;
}

static const struct meter_kind *meter_named(const char *name)
{
	if (!strcmp(name, meter_bpf.name))
		return &meter_bpf;
	if (!strcmp(name, meter_diag.name))
		return &meter_diag;
	option_refuse("--meter", name, "it takes bpf or diag");
}

static enum probes_wanted probes_wanted(const char *text)
{
	if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
		option_refuse("--probes", text, "it takes on or off");
	return !strcmp(text, "on") ? PROBES_ON : PROBES_OFF;
}

static struct tracer_options options_parse(int argc, char **argv)
{
	const char *socket = getenv("WEIGHTD_TRACE_SOCKET");
	struct tracer_options o = {.socket = socket && *socket ? socket : SOCKET,
				   .sysfs = SYSFS,
				   .ring_size = RING_SIZE};
	int code;

	while ((code = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (code == OPTION_SOCKET)
			o.socket = optarg;
		else if (code == OPTION_METER)
			o.kind = meter_named(optarg);
		else if (code == OPTION_RING)
			o.ring_size = ring_size(optarg);
		else if (code == OPTION_SYSFS)
			o.sysfs = optarg;
		else if (code == OPTION_PROBES)
			o.probes = probes_wanted(optarg);
		else if (code == '?') /* getopt has printed the error */
			exit(EXIT_USAGE);
		else {
			if (code == OPTION_VERSION)
				(void)printf("weightd-trace %s\n", RELEASE);
			else
				(void)fputs(usage, stdout);
			exit(EXIT_SUCCESS);
		}
	}
	if (optind < argc)
		option_refuse("an argument", argv[optind],
			      "there are only options; see weightd-trace --help");
	return o;
}

int main(int argc, char **argv)
{
	const struct tracer_options o = options_parse(argc, argv);

	/* A service has it made; another error shows when the socket is made. */
	if (!strcmp(o.socket, SOCKET))
		(void)mkdir(FOLDER, 0750);
	return tracer_run(&o) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
