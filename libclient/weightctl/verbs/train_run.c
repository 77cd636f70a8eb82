/*
 * weightctl train run: start the ranks of a job, and restart those that die.
 *
 * The job belongs to weightd, and each rank has its token: weightctl may be killed, and the ranks continue.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/program.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/train_job.h"
#include "libclient/weightctl/verbs/train_nodes.h"
#include "libclient/weightctl/verbs/train_rank.h"
#include "weightd-train.h"

#define GRACE_MS 30000 /* as torchrun */

enum {
	OPTION_RESTART = OPTION_OWN,
	OPTION_JOB,
	OPTION_LINGER,
	OPTION_TOKEN_FILE,
	OPTION_GRACE,
	OPTION_NODES,
	OPTION_NODE,
	OPTION_MASTER,
};

struct run {
	struct train_program program;
	struct train_nodes nodes;
	struct train_rank *ranks;
	struct pollfd *polled; /* the signals, then a rank each */
	uint32_t n_running;
	int64_t grace_ms;
	bool is_ending; /* no rank is restarted */
	bool is_signalled; /* to end: the next signal does not wait */
	uint64_t kill_ns; /* when those that still run are killed; UINT64_MAX: not */
	int status; /* exit status; that of the first failure */
};

/* --- The end of ranks --------------------------------------------------------------------------- */

static void signal_ranks(const struct run *run, int signal, bool all)
{
	for (uint32_t i = 0; i < run->program.n_ranks; i++)
		train_rank_signal(&run->ranks[i], signal, all);
}

/* Ends the run, for a failure or a signal, which the ranks get. */
static void run_end(struct run *run, int signal)
{
	signal_ranks(run, signal, false);
	if (!run->is_ending)
		run->kill_ns = clock_now_ns() + (uint64_t)run->grace_ms * 1000000;
	run->is_ending = true;
}

static void run_kill(struct run *run, const char *why)
{
	(void)cli_error("%u rank%s %s, and %s killed", run->n_running,
			run->n_running == 1 ? "" : "s", why, run->n_running == 1 ? "is" : "are");
	signal_ranks(run, SIGKILL, true);
	run->kill_ns = UINT64_MAX;
}

/* The second SIGINT or SIGTERM is for ranks that do not react to the first one. */
static void run_signalled(struct run *run, int signal)
{
	if (run->is_signalled && (signal == SIGINT || signal == SIGTERM))
		run_kill(run, "did not end at the first signal");
	else
		run_end(run, signal);
	run->is_signalled = true;
}

/* "was killed by SIGKILL", "exited with 3". */
static const char *describe_status(int status, char *ret, size_t size)
{
	const char *name = status > EXIT_SIGNAL ? libc_signal_name(status - EXIT_SIGNAL) : NULL;

	if (name)
		(void)snprintf(ret, size, "was killed by SIG%s", name);
	else
		(void)snprintf(ret, size, "exited with %d", status);
	return ret;
}

/* Returns true if the rank runs again. */
static bool rank_restart(struct run *run, struct train_rank *rank, pid_t pid, int status)
{
	char text[64];
	int r;

	if (run->is_ending || rank->n_restarts >= run->program.n_restarts_max)
		return false;
	rank->n_restarts++;
	r = train_rank_start(rank, &run->program);
	if (r < 0) {
		(void)program_refuse(run->program.path, r);
		return false;
	}
	(void)cli_error("rank %u (process %d) %s; restarted as process %d, %u of %u times",
			rank->rank, (int)pid, describe_status(status, text, sizeof(text)),
			(int)rank->pid, rank->n_restarts, run->program.n_restarts_max);
	return true;
}

static void rank_ended(struct run *run, struct train_rank *rank)
{
	const pid_t pid = rank->pid;
	int status = train_rank_reap(rank);
	char text[64];

	if (status && rank_restart(run, rank, pid, status))
		return;
	run->n_running--;
	if (!status || run->status)
		return;
	run->status = status;
	if (run->is_ending)
		return; /* the signal that it was sent ended it */
	(void)cli_error("rank %u (process %d) %s%s", rank->rank, (int)pid,
			describe_status(status, text, sizeof(text)),
			run->n_running ? "; the others are ended" : "");
	run_end(run, SIGTERM);
}

