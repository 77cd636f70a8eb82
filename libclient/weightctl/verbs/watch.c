/*
 * weightctl watch: print what happens to buffers, a line for each event, as it happens.
 *
 * The library blocks while it waits, so a thread of its own watches for the two other ends of a stream: a signal, and
 * a reader that closed the pipe while nothing happened. Lines are written whole, hence the process may end at any
 * moment.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

struct watch {
	struct cli *cli;
	char **names; /* NULL ends them; none: all buffers */
	uint64_t count; /* events to go, 0: no end */
	uint64_t deadline_ns; /* 0: none */
	FILE *line;
	char *text;
	size_t size;
};

static const char *watch_kind(const void *row, bool json)
{
	const struct weightd_event *event = row;

	(void)json;
	return weightd_event_name(event->kind);
}

static const char *watch_name(const void *row, bool json)
{
	const struct weightd_event *event = row;

	(void)json;
	return *event->name ? event->name : NULL;
}

static const char *watch_device(const void *row, bool json)
{
	const struct weightd_event *event = row;

	return watch_name(row, json) ? event->device : NULL;
}

static const char *watch_reason(const void *row, bool json)
{
	const struct weightd_event *event = row;

	(void)json;
	return event->end == WEIGHTD_END_NONE ? NULL : weightd_end_name(event->end);
}

static const char *watch_user(const void *row, bool json)
{
	const struct weightd_event *event = row;

	(void)json;
	return event->pid ? user_name(event->uid) : NULL;
}

#define EVENT(member) offsetof(struct weightd_event, member)

static const struct column columns[] = {
	COLUMN("TIME", COLUMN_TIME, EVENT(time_ns)),
	COLUMN("TIME_NS", COLUMN_U64, EVENT(time_ns)),
	{"EVENT", COLUMN_WORD, .word = watch_kind},
	{"NAME", COLUMN_WORD, .word = watch_name},
	{"DEVICE", COLUMN_WORD, .word = watch_device},
	COLUMN("VERSION", COLUMN_VERSION, EVENT(version)),
	{"REASON", COLUMN_WORD, .word = watch_reason},
	{"USER", COLUMN_WORD, .word = watch_user},
	COLUMN("UID", COLUMN_U32, EVENT(uid)),
	COLUMN("PID", COLUMN_U32, EVENT(pid)),
	COLUMN("SERIAL", COLUMN_U64, EVENT(serial)),
	{},
};

/* "2026-11-21T06:35:37Z  version-gone  m@1 on host (keep), by root, process 4711" */
static void line_text(struct cli *cli, FILE *f, const struct weightd_event *event)
{
	column_text(&columns[0], event, false, f);
	(void)fprintf(f, *event->name ? "  %-12s  " : "  %s", weightd_event_name(event->kind));
	if (*event->name) {
		escape_name(f, event->name);
		if (event->version)
			(void)fprintf(f, "@%" PRIu64, event->version);
		(void)fputs(" on ", f);
		escape_name(f, device_short(cli, event->device));
	}
	if (event->end != WEIGHTD_END_NONE)
		(void)fprintf(f, " (%s)", weightd_end_name(event->end));
	if (event->pid) {
		(void)fputs(", by ", f);
		escape_name(f, user_name(event->uid));
		(void)fprintf(f, ", process %" PRIu32, event->pid);
	}
	(void)fputc('\n', f);
}

static void line_json(FILE *f, const struct weightd_event *event)
{
	struct json json = {.file = f, .is_line = true};

	json_open(&json, NULL, '{');
	column_json_all(columns, event, &json);
	json_close(&json, '}');
}

static int watch_print(struct watch *watch, const struct weightd_event *event)
{
	rewind(watch->line);
	if (watch->cli->format.json)
		line_json(watch->line, event);
	else
		line_text(watch->cli, watch->line, event);
	if (fflush(watch->line) < 0)
		cli_out_of_memory();
	return cli_write(watch->text, (uint64_t)ftell(watch->line));
}

/* Events without a name are about the watch itself. */
static bool is_wanted(const struct watch *watch, const struct weightd_event *event)
{
	if (!*event->name)
		return true;
	if (watch->cli->device && strcmp(event->device, watch->cli->device))
		return false;
	for (char **n = watch->names; *n; n++)
		if (!strcmp(event->name, *n))
			return true;
	return !*watch->names;
}

