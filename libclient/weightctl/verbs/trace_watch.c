/*
 * weightctl trace watch: count the traffic of a program that tags no sockets.
 *
 * It counts for as long as this runs: the connection to weightd-trace keeps it going. A command is started here and
 * does nothing until it is watched, so that its first byte is counted, too.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/trace_row.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

#define NAME_MAX_SYNC 127 /* as weightd-trace takes them */
#define SETTLE_MS 1000 /* time for the kernel to send the last bytes of an ended program */
#define LOOK_MS 50
#define NAME_OF_PROCESS 16 /* with the NUL */
#define CANNOT_RUN 127 /* as of a shell */

enum option_of_watch {
	OPTION_PID = OPTION_OWN,
	OPTION_CGROUP,
	OPTION_SYNC,
	OPTION_PEER,
	OPTION_SECONDS,
};

/* A process or a control group. */
struct watched {
	pid_t pid; /* 0: it is a group */
	const char *cgroup;
	int fd; /* pidfd of the process, -1 once it has ended */
};

struct watch {
	const struct cli *cli;
	const char *sync, *peer;
	struct watched *targets;
	size_t n_targets;
	uint64_t end_ns; /* UINT64_MAX: until a signal arrives, or all watched processes have ended */
	char **command; /* NULL: none */
	pid_t child; /* that runs it, the last of the targets */
	int go_fd; /* it waits for a byte of this, and sends one where it could not run */
	int signal_fd;
	sigset_t signals; /* as they were, for the command */
	struct control_client control;
};

static const struct column columns[] = {
	{"PROCESS", COLUMN_TEXT, TRACE_ROW(process), .help = "process watched", .shown = true,
	 .cut = true, .width = 7},
	{"PID", COLUMN_INDEX, TRACE_ROW(pid), .help = "its number"},
	{"CONTAINER", COLUMN_TEXT, TRACE_ROW(container), .help = "container of the process",
	 .cut = true, .width = 12},
	{"CGROUP", COLUMN_TEXT, TRACE_ROW(cgroup),
	 .help = "its control group, or that which was watched", .cut = true, .width = 12},
	{"CONNECTIONS", COLUMN_INDEX, TRACE_ROW(connections), .help = "connections counted",
	 .shown = true},
	{"SUBMITTED", COLUMN_COUNTED, TRACE_ROW(submitted), .help = "bytes handed to the kernel",
	 .shown = true},
	{"DELIVERED", COLUMN_COUNTED, TRACE_ROW(delivered), .help = "part of it, acknowledged",
	 .shown = true},
	{"RECEIVED", COLUMN_COUNTED, TRACE_ROW(received), .help = "bytes received", .shown = true},
	{"CONSUMED", COLUMN_COUNTED, TRACE_ROW(consumed), .help = "part of it, taken by the program"},
	{"WIRE", COLUMN_COUNTED, TRACE_ROW(wire), .help = "bytes sent, those sent again included"},
	{"RETRANS", COLUMN_COUNTED, TRACE_ROW(retrans), .help = "bytes that were sent again",
	 .shown = true},
	{"LIMITED", COLUMN_TEXT, TRACE_ROW(limited_by), .help = "limit that took most time"},
	{"ELAPSED", COLUMN_DURATION, TRACE_ROW(elapsed_ns), .help = "time since the start",
	 .shown = true},
	{"RATE", COLUMN_RATE, TRACE_ROW(rate), .help = "bytes a second, of all that time"},
	{"PARTIAL", COLUMN_BOOL, TRACE_ROW(partial),
	 .help = "some bytes passed before counting began"},
	{"QUALITY", COLUMN_TEXT, TRACE_ROW(quality), .help = "exact, sampled or absent",
	 .shown = true},
	{},
};

static int ask_of_sync(struct watch *w, const char *op, json_t **ret)
{
	return control_client_ask_rows(&w->control,
				       json_pack("{s:s, s:s}", "op", op, "sync", w->sync), ret);
}

