/*
 * weightctl trace log: print what processes did with memory and communicators, as observed by weightd-trace
 *
 * Kinds of events are not hard-coded: the names of an event's members determine its text, so that a new kind needs no
 * new weightctl.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

enum option_of_log {
	OPTION_PID = OPTION_OWN,
	OPTION_ACT,
};

struct log {
	struct cli *cli;
	uint64_t pid; /* UINT64_MAX: any */
	const char *act; /* prefix of its word; NULL: any */
	bool follows, quiet;
	struct control_client control;
	uint64_t last; /* number of the last event printed */
	FILE *line;
	char *text;
	size_t size;
};

struct act {
	uint64_t number; /* 0: it has none */
	uint64_t realtime_ns;
	uint32_t pid, uid; /* UINT32_MAX: unknown */
	const char *comm, *act, *function;
	char *what, *result;
	uint64_t took_ns;
};

#define ACT(member) offsetof(struct act, member)

static const char *trace_log_user(const void *row, bool json)
{
	const struct act *act = row;

	(void)json;
	return act->uid == UINT32_MAX ? NULL : user_name(act->uid);
}

static const struct column columns[] = {
	{"NUMBER", COLUMN_VERSION, ACT(number), .help = "number, for references of other acts"},
	{"TIME", COLUMN_TIME, ACT(realtime_ns), .help = "time of its end (UTC)"},
	{"AGE", COLUMN_AGE, ACT(realtime_ns), .help = "time since then", .shown = true},
	{"PID", COLUMN_INDEX, ACT(pid), .help = "process that did it", .shown = true},
	{"PROCESS", COLUMN_TEXT, ACT(comm), .help = "its name", .shown = true, .cut = true,
	 .width = 8},
	{"USER", COLUMN_WORD, .word = trace_log_user, .help = "user of the process"},
	{"UID", COLUMN_INDEX, ACT(uid), .help = "the same as a number"},
	{"ACT", COLUMN_TEXT, ACT(act), .help = "kind of act, see weightd-trace(8)", .shown = true},
	{"WHAT", COLUMN_TEXT, ACT(what), .help = "objects of the act", .shown = true, .cut = true,
	 .width = 0.3},
	{"RESULT", COLUMN_TEXT, ACT(result), .help = "ok, or how it failed", .shown = true},
	{"TOOK", COLUMN_DURATION, ACT(took_ns), .help = "from the call to its return", .shown = true},
	{"FUNCTION", COLUMN_TEXT, ACT(function), .help = "function called"},
	{},
};

static void put_number(FILE *f, const char *before, const json_t *value)
{
	if (json_is_integer(value))
		(void)fprintf(f, "%s%" JSON_INTEGER_FORMAT, before, json_integer_value(value));
}

static void put_bytes(FILE *f, const char *before, const json_t *value)
{
	char text[SIZE_TEXT_MAX];

	if (json_is_integer(value) && json_integer_value(value) >= 0)
		(void)fprintf(f, "%s%s", before,
			      size_text(text, (uint64_t)json_integer_value(value)));
}

static void put_text(FILE *f, const char *before, const json_t *value)
{
	if (!json_is_string(value))
		return;
	(void)fputs(before, f);
	escape_text(f, json_string_value(value));
}

static void put_duration(FILE *f, const char *before, const json_t *value)
{
	char text[SIZE_TEXT_MAX];

	if (json_is_integer(value) && json_integer_value(value) >= 0)
		(void)fprintf(f, "%s%s", before,
			      size_duration(text, (uint64_t)json_integer_value(value)));
}

/* "from 4711 (trainer)" */
static void put_from(FILE *f, const char *before, const json_t *value)
{
	put_number(f, before, json_object_get(value, "pid"));
	put_text(f, " (", json_object_get(value, "comm"));
	if (json_is_string(json_object_get(value, "comm")))
		(void)fputc(')', f);
}

/*
 * Members that stand before all others, in this order: "llama-8b@3, 16.1 GB", "1.0 GB on fd 12, from 4711 (trainer),
 * memfd weights by message", "rank 0 of 2", "qp 257 to qp 119 at fe80::1", "bytes of member".
 */
