/*
 * weightctl sync status: how far each node is with each sync, and which link is slow.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/redraw.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

#define AGAIN_MS 500

struct part {
	const char *sync;
	const char *kind;
	const char *buffer;
	const char *group;
	const char *role;
	const char *node;
	const char *phase;
	const char *from;
	const char *by;
	const char *why;
	struct sync_version version;
	struct sync_share share;
	uint64_t done;
	uint64_t expected;
	uint64_t rate; /* 0: nothing moves */
	uint64_t left_ns; /* UINT64_MAX: unknown */
	uint64_t epoch;
	bool slow;
};

#define PART(member) offsetof(struct part, member)

static const char *sync_status_version(const void *row, bool json)
{
	(void)json;
	return sync_version_text(((const struct part *)row)->version);
}

static const struct column columns[] = {
	{"SYNC", COLUMN_TEXT, PART(sync), .help = "its name", .shown = true, .cut = true, .width = 8},
	{"KIND", COLUMN_TEXT, PART(kind),
	 .help = "push, average, reshard, or repair of a node that was behind"},
	{"BUFFER", COLUMN_TEXT, PART(buffer), .help = "name of the buffer", .shown = true,
	 .cut = true, .width = 6},
	{"GROUP", COLUMN_TEXT, PART(group), .help = "group of nodes"},
	{"VERSION", COLUMN_WORD, .word = sync_status_version,
	 .help = "TERM.NUMBER, the same on every node", .shown = true},
	{"TERM", COLUMN_VERSION, PART(version.term), .help = "grows with each change of publisher"},
	{"NUMBER", COLUMN_VERSION, PART(version.number), .help = "grows with each push"},
	{"ROLE", COLUMN_TEXT, PART(role), .help = "role of this node: publisher or member"},
	{"NODE", COLUMN_TEXT, PART(node), .help = "node that receives the version", .shown = true,
	 .cut = true, .width = 4},
	{"PHASE", COLUMN_TEXT, PART(phase), .help = "present phase; see weightctl(1)", .shown = true},
	{"BY", COLUMN_TEXT, PART(by), .help = "form of the bytes: full, leaves or patch",
	 .shown = true},
	{"DONE", COLUMN_SIZE, PART(done), .help = "bytes that it has", .shown = true},
	{"EXPECTED", COLUMN_SIZE, PART(expected), .help = "bytes expected in all", .shown = true},
	{"RATE", COLUMN_RATE, PART(rate), .help = "bytes a second into it", .shown = true},
	{"LEFT", COLUMN_CLOCK, PART(left_ns), .help = "time at that rate", .shown = true},
	{"FROM", COLUMN_TEXT, PART(from), .help = "node that sends to it", .shown = true,
	 .cut = true, .width = 4},
	{"SLOW", COLUMN_BOOL, PART(slow), .help = "its link is; those behind it in the chain wait"},
	{"SIZE", COLUMN_COUNTED, PART(share.size), .help = "bytes of the version"},
	{"CHANGED", COLUMN_COUNTED, PART(share.changed), .help = "bytes in parts that differ"},
	{"PATCH", COLUMN_COUNTED, PART(share.patch), .help = "bytes sent instead of those"},
	{"DIFFER", COLUMN_COUNTED, PART(share.differ), .help = "bytes of elements that differ"},
	{"SHARE", COLUMN_PART, PART(share.travelled), .help = "part of SIZE that is sent"},
	{"DENSITY", COLUMN_PART, PART(share.differed),
	 .help = "part of SIZE that differs, by elements"},
	{"EPOCH", COLUMN_U64, PART(epoch), .help = "attempts to move the bytes, this one included"},
	{"WHY", COLUMN_TEXT, PART(why), .help = "reason for its state; below the table, too"},
	{},
};

