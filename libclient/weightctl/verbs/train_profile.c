/*
 * weightctl train profile: measure the collectives of ranks on this machine, as nccl-tests does.
 *
 * The ranks are forks, each with a connection of its own, and end with weightctl. Rank 0 prints what it measured.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/train_rank.h"
#include "weightd-train.h"

#define SIZE_STEP 4
#define SIZE_LARGEST (UINT64_C(4) << 30)
#define SIZE_UNIT 64 /* windows have a multiple of it */
#define LINGER_MS 10000 /* removes the job of a weightctl that was killed */

enum {
	OPTION_SIZE = OPTION_OWN,
	OPTION_DTYPE,
};

struct profile {
	uint32_t n_ranks;
	uint64_t first, last; /* bytes */
	enum weightd_dtype dtype;
	char job[32];
	char token[WEIGHTD_TOKEN_MAX];
	struct table table; /* rank 0 has rows */
	struct train_rank *ranks;
	atomic_bool *has_failed; /* shared by the ranks: one of them explains */
	int signal_fd;
	int status; /* exit status; that of the first failure */
};

/* --- One rank ----------------------------------------------------------------------------------- */

struct profile_row {
	enum weightd_collective collective;
	uint64_t size; /* UINT64_MAX: none, of a barrier */
	uint32_t n_rounds;
	uint64_t median_ns, min_ns;
	uint64_t algbw, busbw; /* bytes a second */
};

static const char *profile_collective(const void *row, bool json)
{
	(void)json;
	return weightd_collective_name(((const struct profile_row *)row)->collective);
}

#define ROW(member) offsetof(struct profile_row, member)

static const struct column profile_columns[] = {
	{"COLLECTIVE", COLUMN_WORD, .word = profile_collective, .help = "operation", .shown = true},
	{"SIZE", COLUMN_COUNT, ROW(size), .help = "bytes of the range", .shown = true},
	{"TIME", COLUMN_MICROSECONDS, ROW(median_ns), .help = "median of the rounds", .shown = true},
	{"MIN", COLUMN_MICROSECONDS, ROW(min_ns), .help = "shortest round", .shown = true},
	{"ALGBW", COLUMN_RATE, ROW(algbw), .help = "size by time", .shown = true},
	{"BUSBW", COLUMN_RATE, ROW(busbw),
	 .help = "bytes over the link of a rank by time, as nccl-tests", .shown = true},
	{"ROUNDS", COLUMN_U32, ROW(n_rounds), .help = "how many were measured"},
	{},
};

/* Those of the other ranks follow from the first failure: the parent ends them once its sentence is out. */
static int say_failed(const struct profile *p)
{
	while (atomic_exchange(p->has_failed, true))
		(void)pause();
	return cli_error("%s", weightd_train_error());
}

static int measure(struct profile *p, struct weightd_window *win, enum weightd_collective c,
		   uint64_t size)
{
	struct weightd_profile measured = {.size = sizeof(measured)};
	struct profile_row row = {.collective = c, .size = size ? size : UINT64_MAX};
	int r = weightd_window_profile(win, c, size, p->dtype, 0, &measured);

	if (r < 0)
		return r;
	row.n_rounds = measured.n_rounds;
	row.median_ns = (uint64_t)(measured.median_us * 1e3 + 0.5);
	row.min_ns = (uint64_t)(measured.min_us * 1e3 + 0.5);
	row.algbw = (uint64_t)measured.algbw;
	row.busbw = (uint64_t)measured.busbw;
	if (weightd_window_rank(win) == 0)
		table_row(&p->table, &row);
	return 0;
}

static int measure_all(struct profile *p, struct weightd_window *win)
{
	int r = measure(p, win, WEIGHTD_BARRIER, 0);

	for (int c = WEIGHTD_ALL_REDUCE; c <= WEIGHTD_BROADCAST; c++)
		for (uint64_t size = p->first; r == 0 && size <= p->last;) {
			r = measure(p, win, (enum weightd_collective)c, size);
			if (size == p->last)
				break;
			size = size < p->last / SIZE_STEP ? size * SIZE_STEP : p->last;
		}
	return r;
}