/* clang-format off */
static const struct phrase {
	const char *key;
	const char *joint; /* to what stands before */
	const char *before;
	void (*put)(FILE *f, const char *before, const json_t *value);
} phrases[] = {
	{"buffer", ", ", "", put_text},
	{"version", "", "@", put_number},
	{"bytes", ", ", "", put_bytes},
	{"fd", " ", "on fd ", put_number},
	{"rank", ", ", "rank ", put_number},
	{"ranks", " ", "of ", put_number},
	{"peer", ", ", "peer ", put_number},
	{"qp", ", ", "qp ", put_number},
	{"peer_qp", " ", "to qp ", put_number},
	{"peer_gid", " ", "at ", put_text},
	{"from", ", ", "from ", put_from},
	{"memory", ", ", "", put_text},
	{"name", " ", "", put_text},
	{"by", " ", "by ", put_text},
	{"held_ns", ", ", "held for ", put_duration},
	{"phase", ", ", "", put_text},
	{"role", " of ", "", put_text},
};
/* clang-format on */

#define N_PHRASES (sizeof(phrases) / sizeof(*phrases))

/* Members with a column of their own, and those without a meaning for people. */
static const char *const silent[] = {
	"kind",         "act",          "number",  "ns",         "took_ns", "pid",
	"tid",          "uid",          "comm",    "function",   "result",  "failed",
	"address",      "communicator", "calls",   "calling_ns", "parent",  "source",
	"registration", "since_ns",     "from_ns", "inode",
};

static bool is_silent(const char *key)
{
	for (size_t i = 0; i < sizeof(silent) / sizeof(*silent); i++)
		if (!strcmp(silent[i], key))
			return true;
	for (size_t i = 0; i < N_PHRASES; i++)
		if (!strcmp(phrases[i].key, key))
			return true;
	return false;
}

/* "device cuda:0" */
static void put_other(FILE *f, const char *key, const json_t *value)
{
	escape_text(f, key);
	put_number(f, " ", value);
	put_text(f, " ", value);
	if (json_is_boolean(value))
		(void)fputs(json_is_true(value) ? " yes" : " no", f);
}

static bool is_plain(const json_t *value)
{
	return json_is_string(value) || json_is_integer(value) || json_is_boolean(value);
}

static void put_joint(FILE *f, const char *joint)
{
	if (ftell(f) > 0)
		(void)fputs(joint, f);
}

/* "812 ncclAllReduce": an act that is of many calls. */
static void put_calls(FILE *f, const json_t *act)
{
	put_number(f, "", json_object_get(act, "calls"));
	if (ftell(f) > 0)
		put_text(f, " ", json_object_get(act, "function"));
}

/* The objects of the event as a sentence: "1.0 GB on fd 12, from 4711 (trainer)". The caller frees it. */
static char *what_of(json_t *act)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	const char *key;
	json_t *value;

	if (!f)
		cli_out_of_memory();
	put_calls(f, act);
	for (size_t i = 0; i < N_PHRASES; i++) {
		value = json_object_get(act, phrases[i].key);
		if (!value || json_is_null(value))
			continue;
		put_joint(f, phrases[i].joint);
		phrases[i].put(f, phrases[i].before, value);
	}
	json_object_foreach(act, key, value)
	{
		if (is_silent(key) || !is_plain(value))
			continue;
		put_joint(f, ", ");
		put_other(f, key, value);
	}
	if (fclose(f) != 0)
		cli_out_of_memory();
	return text;
}

static char *result_of(const json_t *act)
{
	const json_t *failed = json_object_get(act, "failed");
	char *text = NULL;
	int r = 0;

	if (!json_is_boolean(failed))
		return NULL;
	if (json_is_true(failed) && json_is_integer(json_object_get(act, "result")))
		r = asprintf(&text, "error %" JSON_INTEGER_FORMAT,
			     json_integer_value(json_object_get(act, "result")));
	else
		r = asprintf(&text, "%s", json_is_true(failed) ? "failed" : "ok");
	if (r < 0)
		cli_out_of_memory();
	return text;
}

static struct act act_of(json_t *json)
{
	return (struct act){
		.number = json_field_number(json, "number", 0),
		.realtime_ns = json_field_moment(json, "ns"),
		.pid = json_field_id(json, "pid"),
		.uid = json_field_id(json, "uid"),
		.comm = json_field_text(json, "comm"),
		.act = json_field_text(json, "act"),
		.function = json_field_text(json, "function"),
		.what = what_of(json),
		.result = result_of(json),
		.took_ns = json_field_number(json, "took_ns", UINT64_MAX),
	};
}

