/*
 * weightctl trace record: write the packets of weightd-trace to a file.
 *
 * A line of JSON is a packet as it was received, in ASCII: new kinds need no new weightctl.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/trace_event_json.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

#define BATCH_MAX 1000 /* packets */
#define CLOCK_TRIES 10
#define PORTS_NS 1000000000u /* between two looks at the ports of RDMA devices */

enum option_of_record {
	OPTION_FORMAT = OPTION_OWN,
	OPTION_SECONDS,
	OPTION_OUTPUT,
};

struct record;

struct format {
	const char *name;
	void (*begin)(struct record *r);
	void (*add)(struct record *r, json_t *packet);
	void (*end)(struct record *r);
};

struct record {
	const struct cli *cli;
	const struct format *format;
	struct control_client control;
	const char *path; /* NULL: standard output */
	int fd; /* descriptor of `path` */
	uint64_t end_ns; /* UINT64_MAX: until a signal arrives */
	uint64_t ports_ns; /* when to look at them; UINT64_MAX: somebody does, or there are none */
	bool has_ports; /* true if the last sample had ports */
	bool quiet;
	bool is_broken; /* nothing can be written any more */
	FILE *batch; /* not written yet */
	char *text;
	size_t size;
	struct trace_events timeline;
};

static void jsonl_add(struct record *r, json_t *packet)
{
	if (json_dumpf(packet, r->batch, JSON_COMPACT | JSON_ENSURE_ASCII) < 0)
		cli_out_of_memory();
	(void)fputc('\n', r->batch);
}

/*
 * Relates the two clocks, so that other recordings can be merged. They cannot be read at the same time, and a busy
 * machine may delay one of the reads: of several tries the shortest is used.
 */
static void jsonl_clock(struct record *r)
{
	json_int_t monotonic_ns = 0, realtime_ns = 0, least_ns = INT64_MAX;
	cleanup(json_decrefp) json_t *clock = NULL;

	for (int i = 0; i < CLOCK_TRIES; i++) {
		json_int_t before_ns = (json_int_t)clock_ns(CLOCK_MONOTONIC);
		json_int_t now_ns = (json_int_t)clock_ns(CLOCK_REALTIME);
		json_int_t took_ns = (json_int_t)clock_ns(CLOCK_MONOTONIC) - before_ns;

		if (took_ns >= least_ns)
			continue;
		least_ns = took_ns;
		monotonic_ns = before_ns + took_ns / 2;
		realtime_ns = now_ns;
	}
	clock = json_pack("{ss sI sI}", "kind", "clock", "monotonic_ns", monotonic_ns,
			  "realtime_ns", realtime_ns);
	if (!clock)
		cli_out_of_memory();
	jsonl_add(r, clock);
}

static void chrome_begin_record(struct record *r)
{
	trace_events_begin(&r->timeline, r->batch);
}

static void chrome_add_packet(struct record *r, json_t *packet)
{
	trace_events_add(&r->timeline, packet);
}

static void chrome_end_record(struct record *r)
{
	trace_events_end(&r->timeline);
}

/* Perfetto reads what Chrome writes. */
static const struct format formats[] = {
	{"jsonl", jsonl_clock, jsonl_add, jsonl_clock},
	{"perfetto", chrome_begin_record, chrome_add_packet, chrome_end_record},
	{"chrome", chrome_begin_record, chrome_add_packet, chrome_end_record},
};

static int write_file(const struct record *r, const char *data, size_t size)
{
	while (size) {
		ssize_t n = write(r->fd, data, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return cli_error("cannot write %s: %s", r->path, strerror(errno));
		data += n;
		size -= (size_t)n;
	}
	return 0;
}

static int trace_record_flush(struct record *r)
{
	size_t size;

	if (fflush(r->batch) == EOF)
		cli_out_of_memory();
	size = (size_t)ftell(r->batch);
	rewind(r->batch);
	r->is_broken = r->path ? write_file(r, r->text, size) : cli_write(r->text, size);
	return r->is_broken ? EXIT_FAILED : 0;
}

/* The state before the start. */
static int hear_answer(struct record *r)
{
	for (;;) {
		cleanup(json_decrefp) json_t *packet = NULL;

		if (control_client_next(&r->control, &packet))
			return EXIT_FAILED;
		if (control_client_error(packet))
			return cli_error("%s", control_client_error(packet));
		if (control_client_is_end(packet))
			return 0;
		r->format->add(r, packet);
	}
}

static int timeout_ms(const struct record *r)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t next_ns = r->ports_ns < r->end_ns ? r->ports_ns : r->end_ns;

	if (next_ns == UINT64_MAX)
		return -1;
	return now_ns >= next_ns ? 0 : (int)((next_ns - now_ns) / 1000000) + 1;
}

/* Samples of ports must be requested. */
static int ask_for_ports(struct record *r)
{
	if (clock_now_ns() < r->ports_ns)
		return 0;
	r->ports_ns = UINT64_MAX;
	r->has_ports = false;
	return control_client_ask(&r->control, json_pack("{s:s}", "op", "rdma"));
}