static int print_profile(const struct cli *cli, struct profile *p, struct weightd_window *win)
{
	struct json json = {.file = stdout};
	bool prints = weightd_window_rank(win) == 0;
	int r;

	if (cli->format.json && prints) {
		json_open(&json, NULL, '{');
		json_put_number(&json, "ranks", p->n_ranks);
		json_put_string(&json, "dtype", weightd_dtype_name(p->dtype));
		json_put_string(&json, "isa", weightd_train_isa());
	}
	if (prints)
		table_begin(&p->table, &json, "profile");
	r = measure_all(p, win);
	if (r < 0)
		return say_failed(p);
	r = prints ? table_end(&p->table) : 0;
	if (cli->format.json && prints)
		json_close(&json, '}');
	return r;
}

static int run_rank(struct cli *cli, struct profile *p, uint32_t rank)
{
	const struct weightd_train_options options = {
		.size = sizeof(options),
		.token = p->token,
		.rank = rank,
		.on_death = WEIGHTD_DEATH_FAIL,
	};
	struct weightd_window *win;
	int r;

	weightd_close(cli->w); /* the parent's, which it keeps */
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_window_open(cli->w, &options, p->last, &win);
	if (r < 0)
		return say_failed(p);
	r = print_profile(cli, p, win);
	weightd_window_free(win);
	weightd_close(cli->w);
	return r;
}

/* --- All ranks ---------------------------------------------------------------------------------- */

/* In a fork that ends with its parent. */
_Noreturn static void become_rank(struct cli *cli, struct profile *p, uint32_t rank, pid_t parent)
{
	sigset_t none;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_FAILED);
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	exit(run_rank(cli, p, rank));
}

static int start_rank(struct cli *cli, struct profile *p, uint32_t i)
{
	struct train_rank *rank = &p->ranks[i];
	pid_t parent = getpid();

	rank->pid = fork();
	if (rank->pid == 0)
		become_rank(cli, p, i, parent);
	if (rank->pid < 0) {
		rank->pid = 0;
		return cli_error("rank %" PRIu32 " cannot be started: %s", i, strerror(errno));
	}
	rank->pidfd = libc_pidfd_open(rank->pid);
	return rank->pidfd < 0
		       ? cli_error("rank %" PRIu32 " cannot be watched: %s", i, strerror(errno))
		       : 0;
}

/* Ends all that run: without one the others cannot go on. */
static void profile_fail(struct profile *p, int status)
{
	if (!p->status)
		p->status = status;
	for (uint32_t i = 0; i < p->n_ranks; i++)
		train_rank_signal(&p->ranks[i], SIGKILL, false);
}

/* Waits for the end of a rank, or for a signal. False: all have ended. */
static bool profile_wait(struct profile *p, struct pollfd *polled)
{
	uint32_t n = 1;

	polled[0] = (struct pollfd){.fd = p->signal_fd, .events = POLLIN};
	for (uint32_t i = 0; i < p->n_ranks; i++)
		if (p->ranks[i].pidfd >= 0)
			polled[n++] = (struct pollfd){.fd = p->ranks[i].pidfd, .events = POLLIN};
	if (n == 1)
		return false;
	if (poll(polled, n, -1) < 0)
		return true; /* EINTR */
	if (polled[0].revents)
		profile_fail(p, EXIT_SIGNAL + signals_take(p->signal_fd));
	for (uint32_t i = 0; i < p->n_ranks; i++) {
		struct pollfd ended = {.fd = p->ranks[i].pidfd, .events = POLLIN};
		int status;

		if (ended.fd < 0 || poll(&ended, 1, 0) <= 0)
			continue;
		status = train_rank_reap(&p->ranks[i]);
		if (status)
			profile_fail(p, status);
	}
	return true;
}

static int run_ranks(struct cli *cli, struct profile *p)
{
	cleanup(cli_freep) struct train_rank *ranks = calloc(p->n_ranks, sizeof(*ranks));
	cleanup(cli_freep) struct pollfd *polled = calloc(p->n_ranks + 1, sizeof(*polled));

	if (!ranks || !polled)
		cli_out_of_memory();
	p->has_failed = mmap(NULL, sizeof(*p->has_failed), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p->has_failed == MAP_FAILED)
		cli_out_of_memory();
	p->ranks = ranks;
	for (uint32_t i = 0; i < p->n_ranks; i++)
		ranks[i] = (struct train_rank){.rank = i, .pidfd = -1};
	for (uint32_t i = 0; i < p->n_ranks && !p->status; i++)
		if (start_rank(cli, p, i))
			profile_fail(p, EXIT_FAILED);
	while (profile_wait(p, polled))
		continue;
	return p->status;
}