static struct part part_of(const json_t *row)
{
	struct part p = {
		.sync = json_field_text(row, "sync"),
		.kind = json_field_text(row, "kind"),
		.buffer = json_field_text(row, "buffer"),
		.group = json_field_text(row, "group"),
		.role = json_field_text(row, "role"),
		.node = json_field_text(row, "node"),
		.phase = json_field_text(row, "phase"),
		.from = json_field_text(row, "from"),
		.why = json_field_text(row, "why"),
		.version = sync_version_of(row),
		.share = sync_share_of(row),
		.by = json_field_text(row, "by"),
		.done = json_field_number(row, "done", 0),
		.expected = json_field_number(row, "expected", 0),
		.rate = json_field_number(row, "rate", 0),
		.left_ns = UINT64_MAX,
		.epoch = json_field_number(row, "epoch", 0),
		.slow = json_field_bool(row, "slow"),
	};
	double left;

	if (p.rate && p.done < p.expected) {
		left = (double)(p.expected - p.done) / (double)p.rate * 1e9;
		p.left_ns = left < 1e18 ? (uint64_t)left + 999999999 : UINT64_MAX; /* rounded up */
	}
	return p;
}

/* Nothing will happen to it any more. */
static bool is_over(const struct part *p)
{
	static const char *const over[] = {"committed", "failed", "absent", "unknown", "planned"};

	for (size_t i = 0; i < sizeof(over) / sizeof(*over); i++)
		if (p->phase && !strcmp(p->phase, over[i]))
			return true;
	return false;
}

static bool are_over(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const struct part p = part_of(row);

		if (!is_over(&p))
			return false;
	}
	return true;
}

/*
 * Chooses among all syncs that the agent keeps, if none was named: those in progress, and those that were in an
 * earlier round; else the last one. `shown` has their names.
 */
static void sync_status_choose(json_t *rows, json_t *shown)
{
	const char *last = NULL;
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const struct part p = part_of(row);

		last = p.sync ? p.sync : last;
		if (p.sync && !is_over(&p) && json_object_set_new(shown, p.sync, json_true()) < 0)
			cli_out_of_memory();
	}
	if (last && !json_object_size(shown) && json_object_set_new(shown, last, json_true()) < 0)
		cli_out_of_memory();
	for (i = json_array_size(rows); i > 0; i--) {
		const char *sync = json_field_text(json_array_get(rows, i - 1), "sync");

		if (sync && !json_object_get(shown, sync))
			(void)json_array_remove(rows, i - 1);
	}
}

static void sync_status_say(FILE *f, const struct part *p, const char *sentence)
{
	char what[128];

	if (p->sync && sync_begins_with(sentence, p->sync)) {
		sync_say(f, p->sync, sentence);
		return;
	}
	(void)snprintf(what, sizeof(what), "%.20s %.80s", p->sync ? p->sync : "-",
		       p->node ? p->node : "-");
	sync_say(f, what, sentence);
}

static void say_slow(FILE *f, const struct part *p)
{
	char sentence[256];

	(void)snprintf(sentence, sizeof(sentence),
		       "receives it slowly from %.63s; nodes behind it wait",
		       p->from ? p->from : "the node before it");
	sync_status_say(f, p, sentence);
}

/* Below the table: what does not fit into it. */
static void print_sentences(FILE *f, const json_t *rows)
{
	bool any = false;
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const struct part p = part_of(row);

		if (!p.why && !p.slow)
			continue;
		if (!any)
			any = fputc('\n', f) != EOF;
		if (p.slow)
			say_slow(f, &p);
		if (p.why)
			sync_status_say(f, &p, p.why);
	}
}

static int sync_status_print(const struct cli *cli, FILE *f, const json_t *rows)
{
	cleanup(table_deinit) struct table table = {};
	struct json json = {.file = f};
	const json_t *row;
	size_t i;
	int r;

	table_init(&table, &cli->format, columns);
	table.out = f;
	table.is_redrawn = f != stdout;
	if (cli->format.json)
		json_open(&json, NULL, '{');
	table_begin(&table, &json, "syncs");
	json_array_foreach(rows, i, row)
	{
		const struct part p = part_of(row);

		table_row(&table, &p);
	}
	r = table_end(&table);
	if (cli->format.json)
		json_close(&json, '}');
	else if (!r && !cli->format.columns && !cli->format.noheadings)
		print_sentences(f, rows);
	return r;
}