static int watch_target(struct watch *w, const struct watched *t)
{
	cleanup(json_decrefp) json_t *rows = NULL;

	return control_client_ask_rows(&w->control,
				       json_pack("{s:s, s:s, s:i, s:s, s:s, s:o}", "op", "watch",
						 "sync", w->sync, "version", 0, "peer", w->peer,
						 "role", "payload", t->pid ? "pid" : "cgroup",
						 t->pid ? json_integer(t->pid)
							: json_string(t->cgroup)),
				       &rows);
}

static void add_target(struct watch *w, pid_t pid, const char *cgroup)
{
	w->targets = cli_grown(w->targets, w->n_targets, sizeof(*w->targets));
	w->targets[w->n_targets++] = (struct watched){.pid = pid, .cgroup = cgroup, .fd = -1};
}

static const char *last_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash && slash[1] ? slash + 1 : path;
}

/*
 * In the child: waits until it is watched. If that fails, the parent closes the other end. If the command cannot be
 * run, the child sends the error over the socket; a program that runs has no such descriptor.
 */
_Noreturn static void run_command(const struct watch *w, int fd)
{
	char byte;

	(void)pthread_sigmask(SIG_SETMASK, &w->signals, NULL);
	if (read(fd, &byte, 1) != 1)
		_exit(CANNOT_RUN);
	(void)execvp(w->command[0], w->command);
	(void)cli_error("cannot run '%s': %s", w->command[0], strerror(errno));
	(void)send(fd, "", 1, MSG_NOSIGNAL); /* fails if the parent has ended */
	_exit(CANNOT_RUN);
}

/*
 * A failed start was reported before the end of the child; for a running one it is not known yet, and nothing waits
 * for it.
 */
static bool could_not_run(const struct watch *w)
{
	char byte;

	return w->command && recv(w->go_fd, &byte, 1, MSG_DONTWAIT) == 1;
}

/* It has the command's name before it runs it: that is what it is watched by. */
static pid_t fork_as(const char *name)
{
	char mine[NAME_OF_PROCESS] = "";
	pid_t pid;

	(void)prctl(PR_GET_NAME, mine); /* neither can fail */
	(void)prctl(PR_SET_NAME, name);
	pid = fork();
	if (pid != 0)
		(void)prctl(PR_SET_NAME, mine);
	return pid;
}

static int start_command(struct watch *w)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return cli_error("cannot start a command: %s", strerror(errno));
	w->child = fork_as(last_of(w->command[0]));
	if (w->child == 0) {
		(void)close(fds[1]);
		run_command(w, fds[0]);
	}
	(void)close(fds[0]);
	w->go_fd = fds[1];
	if (w->child < 0)
		return cli_error("cannot start a command: %s", strerror(errno));
	add_target(w, w->child, NULL);
	return 0;
}

/* Numbers of processes are reused after their end, except that of the child, which is reaped here. */
static int open_targets(struct watch *w)
{
	for (size_t i = 0; i < w->n_targets; i++) {
		struct watched *t = &w->targets[i];

		if (t->pid)
			t->fd = libc_pidfd_open(t->pid);
		if (t->pid && t->fd < 0)
			return cli_error("cannot watch process %d: %s", t->pid, strerror(errno));
	}
	return 0;
}

static int trace_watch_begin(struct watch *w)
{
	cleanup(json_decrefp) json_t *rows = NULL;

	if (control_client_open(w->cli, &w->control) || (w->command && start_command(w)) ||
	    open_targets(w))
		return EXIT_FAILED;
	for (size_t i = 0; i < w->n_targets; i++)
		if (watch_target(w, &w->targets[i]))
			return EXIT_FAILED;
	if (ask_of_sync(w, "begin", &rows))
		return EXIT_FAILED;
	if (w->command && write(w->go_fd, "", 1) != 1)
		return cli_error("cannot start a command: %s", strerror(errno));
	return 0;
}

/* The command is the last. A group is there for ever. */
static bool is_gone(const struct watch *w)
{
	if (w->command)
		return w->targets[w->n_targets - 1].fd < 0;
	for (size_t i = 0; i < w->n_targets; i++)
		if (!w->targets[i].pid || w->targets[i].fd >= 0)
			return false;
	return true;
}