/* --- The run ------------------------------------------------------------------------------------ */

static int poll_ms(const struct run *run)
{
	uint64_t now_ns = clock_now_ns();

	if (run->kill_ns == UINT64_MAX)
		return -1;
	return now_ns < run->kill_ns ? (int)((run->kill_ns - now_ns) / 1000000) + 1 : 0;
}

/* Waits for the next event. */
static void run_wait(struct run *run)
{
	const uint32_t n = run->program.n_ranks;

	for (uint32_t i = 0; i < n; i++)
		run->polled[1 + i] = (struct pollfd){.fd = run->ranks[i].pidfd, .events = POLLIN};
	if (poll(run->polled, 1 + n, poll_ms(run)) < 0)
		return; /* EINTR */
	if (run->polled[0].revents) {
		int signal = signals_take(run->polled[0].fd);

		if (signal)
			run_signalled(run, signal);
	}
	for (uint32_t i = 0; i < n; i++)
		if (run->polled[1 + i].fd >= 0 && run->polled[1 + i].revents)
			rank_ended(run, &run->ranks[i]);
	if (run->n_running && clock_now_ns() >= run->kill_ns)
		run_kill(run, "did not end in time");
}

static int run_all(struct run *run)
{
	for (uint32_t i = 0; i < run->program.n_ranks && !run->status; i++) {
		int r = train_rank_start(&run->ranks[i], &run->program);

		if (r < 0) {
			run->status = program_refuse(run->program.path, r);
			run_end(run, SIGTERM);
		} else {
			run->n_running++;
		}
	}
	while (run->n_running)
		run_wait(run);
	return run->status;
}

static int run_job(struct cli *cli, struct run *run, const struct train_job *job)
{
	const uint32_t n = run->program.n_ranks;
	cleanup(cli_freep) struct train_rank *ranks = calloc(n, sizeof(*ranks));
	cleanup(cli_freep) struct pollfd *polled = calloc(n + 1, sizeof(*polled));
	int r;

	if (!ranks || !polled)
		cli_out_of_memory();
	r = signals_open();
	if (r < 0)
		return cli_error("signals cannot be received: %s", strerror(-r));
	polled[0] = (struct pollfd){.fd = r, .events = POLLIN};
	for (uint32_t i = 0; i < n; i++)
		ranks[i] = (struct train_rank){.rank = i, .pidfd = -1};
	run->ranks = ranks;
	run->polled = polled;
	run->program.token = job->token;
	run->program.socket = weightd_socket(cli->w);
	train_rank_environment(&run->program);
	return run_all(run);
}

static int find_and_run(struct cli *cli, struct run *run, struct train_job_request *request)
{
	cleanup(cli_freep) char *path = NULL;
	struct train_job job;
	int r = program_search(request->argv[0], &path);

	if (r)
		return r;
	run->program.path = path;
	r = train_nodes_complete(&run->nodes);
	if (r < 0)
		return cli_error("there is no free port on 127.0.0.1: %s", strerror(-r));
	if (server_connect(cli) || train_job_open(cli, request, &job))
		return EXIT_FAILED;
	run->program.run_id = request->name ? request->name : job.name;
	r = run_job(cli, run, &job);
	train_job_end(cli, &job);
	return r;
}

/* `n` is the place of "--", argc without one; options end at `optind`. */
static void check_arguments(struct cli *cli, int argc, char *argv[], int n)
{
	if (optind < n && n < argc)
		cli_usage(cli, "'train run' wants no argument '%s' before '--'", argv[optind]);
	if (optind < n)
		cli_usage(cli, "'train run' wants '--' before the program '%s'", argv[optind]);
	if (n == argc)
		cli_usage(cli, "'train run' wants '--' and a program after its options");
	if (n + 1 == argc)
		cli_usage(cli, "'train run' wants a program after '--'");
}