static int run_profile(struct cli *cli, struct profile *p)
{
	const struct weightd_job_options options = {
		.size = sizeof(options),
		.n_ranks = p->n_ranks,
		.linger_ms = LINGER_MS,
	};
	int r;

	(void)snprintf(p->job, sizeof(p->job), "profile-%d", (int)getpid());
	p->signal_fd = signals_open();
	if (p->signal_fd < 0)
		return cli_error("signals cannot be received: %s", strerror(-p->signal_fd));
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_job_create(cli->w, p->job, &options, p->token);
	if (r < 0)
		return cli_fail(cli, r);
	r = run_ranks(cli, p);
	if (r)
		(void)weightd_job_remove(cli->w, p->job); /* it has ended if all ranks have left */
	return r;
}

/* --- Options ------------------------------------------------------------------------------------ */

/* "65536", "64KiB", "1MiB": the number, and `ret_end` behind it. 0: none. */
static uint64_t parse_size(const char *arg, const char **ret_end)
{
	static const char units[] = "KMG";
	unsigned long long n;
	const char *unit;
	char *end;

	errno = 0;
	n = *arg >= '0' && *arg <= '9' ? strtoull(arg, &end, 10) : 0;
	if (errno || n == 0 || n > SIZE_LARGEST)
		return 0;
	*ret_end = end;
	unit = *end ? strchr(units, *end) : NULL;
	if (!unit || strncmp(end + 1, "iB", 2) != 0)
		return n;
	*ret_end = end + 3;
	n <<= 10 * (unit - units + 1); /* by 30 at most, and n has 33 bits */
	return n;
}

static void option_size(const struct cli *cli, struct profile *p)
{
	const char *end = optarg;

	p->first = p->last = parse_size(optarg, &end);
	if (p->first && !strncmp(end, "..", 2))
		p->last = parse_size(end + 2, &end);
	if (!p->first || p->last < p->first || *end)
		cli_usage(cli,
			  "--size wants bytes or a range, such as 1MiB or 1KiB..64MiB, not '%s'",
			  optarg);
	if (p->last > SIZE_LARGEST || p->first % SIZE_UNIT || p->last % SIZE_UNIT)
		cli_usage(cli, "--size wants multiples of %d, up to 4GiB, not '%s'", SIZE_UNIT,
			  optarg);
}

static enum weightd_dtype option_dtype(const struct cli *cli)
{
	if (!strcmp(optarg, "f32"))
		return WEIGHTD_F32;
	if (!strcmp(optarg, "bf16"))
		return WEIGHTD_BF16;
	cli_usage(cli, "--dtype wants f32 or bf16, not '%s'", optarg);
}

static int train_profile(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"ranks", required_argument, NULL, 'n'},
		{"size", required_argument, NULL, OPTION_SIZE},
		{"dtype", required_argument, NULL, OPTION_DTYPE},
		{"output", required_argument, NULL, 'o'},
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct profile p = {.first = 1024, .last = 64 << 20, .dtype = WEIGHTD_F32};
	int option, r;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "n:o:", longs)) >= 0) {
		switch (option) {
		case 'n':
			p.n_ranks = (uint32_t)cli_number(cli, "-n", optarg, 10, 1,
							 WEIGHTD_RANKS_MAX);
			break;
		case OPTION_SIZE:
			option_size(cli, &p);
			break;
		default:
			p.dtype = option_dtype(cli);
		}
	}
	if (argc > optind)
		cli_usage(cli, "'train profile' takes no arguments");
	if (!p.n_ranks)
		cli_usage(cli, "'train profile' wants the number of ranks, -n N");
	table_init(&p.table, &cli->format, profile_columns);
	r = run_profile(cli, &p);
	table_deinit(&p.table);
	return r;
}

const struct verb verb_train_profile = {
	.name = "train profile",
	.args = "-n N",
	.summary = "Measure collectives in shared memory, as nccl-tests does",
	.options = " -n, --ranks N          processes to start, 1 to 256\n"
		   "     --size RANGE       bytes: 1MiB, or a range (1KiB..64MiB)\n"
		   "     --dtype DTYPE      element type: f32 or bf16 (f32)\n" HELP_JSON
		   " -o, --output COLUMNS   columns to show, by commas; +COLUMNS adds to the usual\n",
	.columns = profile_columns,
	.run = train_profile,
};