static int timeout_ms(const struct watch *w)
{
	uint64_t now_ns = clock_now_ns();

	if (w->end_ns == UINT64_MAX)
		return -1;
	return now_ns >= w->end_ns ? 0 : (int)((w->end_ns - now_ns) / 1000000) + 1;
}

/* A terminal sends SIGINT to the command itself. */
static void pass_on(const struct watch *w)
{
	int number = signals_take(w->signal_fd);

	if (number && number != SIGINT)
		(void)kill(w->child, number);
}

/* Until the command has ended, or all watched processes have, a signal arrives or the time is over. */
static int wait_for_end(struct watch *w, struct pollfd *fds)
{
	int n;

	while (!is_gone(w)) {
		fds[0] = (struct pollfd){.fd = w->signal_fd, .events = POLLIN};
		fds[1] = (struct pollfd){.fd = w->control.fd, .events = POLLIN};
		for (size_t i = 0; i < w->n_targets; i++)
			fds[2 + i] = (struct pollfd){.fd = w->targets[i].fd, .events = POLLIN};
		n = poll(fds, 2 + w->n_targets, timeout_ms(w));
		if (n < 0) /* it was stopped meanwhile */
			continue;
		if (n == 0)
			break;
		if (fds[1].revents)
			return cli_error("weightd-trace has ended, and its counts are lost");
		for (size_t i = 0; i < w->n_targets; i++)
			if (fds[2 + i].revents) {
				(void)close(w->targets[i].fd);
				w->targets[i].fd = -1;
			}
		if (!fds[0].revents)
			continue;
		if (!w->command)
			break;
		pass_on(w);
	}
	return 0;
}

static bool is_settled(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const struct trace_row f = trace_row_of(row, NULL);

		if (f.sockets != 0 && f.sockets != UINT32_MAX)
			return false;
	}
	return true;
}

/* Sockets of ended processes may have bytes left that the kernel still sends. */
static int trace_watch_settle(struct watch *w)
{
	uint64_t end_ns = clock_now_ns() + SETTLE_MS * UINT64_C(1000000);
	struct pollfd p = {.fd = w->signal_fd, .events = POLLIN};

	for (;;) {
		cleanup(json_decrefp) json_t *rows = NULL;

		if (ask_of_sync(w, "read", &rows))
			return EXIT_FAILED;
		if (is_settled(rows) || clock_now_ns() >= end_ns || poll(&p, 1, LOOK_MS) > 0)
			return 0;
	}
}

/* Standard output belongs to the command: this is printed elsewhere then. */
static int trace_watch_print(const struct watch *w, struct table *table, const json_t *rows)
{
	FILE *f = w->command ? stderr : stdout;
	struct json json = {.file = f};
	const json_t *row;
	size_t i;
	int r;

	table->out = f;
	if (w->cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "sync", w->sync);
	}
	table_begin(table, &json, "rows");
	json_array_foreach(rows, i, row)
	{
		const struct trace_row shown = trace_row_of(row, NULL);

		table_row(table, &shown);
	}
	r = table_end(table);
	if (w->cli->format.json)
		json_close(&json, '}');
	return r;
}

static int trace_watch_count(struct watch *w, struct table *table)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	cleanup(cli_freep) struct pollfd *fds = calloc(w->n_targets + 3, sizeof(*fds));

	if (!fds)
		cli_out_of_memory();
	if (trace_watch_begin(w) || wait_for_end(w, fds) || (is_gone(w) && trace_watch_settle(w)) ||
	    ask_of_sync(w, "end", &rows))
		return EXIT_FAILED;
	if (could_not_run(w))
		return CANNOT_RUN;
	return trace_watch_print(w, table, rows);
}

