/*
 * weightctl sync watch: print what happens between nodes, a line for each event, as it happens.
 *
 * As JSON, an event is printed as the agent sent it, in ASCII: new kinds of events need no new weightctl.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/keepalive.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

struct sync_watch {
	struct cli *cli;
	struct control_client control;
	bool quiet;
	FILE *line;
	char *text;
	size_t size;
};

static void sync_watch_put(FILE *f, const char *before, const char *text)
{
	if (!text)
		return;
	(void)fputs(before, f);
	escape_text(f, text);
}

static void put_bytes(FILE *f, const json_t *event)
{
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];
	uint64_t expected = json_field_number(event, "expected", 0);
	uint64_t rate = json_field_number(event, "rate", 0);

	if (!expected)
		return;
	(void)fprintf(f, ", %s of %s", size_text(a, json_field_number(event, "done", 0)),
		      size_text(b, expected));
	if (rate)
		(void)fprintf(f, ", %s", size_rate(a, rate, 1000000000));
}

static void put_time(FILE *f)
{
	static const struct column column = COLUMN("TIME", COLUMN_TIME, 0);
	uint64_t ns = clock_ns(CLOCK_REALTIME);

	column_text(&column, &ns, false, f);
}

/* A plan of many links is sent in several events. */
static void put_links(FILE *f, const json_t *event)
{
	const json_t *links = json_object_get(event, "links"), *link;
	char text[SIZE_TEXT_MAX];
	uint64_t n, n_stripes = 1;
	size_t i;

	if (!json_is_array(links))
		return;
	(void)fprintf(f, "  plan, %s over each of %zu links",
		      size_text(text, json_field_number(event, "changed", 0)),
		      json_array_size(links));
	json_array_foreach(links, i, link)
	{
		n = json_field_number(link, "stripes", 1);
		n_stripes = n > n_stripes ? n : n_stripes;
	}
	if (n_stripes > 1)
		(void)fprintf(f, ", in up to %ju stripes", (uintmax_t)n_stripes);
}

/* "2026-11-21T06:35:37Z  5f3a9c0011223344  llama 1.7  b: bytes, 312.0 MB of 1.0 GB, 118.0 MB/s" */
static void line_text(FILE *f, const json_t *event)
{
	const char *text = json_field_text(event, "text"), *phase = json_field_text(event, "phase");
	const char *why = json_field_text(event, "why");

	put_time(f);
	if (text) {
		sync_watch_put(f, "  ", json_field_text(event, "level"));
		sync_watch_put(f, ": ", text);
	} else {
		sync_watch_put(f, "  ", json_field_text(event, "sync"));
		sync_watch_put(f, "  ", json_field_text(event, "buffer"));
		sync_watch_put(f, " ", sync_version_text(sync_version_of(event)));
		sync_watch_put(f, "  ", json_field_text(event, "node"));
		sync_watch_put(f, json_field_text(event, "node") ? ": " : "  ",
			       phase ? phase : json_field_text(event, "state"));
		put_links(f, event);
		put_bytes(f, event);
		sync_watch_put(f, ": ",
			       why ? why
				   : control_client_error(
					     event)); /* the end of what failed has both, the same */
	}
	(void)fputc('\n', f);
}

static void line_json(FILE *f, const json_t *event)
{
	if (json_dumpf(event, f, JSON_COMPACT | JSON_ENSURE_ASCII) < 0)
		cli_out_of_memory();
	(void)fputc('\n', f);
}

static int sync_watch_print(struct sync_watch *w, const json_t *event)
{
	rewind(w->line);
	if (w->cli->format.json)
		line_json(w->line, event);
	else
		line_text(w->line, event);
	if (fflush(w->line) < 0)
		cli_out_of_memory();
	return cli_write(w->text, (uint64_t)ftell(w->line));
}

/* A refusal is the last packet, and so is one marked as the end. */
static int sync_watch_on_packet(struct sync_watch *w, const json_t *packet)
{
	const char *event = json_field_text(packet, "event");

	if (control_client_is_end(packet) && control_client_error(packet))
		return cli_error("%s", control_client_error(packet));
	if (control_client_is_end(packet))
		return CONTROL_END;
	if (!event || strcmp(event, "watching") != 0)
		return sync_watch_print(w, packet);
	if (!w->quiet)
		(void)fputs("weightctl: watching\n", stderr); /* no event from now on is missed */
	return 0;
}

static int sync_watch_stream(struct sync_watch *w, int signal_fd)
{
	cleanup(keepalive_deinit) struct keepalive keepalive;
	int r = 0;

	keepalive_init(&keepalive, w->cli);
	while (r == 0) {
		cleanup(json_decrefp) json_t *packet = NULL;
		struct pollfd fds[] = {
			{.fd = w->control.fd, .events = POLLIN},
			{.fd = signal_fd, .events = POLLIN},
			{.fd = STDOUT_FILENO}, /* poll() always reports POLLERR */
			{.fd = keepalive.control.fd, .events = POLLIN},
		};

		(void)poll(fds, 4, keepalive_timeout_ms(&keepalive));
		if (signals_take(signal_fd))
			return 0;
		if (fds[2].revents & POLLERR) /* as a write would end it */
			(void)raise(SIGPIPE);
		r = control_client_take(&w->control, &packet);
		if (r == 0)
			keepalive_reset(&keepalive);
		if (r == 0)
			r = sync_watch_on_packet(w, packet);
		else if (r == -EAGAIN)
			r = keepalive_check(&keepalive);
	}
	return r == CONTROL_END ? 0 : r;
}

static int sync_watch_follow(struct sync_watch *w)
{
	int fd = signals_open(), r = EXIT_FAILED;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	if (!control_client_open(w->cli, &w->control) &&
	    !control_client_ask(&w->control, json_pack("{s:s}", "op", "watch")))
		r = sync_watch_stream(w, fd);
	(void)close(fd);
	return r;
}

static int sync_watch_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_JSON,
		OPTIONS_AGENT,
		{},
	};
	struct sync_watch w = {.cli = cli, .control.fd = -1};
	int r;

	while (cli_option(cli, argc, argv, LETTERS_JSON "q", longs) >= 0)
		w.quiet = true;
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	w.line = open_memstream(&w.text, &w.size);
	if (!w.line)
		cli_out_of_memory();
	r = sync_watch_follow(&w);
	control_client_deinit(&w.control);
	(void)fclose(w.line);
	free(w.text);
	return r;
}

const struct verb verb_sync_watch = {
	.name = "sync watch",
	.args = "",
	.summary = "Print events between nodes, as they happen",
	.options = " -q, --quiet            no message on standard error at the start\n"
		   " -J, --json             write a JSON object for each event, a line each\n",
	.peer = PEER_AGENT,
	.run = sync_watch_run,
};