/* Escapes and cuts as sync_status_print() does, as that is all that reaches the screen. */
static int sync_status_draw(const struct cli *cli, struct redraw *redraw, const json_t *rows)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int r;

	if (!f)
		cli_out_of_memory();
	r = sync_status_print(cli, f, rows);
	if (fclose(f) == EOF)
		cli_out_of_memory();
	if (!r)
		r = redraw_text(redraw, text);
	free(text);
	return r;
}

/* `sync` is "" for those that sync_status_choose() takes. */
static int sync_status_ask(const struct cli *cli, const char *sync, json_t *shown, json_t **ret)
{
	int r = control_client_rows(
		cli, json_pack("{s:s, s:s?}", "op", "status", "sync", *sync ? sync : NULL), ret);

	if (!r && !*sync)
		sync_status_choose(*ret, shown);
	else if (!r && !json_array_size(*ret))
		return cli_error("this node has no sync %s in progress; 'weightctl sync history' "
				 "shows finished ones",
				 sync);
	return r;
}

/* Until all have ended or a signal arrives. Without a terminal, prints only at the end. */
static int sync_status_follow(const struct cli *cli, const char *sync, int signal_fd)
{
	struct pollfd p = {.fd = signal_fd, .events = POLLIN};
	cleanup(json_decrefp) json_t *shown = json_object();
	const bool can_draw = redraw_is_possible() && !cli->format.json;
	struct redraw redraw = {};
	bool over = false;
	int r;

	if (!shown)
		cli_out_of_memory();
	do {
		cleanup(json_decrefp) json_t *rows = NULL;

		r = sync_status_ask(cli, sync, shown, &rows);
		if (r)
			return r;
		over = are_over(rows);
		if (can_draw)
			r = sync_status_draw(cli, &redraw, rows);
		else if (over)
			r = sync_status_print(cli, stdout, rows);
	} while (!r && !over && poll(&p, 1, AGAIN_MS) == 0);
	return r;
}

static int sync_status_watch(const struct cli *cli, const char *sync)
{
	int fd = signals_open(), r;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	r = sync_status_follow(cli, sync, fd);
	(void)close(fd);
	return r;
}

static int sync_status_show(const struct cli *cli, const char *sync)
{
	cleanup(json_decrefp) json_t *shown = json_object();
	cleanup(json_decrefp) json_t *rows = NULL;

	if (!shown)
		cli_out_of_memory();
	return sync_status_ask(cli, sync, shown, &rows) ? EXIT_FAILED
							: sync_status_print(cli, stdout, rows);
}

static int sync_status_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"watch", no_argument, NULL, 'w'},
		OPTIONS_TABLE,
		OPTIONS_AGENT,
		{},
	};
	cleanup(table_deinit) struct table table = {};
	char sync[SYNC_ID_MAX] = "";
	bool watching = false;

	while (cli_option(cli, argc, argv, LETTERS_TABLE "w", longs) >= 0)
		watching = true;
	if (argc - optind > 1)
		cli_usage(cli, "'%s' wants one sync at most", cli->verb->name);
	table_init(&table, &cli->format, columns); /* a wrong -o is found before anything is asked */
	if (argc - optind == 1 && sync_find(cli, argv[optind], sync))
		return EXIT_FAILED;
	if (watching)
		return sync_status_watch(cli, sync);
	return sync_status_show(cli, sync);
}

const struct verb verb_sync_status = {
	.name = "sync status",
	.args = "[SYNC]",
	.summary = "Show the progress of each node, and slow links",
	.options = " -w, --watch            redraw until all have ended\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_AGENT,
	.run = sync_status_run,
};