/* Rounded up: a deadline is never early. */
static int left_ms(const struct watch *watch)
{
	uint64_t now = clock_now_ns();

	if (!watch->deadline_ns)
		return -1;
	return now < watch->deadline_ns ? (int)((watch->deadline_ns - now + 999999) / 1000000) : 0;
}

/* The time is up: a failure only where a number of events was asked for. */
static int late(const struct watch *watch)
{
	if (watch->count)
		return cli_error("the time is up, %" PRIu64 " event%s too early", watch->count,
				 watch->count == 1 ? "" : "s");
	return 0;
}

static int watch_stream(struct watch *watch, struct weightd_watch *source)
{
	struct weightd_event event;
	int r;

	for (;;) {
		event = (struct weightd_event){.size = sizeof(event)};
		r = weightd_watch_next(source, left_ms(watch), &event);
		if (r == -ETIMEDOUT)
			return late(watch);
		if (r < 0)
			return cli_fail(watch->cli, r);
		if (!is_wanted(watch, &event))
			continue;
		r = watch_print(watch, &event);
		if (r || (watch->count && !--watch->count))
			return r;
	}
}

/* Ends the process at a signal, or as a write to a pipe without a reader would. */
static void *look_after_ends(void *userdata)
{
	struct pollfd fds[] = {
		{.fd = *(const int *)userdata, .events = POLLIN},
		{.fd = STDOUT_FILENO}, /* poll() always reports POLLERR */
	};

	while (poll(fds, 2, -1) < 0 || !(fds[0].revents | fds[1].revents))
		continue;
	if (fds[0].revents)
		_exit(EXIT_SUCCESS);
	(void)raise(SIGPIPE);
	_exit(EXIT_FAILED);
}

static int connect_and_stream(struct watch *watch, bool quiet)
{
	struct weightd_watch *source;
	int r;

	if (server_connect(watch->cli))
		return EXIT_FAILED;
	r = weightd_watch_new(watch->cli->w, &source);
	if (r < 0)
		return cli_fail(watch->cli, r);
	if (!quiet)
		(void)fputs("weightctl: watching\n", stderr); /* no event from now on is missed */
	r = watch_stream(watch, source);
	weightd_watch_free(source);
	return r;
}

static int run_watch(struct watch *watch, bool quiet)
{
	pthread_t thread;
	int fd, r;

	fd = signals_open();
	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	r = pthread_create(&thread, NULL, look_after_ends, &fd);
	if (r) {
		(void)close(fd);
		return cli_error("cannot start a thread: %s", strerror(r));
	}
	r = connect_and_stream(watch, quiet);
	/* Before standard output is closed, which looks like a reader that closed the pipe. */
	(void)pthread_cancel(thread);
	(void)pthread_join(thread, NULL);
	(void)close(fd);
	return r;
}

static int watch_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"count", required_argument, NULL, 'c'},
		{"timeout", required_argument, NULL, 't'},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_DEVICE,
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct watch watch = {.cli = cli};
	bool quiet = false;
	int option, r;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "c:t:q", longs)) >= 0) {
		if (option == 'c')
			watch.count = cli_number(cli, "--count", optarg, 10, 1, UINT64_MAX);
		else if (option == 't')
			watch.deadline_ns = clock_now_ns() +
					    (uint64_t)cli_seconds(cli, "--timeout", optarg) *
						    1000000;
		else
			quiet = true;
	}
	watch.names = argv + optind;
	for (char **n = watch.names; *n; n++)
		(void)cli_name(cli, *n);
	watch.line = open_memstream(&watch.text, &watch.size);
	if (!watch.line)
		cli_out_of_memory();
	r = run_watch(&watch, quiet);
	(void)fclose(watch.line);
	free(watch.text);
	return r;
}

const struct verb verb_watch = {
	.name = "watch",
	.args = "[NAME...]",
	.summary = "Print events of buffers, as they happen",
	.options =
		" -c, --count COUNT      end after that many events\n"
		" -t, --timeout SECONDS  end after that time; with -c, with exit code 1\n"
		" -q, --quiet            no message on standard error at the start\n"
		" -J, --json             write a JSON object for each event, a line each\n" HELP_DEVICE,
	.run = watch_run,
};