static void act_deinit(struct act *act)
{
	free(act->what);
	free(act->result);
}

static bool is_act(const json_t *packet)
{
	return json_field_is_kind(packet, "act") || json_field_is_kind(packet, "acted");
}

static bool is_wanted(const struct log *l, const json_t *act)
{
	const char *word = json_field_text(act, "act");

	if (!word || !is_act(act))
		return false;
	if (l->pid != UINT64_MAX && json_field_number(act, "pid", UINT64_MAX) != l->pid)
		return false;
	return !l->act || !strncmp(word, l->act, strlen(l->act));
}

static void line_json(FILE *f, const json_t *json)
{
	if (json_dumpf(json, f, JSON_COMPACT | JSON_ENSURE_ASCII) < 0)
		cli_out_of_memory();
	(void)fputc('\n', f);
}

/* One that is NULL is passed over. */
static void put_part(FILE *f, const char *before, const char *text)
{
	if (!text || !*text)
		return;
	(void)fputs(before, f);
	escape_text(f, text);
}

/* "2026-11-24T14:31:07Z  4711 trainer  cuda_ipc_open: 1.0 GB, from 4712 (loader): error 201, 12 us" */
static void line_text(FILE *f, json_t *json)
{
	static const struct column time = COLUMN("TIME", COLUMN_TIME, ACT(realtime_ns));
	cleanup(act_deinit) struct act act = act_of(json);
	char took[SIZE_TEXT_MAX];

	column_text(&time, &act, false, f);
	if (act.pid != UINT32_MAX)
		(void)fprintf(f, "  %" PRIu32, act.pid);
	put_part(f, act.pid != UINT32_MAX ? " " : "  ", act.comm);
	put_part(f, "  ", act.act);
	put_part(f, ": ", act.what);
	if (json_field_bool(json, "failed"))
		put_part(f, ": ", act.result);
	if (act.took_ns != UINT64_MAX)
		(void)fprintf(f, ", %s", size_duration(took, act.took_ns));
	(void)fputc('\n', f);
}

static int print_line(struct log *l, json_t *act)
{
	if (!is_wanted(l, act))
		return 0;
	rewind(l->line);
	if (l->cli->format.json)
		line_json(l->line, act);
	else
		line_text(l->line, act);
	if (fflush(l->line) < 0)
		cli_out_of_memory();
	return cli_write(l->text, (uint64_t)ftell(l->line));
}

static int print_lines(struct log *l, const json_t *rows)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		if (print_line(l, row))
			return EXIT_FAILED;
	}
	return 0;
}

/* Prints that there are none; possibly no probe is active. */
static void say_none(const struct log *l)
{
	(void)fprintf(stderr,
		      "weightctl: there are no %sacts; 'weightctl trace doctor' shows the active "
		      "probes\n",
		      l->act || l->pid != UINT64_MAX ? "such " : "");
}

static int print_table(const struct log *l, struct table *table, const json_t *rows)
{
	json_t *row;
	size_t i, n = 0;

	table_begin(table, NULL, NULL);
	json_array_foreach(rows, i, row)
	{
		if (is_wanted(l, row)) {
			cleanup(act_deinit) struct act act = act_of(row);

			table_row(table, &act);
			n++;
		}
	}
	if (!n)
		say_none(l);
	return table_end(table);
}

/* Once. */
static int trace_log_print(struct log *l)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	cleanup(table_deinit) struct table table = {};

	table_init(&table, &l->cli->format, columns);
	if (control_client_rows(l->cli, json_pack("{s:s}", "op", "acts"), &rows))
		return EXIT_FAILED;
	return l->cli->format.json ? print_lines(l, rows) : print_table(l, &table, rows);
}

/* Prints how many events were lost; for calls into a file before it was probed the number is unknown. */
static void say_gap(json_t *gap)
{
	uint64_t from_ns = json_field_number(gap, "from_ns", 0),
		 to_ns = json_field_number(gap, "to_ns", 0);
	const char *path = json_field_text(gap, "path");
	char took[SIZE_TEXT_MAX];

	if (!path) {
		(void)fprintf(stderr, "weightctl: %" PRIu64 " events were lost\n",
			      json_field_number(gap, "lost", 0));
		return;
	}
	put_part(stderr, "weightctl: calls into ", path);
	(void)fprintf(stderr, " before it was probed, in %s at the most, are unknown\n",
		      size_duration(took, to_ns < from_ns ? 0 : to_ns - from_ns));
}

