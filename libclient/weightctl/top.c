/*
 * weightctl top: what the sockets of each sync carry now, as the kernel counts it.
 *
 * A rate is what came since the frame before; in the first frame of a row, since it began.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "libclient/weightctl/agent.h"
#include "libclient/weightctl/ports.h"
#include "libclient/weightctl/screen.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/table.h"
#include "libclient/weightctl/verb.h"

enum option_of_top {
	OPTION_DELAY = OPTION_OWN,
	OPTION_ONCE,
	OPTION_SORT,
	OPTION_SYNC,
	OPTION_PEER,
};

/* A row of weightd-trace; UINT64_MAX, or NULL: not known. */
struct flow {
	const char *sync, *peer, *role;
	const char *limited_by;
	const char *process;
	const char *quality;
	const char *source;
	uint64_t number;
	uint64_t version;
	uint64_t delivered, received, done, expected;
	uint64_t submitted, consumed, wire, retrans;
	uint64_t rate; /* 0: nothing moves */
	uint64_t left_ns, elapsed_ns, rtt_ns;
	uint32_t sockets; /* open; UINT32_MAX: not known, likewise */
	uint32_t pid, uid;
	bool partial;
};

struct top {
	const struct cli *cli;
	const struct column *sort;
	const char *sync, *peer; /* NULL: any */
	int delay_ms;
	bool once;
	struct ports ports;
	json_t *before; /* rows of the last frame, by their numbers; NULL: this is the first */
	bool has_printed;
	struct screen screen;
};

#define FLOW(member) offsetof(struct flow, member)

static const struct column columns[] = {
	{"SYNC", COLUMN_TEXT, FLOW(sync), .help = "its name", .shown = true, .cut = true, .width = 8},
	{"VERSION", COLUMN_U64, FLOW(version), .help = "that travels"},
	{"PEER", COLUMN_TEXT, FLOW(peer), .help = "the other node", .shown = true, .cut = true,
	 .width = 8},
	{"ROLE", COLUMN_TEXT, FLOW(role), .help = "payload or control", .shown = true},
	{"DONE", COLUMN_COUNTED, FLOW(done), .help = "bytes delivered and received", .shown = true},
	{"EXPECTED", COLUMN_COUNTED, FLOW(expected), .help = "of so many", .shown = true},
	{"RATE", COLUMN_RATE, FLOW(rate), .help = "of that, bytes a second", .shown = true},
	{"RTT", COLUMN_DURATION, FLOW(rtt_ns), .help = "round trip, of the slowest connection",
	 .shown = true},
	{"RETRANS", COLUMN_COUNTED, FLOW(retrans), .help = "bytes that were sent again",
	 .shown = true},
	{"LIMITED", COLUMN_TEXT, FLOW(limited_by), .help = "what it waits for most", .shown = true,
	 .cut = true, .width = 7},
	{"PROCESS", COLUMN_TEXT, FLOW(process), .help = "that has it counted"},
	{"PID", COLUMN_INDEX, FLOW(pid), .help = "of that process"},
	{"UID", COLUMN_INDEX, FLOW(uid), .help = "of its user"},
	{"ELAPSED", COLUMN_DURATION, FLOW(elapsed_ns), .help = "since it began"},
	{"LEFT", COLUMN_CLOCK, FLOW(left_ns), .help = "time at that rate"},
	{"SUBMITTED", COLUMN_COUNTED, FLOW(submitted), .help = "bytes handed to the kernel"},
	{"DELIVERED", COLUMN_COUNTED, FLOW(delivered), .help = "of them, acknowledged"},
	{"RECEIVED", COLUMN_COUNTED, FLOW(received), .help = "bytes that came in"},
	{"CONSUMED", COLUMN_COUNTED, FLOW(consumed), .help = "of them, taken by the program"},
	{"WIRE", COLUMN_COUNTED, FLOW(wire), .help = "bytes sent, those sent again included"},
	{"SOCKETS", COLUMN_INDEX, FLOW(sockets), .help = "connections that are open"},
	{"PARTIAL", COLUMN_BOOL, FLOW(partial), .help = "some bytes went before they were counted"},
	{"QUALITY", COLUMN_TEXT, FLOW(quality), .help = "of DONE: exact, sampled or absent"},
	{"SOURCE", COLUMN_TEXT, FLOW(source), .help = "what counts: bpf or diag"},
	{"ROW", COLUMN_U64, FLOW(number), .help = "its number"},
	{},
};

static uint64_t known(const json_t *row, const char *key)
{
	return agent_number(row, key, UINT64_MAX);
}