static int train_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"ranks", required_argument, NULL, 'n'},
		{"restart", required_argument, NULL, OPTION_RESTART},
		{"job", required_argument, NULL, OPTION_JOB},
		{"linger", required_argument, NULL, OPTION_LINGER},
		{"token-file", required_argument, NULL, OPTION_TOKEN_FILE},
		{"grace", required_argument, NULL, OPTION_GRACE},
		{"nodes", required_argument, NULL, OPTION_NODES},
		{"node", required_argument, NULL, OPTION_NODE},
		{"master", required_argument, NULL, OPTION_MASTER},
		OPTIONS_COMMON,
		{},
	};
	struct train_job_request request = {};
	struct run run = {
		.grace_ms = GRACE_MS,
		.kill_ns = UINT64_MAX,
		.nodes.node = UINT32_MAX,
	};
	int n = 1, option;

	/* getopt moves arguments to behind "--". */
	while (n < argc && strcmp(argv[n], "--") != 0)
		n++;
	if (n < argc)
		argv[n] = NULL;
	while ((option = cli_option(cli, n, argv, LETTERS_COMMON "n:", longs)) >= 0) {
		switch (option) {
		case 'n':
			request.n_ranks = (uint32_t)cli_number(cli, "-n", optarg, 10, 1,
							       WEIGHTD_RANKS_MAX);
			break;
		case OPTION_RESTART:
			run.program.n_restarts_max = (unsigned)cli_number(cli, "--restart", optarg,
									  10, 0, 1000000);
			break;
		case OPTION_JOB:
			request.name = optarg;
			break;
		case OPTION_LINGER:
			request.linger_ms = cli_duration(cli, "--linger", optarg);
			break;
		case OPTION_TOKEN_FILE:
			request.token_file = optarg;
			break;
		case OPTION_NODES:
			run.nodes.n = (uint32_t)cli_number(cli, "--nodes", optarg, 10, 1,
							   WEIGHTD_NODES_MAX);
			break;
		case OPTION_NODE:
			run.nodes.node = (uint32_t)cli_number(cli, "--node", optarg, 10, 0,
							      WEIGHTD_NODES_MAX - 1);
			break;
		case OPTION_MASTER:
			train_nodes_set_master(cli, &run.nodes, optarg);
			break;
		default:
			run.grace_ms = cli_duration(cli, "--grace", optarg);
		}
	}
	check_arguments(cli, argc, argv, n);
	if (!request.n_ranks)
		cli_usage(cli, "'train run' wants the number of ranks, -n N");
	train_nodes_check(cli, &run.nodes, request.n_ranks);
	request.nodes = &run.nodes;
	run.program.nodes = &run.nodes;
	run.program.n_ranks = request.n_ranks;
	run.program.argv = argv + n + 1;
	request.argv = argv + n + 1;
	return find_and_run(cli, &run, &request);
}

const struct verb verb_train_run = {
	.name = "train run",
	.args = "-n N -- PROGRAM [ARGUMENT...]",
	.summary = "Run the ranks of a training job, and restart those that die",
	.options = " -n, --ranks N          processes to start, 1 to 256\n"
		   "     --restart K        restart each rank K times at most (0)\n"
		   "     --job NAME         name of the job (that of the program and a number)\n"
		   "     --linger TIME      remove a job without ranks after 90, 10m, 2h, 7d (10m)\n"
		   "     --nodes N          machines, 1 to 64, each with a run like this (1)\n"
		   "     --node I           number of this machine, from 0 on\n"
		   "     --master HOST      address of node 0; HOST:PORT: MASTER_PORT (29500)\n"
		   "     --token-file FILE  resume the job of that file, or make both\n"
		   "     --grace TIME       time to end after SIGTERM, before SIGKILL (30)\n",
	.run = train_run,
};