/* Skips events that were printed already: some arrive while the past ones are sent. */
static int trace_log_take(struct log *l, json_t *packet)
{
	uint64_t number = json_field_number(packet, "number", 0);

	if (json_field_is_kind(packet, "gap"))
		say_gap(packet);
	if (!is_act(packet) || (number && number <= l->last))
		return 0;
	if (number)
		l->last = number;
	return print_line(l, packet);
}

/* 0: the whole reply was printed. */
static int hear_answer(struct log *l, const char *op, bool tells)
{
	if (control_client_ask(&l->control, json_pack("{s:s}", "op", op)))
		return EXIT_FAILED;
	for (;;) {
		cleanup(json_decrefp) json_t *packet = NULL;

		if (control_client_next(&l->control, &packet))
			return EXIT_FAILED;
		if (control_client_error(packet))
			return cli_error("%s", control_client_error(packet));
		if (control_client_is_end(packet))
			return 0;
		/* A new event is among the past ones, or follows them. */
		if (tells && json_field_is_kind(packet, "acted") && trace_log_take(l, packet))
			return EXIT_FAILED;
	}
}

static int trace_log_follow(struct log *l, int signal_fd)
{
	for (;;) {
		cleanup(json_decrefp) json_t *packet = NULL;
		struct pollfd fds[] = {
			{.fd = l->control.fd, .events = POLLIN},
			{.fd = signal_fd, .events = POLLIN},
			{.fd = STDOUT_FILENO}, /* poll() always reports POLLERR */
		};
		int r;

		(void)poll(fds, 3, -1);
		if (signals_take(signal_fd))
			return 0;
		if (fds[2].revents & POLLERR) /* as a write would end it */
			(void)raise(SIGPIPE);
		r = control_client_take(&l->control, &packet);
		if (r == 0)
			r = trace_log_take(l, packet);
		if (r && r != -EAGAIN)
			return r;
	}
}

static int run_follow(struct log *l)
{
	int fd = signals_open(), r = EXIT_FAILED;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	if (!control_client_open(l->cli, &l->control) && !hear_answer(l, "observe", false) &&
	    !hear_answer(l, "acts", true)) {
		if (!l->quiet)
			(void)fputs("weightctl: following\n", stderr); /* nothing is missed */
		r = trace_log_follow(l, fd);
	}
	control_client_deinit(&l->control);
	(void)close(fd);
	return r;
}

static int trace_log_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"pid", required_argument, NULL, OPTION_PID},
		{"act", required_argument, NULL, OPTION_ACT},
		{"follow", no_argument, NULL, 'f'},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_TABLE,
		OPTIONS_TRACER,
		{},
	};
	struct log l = {.cli = cli, .pid = UINT64_MAX, .control.fd = -1};
	int option, r;

	while ((option = cli_option(cli, argc, argv, LETTERS_TABLE "fq", longs)) >= 0) {
		if (option == OPTION_PID)
			l.pid = cli_number(cli, "--pid", optarg, 10, 1, INT32_MAX);
		else if (option == OPTION_ACT)
			l.act = optarg;
		else if (option == 'f')
			l.follows = true;
		else
			l.quiet = true;
	}
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	if (l.follows && cli->format.columns)
		cli_usage(cli, "--follow writes lines, which have no columns for --output");
	l.line = open_memstream(&l.text, &l.size);
	if (!l.line)
		cli_out_of_memory();
	r = l.follows ? run_follow(&l) : trace_log_print(&l);
	(void)fclose(l.line);
	free(l.text);
	return r;
}

const struct verb verb_trace_log = {
	.name = "trace log",
	.args = "",
	.summary = "Show acts on memory and communicators",
	.options = "     --pid PID          only acts of this process\n"
		   "     --act WORD         only acts with this prefix: cuda, qp_connect\n"
		   " -f, --follow           continue with new acts, a line each\n"
		   " -q, --quiet            no message on standard error at the start\n"
		   " -J, --json             write JSON, an object a line\n"
		   " -o, --output COLUMNS   columns to show, by commas; +COLUMNS adds to the "
		   "usual\n"
		   " -n, --noheadings       leave out the headings\n"
		   " -b, --bytes            sizes in bytes\n",
	.columns = columns,
	.peer = PEER_TRACER,
	.run = trace_log_run,
};