static uint32_t known_index(const json_t *o, const char *key)
{
	uint64_t n = known(o, key);

	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static uint64_t done_of(const json_t *row)
{
	uint64_t delivered = known(row, "delivered"), received = known(row, "received"), sum;

	if (delivered == UINT64_MAX || received == UINT64_MAX ||
	    __builtin_add_overflow(delivered, received, &sum))
		return UINT64_MAX;
	return sum;
}

/* Of a frame: a text for want of other keys in JSON. */
static void key_of(const json_t *row, char ret[32])
{
	(void)snprintf(ret, 32, "%" PRIu64, known(row, "row"));
}

static uint64_t rate_of(const struct top *top, const json_t *row)
{
	uint64_t done = done_of(row), began_ns = known(row, "began_ns"), done_before = 0;
	uint64_t now_ns = known(row, "now_ns"), before_ns = began_ns;
	const json_t *before;
	char key[32];

	key_of(row, key);
	before = json_object_get(top->before, key);
	if (before && known(before, "began_ns") == began_ns) {
		done_before = done_of(before);
		before_ns = known(before, "now_ns");
	}
	if (done == UINT64_MAX || done <= done_before || now_ns <= before_ns)
		return 0;
	return (uint64_t)((double)(done - done_before) * 1e9 / (double)(now_ns - before_ns));
}

static uint64_t left_ns(const struct flow *f)
{
	double left;

	if (!f->rate || f->expected == UINT64_MAX || f->done >= f->expected)
		return UINT64_MAX;
	left = (double)(f->expected - f->done) / (double)f->rate * 1e9;
	return left < 1e18 ? (uint64_t)left + 999999999 : UINT64_MAX; /* rounded up */
}

static struct flow flow_of(const struct top *top, const json_t *row)
{
	const json_t *client = json_object_get(row, "client");
	uint64_t rtt_us = known(row, "rtt_us");
	uint64_t began_ns = known(row, "began_ns"), now_ns = known(row, "now_ns");
	uint32_t sockets = known_index(row, "sockets"), closed = known_index(row, "closed");
	struct flow f = {
		.sync = agent_text(row, "sync"),
		.peer = agent_text(row, "peer"),
		.role = agent_text(row, "role"),
		.limited_by = agent_text(row, "limited_by"),
		.process = agent_text(client, "comm"),
		.quality = agent_text(json_object_get(row, "quality"), "delivered"),
		.source = agent_text(row, "source"),
		.number = known(row, "row"),
		.version = agent_number(row, "version", 0),
		.delivered = known(row, "delivered"),
		.received = known(row, "received"),
		.done = done_of(row),
		.expected = known(row, "expected"),
		.submitted = known(row, "submitted"),
		.consumed = known(row, "consumed"),
		.wire = known(row, "wire"),
		.retrans = known(row, "retrans_bytes"),
		.rate = rate_of(top, row),
		.elapsed_ns = now_ns > began_ns ? now_ns - began_ns : UINT64_MAX,
		.rtt_ns = rtt_us < UINT64_MAX / 1000 ? rtt_us * 1000 : UINT64_MAX,
		.sockets = closed <= sockets ? sockets - closed : UINT32_MAX,
		.pid = known_index(client, "pid"),
		.uid = known_index(client, "uid"),
		.partial = agent_bool(row, "partial"),
	};

	f.left_ns = left_ns(&f);
	return f;
}

static int compare_texts(const char *a, const char *b)
{
	if (!a || !b)
		return !a - !b;
	return strcmp(a, b);
}

/* The greatest first, what is not known last. */
static int compare_numbers(uint64_t a, uint64_t b)
{
	a += 1; /* UINT64_MAX is the least */
	b += 1;
	return (a < b) - (a > b);
}

static const char *text_at(const struct flow *f, const struct column *c)
{
	return *(const char *const *)(const void *)((const char *)f + c->offset);
}

static uint64_t number_at(const struct flow *f, const struct column *c)
{
	const void *v = (const char *)f + c->offset;
	uint32_t index;

	if (c->kind == COLUMN_BOOL)
		return *(const bool *)v;
	if (c->kind != COLUMN_INDEX)
		return *(const uint64_t *)v;
	index = *(const uint32_t *)v;
	return index < UINT32_MAX ? index : UINT64_MAX;
}

static int compare(const void *left, const void *right, void *sort)
{
	const struct flow *a = left, *b = right;
	const struct column *c = sort;
	int r = c->kind == COLUMN_TEXT ? compare_texts(text_at(a, c), text_at(b, c))
				       : compare_numbers(number_at(a, c), number_at(b, c));

	return r ? r : compare_numbers(b->number, a->number);
}

static bool is_wanted(const struct top *top, const json_t *row)
{
	const char *sync = agent_text(row, "sync"), *peer = agent_text(row, "peer");

	return (!top->sync || (sync && !strncmp(sync, top->sync, strlen(top->sync)))) &&
	       (!top->peer || (peer && !strcmp(peer, top->peer)));
}

/* Those that are wanted, sorted; the caller frees them. Their texts are those of `rows`. */
static struct flow *take_flows(const struct top *top, const json_t *rows, size_t *ret_n)
{
	struct flow *flows = calloc(json_array_size(rows) + 1, sizeof(*flows));
	const json_t *row;
	size_t i, n = 0;

	if (!flows)
		cli_out_of_memory();
	json_array_foreach(rows, i, row) if (is_wanted(top, row)) flows[n++] = flow_of(top, row);
	qsort_r(flows, n, sizeof(*flows), compare, (void *)top->sort);
	*ret_n = n;
	return flows;
}

static int print(const struct top *top, FILE *f, const json_t *rows)
{
	static const struct column time_column = COLUMN("TIME", COLUMN_TIME, 0);
	cleanup(table_deinit) struct table table = {};
	struct json json = {.file = f, .is_line = true};
	struct timespec now;
	uint64_t now_ns;
	size_t n;
	cleanup(cli_freep) struct flow *flows = take_flows(top, rows, &n);
	int r;

	table_init(&table, top->cli, columns);
	table.out = f;
	(void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
	now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (top->cli->json) {
		json_open(&json, NULL, '{');
		column_json(&time_column, &now_ns, &json);
	}
	table_begin(&table, &json, "rows");
	for (size_t i = 0; i < n; i++)
		table_row(&table, &flows[i]);
	r = table_end(&table);
	if (top->cli->json) {
		ports_json(&top->ports, &json);
		json_close(&json, '}');
		return r;
	}
	if (!n)
		(void)fputs("nothing is counted now\n", f);
	if (!top->cli->columns && !top->cli->noheadings)
		ports_print(&top->ports, f);
	return r;
}

static int show(struct top *top, const json_t *rows)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	const bool draws = !top->cli->json && !top->once && screen_is_there();
	int r;

	if (!f)
		cli_out_of_memory();
	if (top->has_printed && !draws && !top->cli->json)
		(void)fputc('\n', f); /* between frames */
	r = print(top, f, rows);
	if (fclose(f) == EOF)
		cli_out_of_memory();
	if (!r)
		r = draws ? screen_draw(&top->screen, text) : cli_write(text, size);
	top->has_printed = true;
	free(text);
	return r;
}

static void remember(struct top *top, const json_t *rows)
{
	json_t *row;
	char key[32];
	size_t i;

	json_decref(top->before);
	top->before = json_object();
	json_array_foreach(rows, i, row)
	{
		key_of(row, key);
		if (json_object_set(top->before, key, row) < 0)
			cli_out_of_memory();
	}
}

/* Until a signal comes. */
static int show_all(struct top *top, int signal_fd)
{
	struct pollfd fds[] = {
		{.fd = signal_fd, .events = POLLIN},
		{.fd = STDOUT_FILENO}, /* POLLERR comes unasked */
	};
	int r;

	do {
		cleanup(agent_decrefp) json_t *rows = NULL;

		r = agent_rows(top->cli, json_pack("{s:s, s:b}", "op", "rows", "ports", 1), &rows);
		if (!r)
			ports_look(&top->ports, rows);
		if (!r)
			r = show(top, rows);
		if (!r)
			remember(top, rows);
	} while (!r && !top->once && poll(fds, 2, top->delay_ms) == 0);
	if (fds[1].revents & POLLERR) /* as a write would end it */
		(void)raise(SIGPIPE);
	return r;
}

static int run_top(struct top *top)
{
	int fd = signals_open(), r;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	r = show_all(top, fd);
	(void)close(fd);
	ports_deinit(&top->ports);
	json_decref(top->before);
	return r;
}

static const struct column *column_named(const struct cli *cli, const char *name)
{
	for (const struct column *c = columns; c->name; c++)
		if (!strcasecmp(c->name, name))
			return c;
	cli_usage(cli, "there is no column '%s'", name);
}

static int run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"delay", required_argument, NULL, OPTION_DELAY},
		{"once", no_argument, NULL, OPTION_ONCE},
		{"sort", required_argument, NULL, OPTION_SORT},
		{"sync", required_argument, NULL, OPTION_SYNC},
		{"peer", required_argument, NULL, OPTION_PEER},
		OPTIONS_TABLE,
		OPTIONS_TRACER,
		{},
	};
	cleanup(table_deinit) struct table table = {};
	struct top top = {.cli = cli, .sort = column_named(cli, "RATE"), .delay_ms = 1000};
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_TABLE, longs)) >= 0) {
		switch (option) {
		case OPTION_DELAY:
			top.delay_ms = cli_seconds(cli, "--delay", optarg);
			break;
		case OPTION_ONCE:
			top.once = true;
			break;
		case OPTION_SORT:
			top.sort = column_named(cli, optarg);
			break;
		case OPTION_SYNC:
			top.sync = optarg;
			break;
		default:
			top.peer = optarg;
		}
	}
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	table_init(&table, cli, columns); /* a wrong -o is found before anything is asked */
	return run_top(&top);
}

const struct verb verb_top = {
	.name = "top",
	.args = "",
	.summary = "Show what each sync carries now, as the kernel counts it",
	.options = "     --delay SECONDS    between frames (1)\n"
		   "     --once             show one frame\n"
		   "     --sort COLUMN      by which rows are sorted, the greatest first (RATE)\n"
		   "     --sync SYNC        only of this sync, or those that begin so\n"
		   "     --peer NODE        only what goes to and comes from this node\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_TRACER,
	.run = run,
};