/* An event, or a reply about ports. */
static void trace_record_take(struct record *r, json_t *packet)
{
	if (json_field_is_kind(packet, "rdma"))
		r->has_ports = json_field_bool(packet, "on");
	else if (!control_client_is_end(packet))
		r->format->add(r, packet);
	else if (r->has_ports)
		r->ports_ns = clock_now_ns() + PORTS_NS;
}

/* Receives the packets that are there, up to a batch: 0, or EXIT_FAILED after printing why. */
static int trace_record_receive(struct record *r)
{
	int result = 0;

	for (int i = 0; i < BATCH_MAX && result == 0; i++) {
		cleanup(json_decrefp) json_t *packet = NULL;

		result = control_client_take(&r->control, &packet);
		if (result == 0)
			trace_record_take(r, packet);
	}
	return result == -EAGAIN ? 0 : result;
}

static int trace_record_follow(struct record *r, int signal_fd)
{
	struct pollfd fds[] = {
		{.fd = r->control.fd, .events = POLLIN},
		{.fd = signal_fd, .events = POLLIN},
		{.fd = r->fd}, /* poll() always reports POLLERR */
	};
	bool is_told = false; /* to end */
	int result = 0;

	while (result == 0 && !is_told && clock_now_ns() < r->end_ns) {
		result = ask_for_ports(r);
		if (result)
			return result;
		(void)poll(fds, 3, timeout_ms(r));
		is_told = signals_take(signal_fd); /* with what was there before it */
		if (fds[2].revents & POLLERR) /* as a write would end it */
			(void)raise(SIGPIPE);
		result = trace_record_receive(r);
		if (trace_record_flush(r))
			return EXIT_FAILED;
	}
	return result;
}

static int open_output(struct record *r)
{
	r->fd = r->path ? open(r->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)
			: STDOUT_FILENO;
	return r->fd < 0 ? cli_error("cannot write %s: %s", r->path, strerror(errno)) : 0;
}

/* A recording that fails is whole up to the failure. An existing file stays untouched until it begins. */
static int record_until_end(struct record *r, int signal_fd)
{
	bool has_begun;
	int result;

	if (control_client_open(r->cli, &r->control) ||
	    control_client_ask(&r->control, json_pack("{s:s}", "op", "observe")))
		return EXIT_FAILED;
	r->format->begin(r);
	has_begun = !hear_answer(r) && !open_output(r) && !trace_record_flush(r);
	if (has_begun && !r->quiet)
		(void)fputs("weightctl: recording\n", stderr); /* no event from now on is missed */
	result = has_begun ? trace_record_follow(r, signal_fd) : EXIT_FAILED;
	r->format->end(r);
	return !has_begun || r->is_broken || trace_record_flush(r) ? EXIT_FAILED : result;
}

static int run_record(struct record *r)
{
	int fd = signals_open(), result;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	r->batch = open_memstream(&r->text, &r->size);
	if (!r->batch)
		cli_out_of_memory();
	result = record_until_end(r, fd);
	if (r->path && r->fd >= 0 && close(r->fd) < 0 && result == 0)
		result = cli_error("cannot write %s: %s", r->path, strerror(errno));
	control_client_deinit(&r->control);
	(void)fclose(r->batch);
	free(r->text);
	(void)close(fd);
	return result;
}

static const struct format *format_named(const struct cli *cli, const char *name)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
		if (!strcmp(formats[i].name, name))
			return &formats[i];
	cli_usage(cli, "--format takes jsonl, perfetto or chrome, not '%s'", name);
}

static int trace_record_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"format", required_argument, NULL, OPTION_FORMAT},
		{"seconds", required_argument, NULL, OPTION_SECONDS},
		{"output", required_argument, NULL, OPTION_OUTPUT},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_TRACER,
		{},
	};
	struct record r = {
		.cli = cli, .format = &formats[0], .control.fd = -1, .fd = -1, .end_ns = UINT64_MAX};
	int option, ms;

	while ((option = cli_option(cli, argc, argv, LETTERS_COMMON "q", longs)) >= 0) {
		switch (option) {
		case OPTION_FORMAT:
			r.format = format_named(cli, optarg);
			break;
		case OPTION_SECONDS:
			ms = cli_seconds(cli, "--seconds", optarg);
			r.end_ns = clock_now_ns() + (uint64_t)ms * 1000000;
			break;
		case OPTION_OUTPUT:
			r.path = optarg;
			break;
		default:
			r.quiet = true;
		}
	}
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	return run_record(&r);
}

const struct verb verb_trace_record = {
	.name = "trace record",
	.args = "",
	.summary = "Record the traffic of each sync, as the kernel counts it",
	.options = "     --format FORMAT    jsonl, or for a timeline perfetto or chrome (jsonl)\n"
		   "     --seconds SECONDS  duration (until a signal)\n"
		   "     --output FILE      into this file instead of printing\n"
		   " -q, --quiet            no message on standard error at the start\n",
	.peer = PEER_TRACER,
	.is_usual = true,
	.run = trace_record_run,
};