/* The exit status of the command, as in a shell. If this failed before, it has not begun or still runs. */
static int end_command(struct watch *w, int result)
{
	int status;

	if (w->go_fd >= 0)
		(void)close(w->go_fd);
	if (w->child <= 0)
		return result;
	(void)pthread_sigmask(SIG_SETMASK, &w->signals, NULL);
	while (waitpid(w->child, &status, 0) < 0 && errno == EINTR)
		;
	if (result)
		return result;
	return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static int run_watch(struct watch *w, struct table *table)
{
	int r;

	(void)pthread_sigmask(SIG_BLOCK, NULL, &w->signals);
	w->signal_fd = signals_open();
	if (w->signal_fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-w->signal_fd));
	r = end_command(w, trace_watch_count(w, table));
	for (size_t i = 0; i < w->n_targets; i++)
		if (w->targets[i].fd >= 0)
			(void)close(w->targets[i].fd);
	(void)close(w->signal_fd);
	control_client_deinit(&w->control);
	return r;
}

/* True if JSON can hold it. */
static bool is_text(const char *s)
{
	cleanup(json_decrefp) json_t *json = json_string(s);

	return json != NULL;
}

/* The name of the command, or of the first watched process. */
static const char *name_of(const struct watch *w, char pid[32])
{
	const char *name = pid;

	(void)snprintf(pid, 32, "process-%d", w->n_targets ? w->targets[0].pid : 0);
	if (w->command)
		name = last_of(w->command[0]);
	else if (!w->targets[0].pid)
		name = last_of(w->targets[0].cgroup);
	return strlen(name) <= NAME_MAX_SYNC && is_text(name) ? name : "watch";
}

static void trace_watch_check(const struct watch *w)
{
	if (!w->command && !w->n_targets)
		cli_usage(w->cli, "'%s' wants a --pid, a --cgroup or a command", w->cli->verb->name);
	if (w->command && w->end_ns != UINT64_MAX)
		cli_usage(w->cli, "a command ends by itself, without --seconds");
}

static int trace_watch_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"pid", required_argument, NULL, OPTION_PID},
		{"cgroup", required_argument, NULL, OPTION_CGROUP},
		{"sync", required_argument, NULL, OPTION_SYNC},
		{"peer", required_argument, NULL, OPTION_PEER},
		{"seconds", required_argument, NULL, OPTION_SECONDS},
		OPTIONS_TABLE,
		OPTIONS_TRACER,
		{},
	};
	cleanup(table_deinit) struct table table = {};
	struct watch w = {
		.cli = cli, .peer = "*", .end_ns = UINT64_MAX, .go_fd = -1, .control.fd = -1};
	char name[32];
	int option, ms, r;

	/* '+': arguments behind the command's name belong to the command */
	while ((option = cli_option(cli, argc, argv, "+" LETTERS_TABLE, longs)) >= 0) {
		switch (option) {
		case OPTION_PID:
			add_target(&w, (pid_t)cli_number(cli, "--pid", optarg, 10, 1, INT32_MAX),
				   NULL);
			break;
		case OPTION_CGROUP:
			if (*optarg != '/')
				cli_usage(cli,
					  "--cgroup wants a path that begins with '/', not '%s'",
					  optarg);
			add_target(&w, 0, optarg);
			break;
		case OPTION_SYNC:
			w.sync = optarg;
			break;
		case OPTION_PEER:
			w.peer = optarg;
			break;
		default:
			ms = cli_seconds(cli, "--seconds", optarg);
			w.end_ns = clock_now_ns() + (uint64_t)ms * 1000000;
		}
	}
	if (argc - optind > 0)
		w.command = argv + optind;
	trace_watch_check(&w);
	if (!w.sync)
		w.sync = name_of(&w, name);
	table_init(&table, &cli->format, columns);
	r = run_watch(&w, &table);
	free(w.targets);
	return r;
}

const struct verb verb_trace_watch = {
	.name = "trace watch",
	.args = "[COMMAND...]",
	.summary = "Count the traffic of any program",
	.options =
		"     --pid PID          all sockets of this process; again for more\n"
		"     --cgroup PATH      those of this control group of version 2, likewise\n"
		"     --sync NAME        name in 'weightctl top' (COMMAND)\n"
		"     --peer NAME        name of the other node there (*)\n"
		"     --seconds SECONDS  duration (to the end of the watched, or a signal)\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_TRACER,
	.run = trace_watch_run,
};
