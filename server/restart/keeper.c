/*
 * The keeper holds what must not be lost, so there is little here that could fail: no thread, no memory
 * that grows, nothing read but messages of its own child. One poll waits for signals, messages and the one
 * deadline that there is in each phase.
 *
 * Its descriptors lie in this order: 0 to 2, the sockets it was itself started with, what the child keeps
 * here, a gap up to the most that may be kept, and behind it the keeper's own.
 */
#include "server/restart/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/libc.h"
#include "ipc/base/libsystemd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/base/program.h"
#include "server/restart/fdstore_entry.h"
#include "server/restart/notify_recv.h"

#define LISTEN_FDS_START 3
#define SOCKETS_MAX 1024
#define OWN_FDS 16 /* signals, messages, the program; the rest is air */

#define DELAY_MIN_MS 50
#define DELAY_MAX_MS 5000
#define STOP_MS 90000 /* time for a child to end after SIGTERM, as in systemd */
#define ABORT_MS 5000 /* time for an aborted child to write its core */
#define MESSAGES_MAX 4096 /* in one go; a queue is shorter (net.unix.max_dgram_qlen) */

/* One variable of the environment may take 128 KiB in all. */
#define NAMES_SIZE (128 * KIB - sizeof("LISTEN_FDNAMES=") + 1)

enum phase {
	PHASE_DOWN, /* no child; the deadline starts one */
	PHASE_RUNNING, /* the deadline is the watchdog's, once the child is ready */
	PHASE_ENDING, /* the child was asked to end; the deadline kills it */
};

struct keeper {
	const struct keeper_options *options;
	char *const *argv;
	char program[PATH_MAX];
	int program_fd; /* as it was at the start, should the one at the path not run */
	int signal_fd;
	struct notify_socket messages;
	struct fdstore kept;
	unsigned n_sockets; /* passed by our parent, passed on to each child */
	enum phase phase;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
	unsigned delay_ms;
	pid_t pid; /* pid of the child; -1: none */
	bool is_stopping; /* the keeper ends with this child */
	bool is_replacing; /* this child ends for the next one */
	bool is_surplus_told;
	bool is_done;
	int status; /* the keeper's own */
};

static sigset_t watched;
/* Names of the sockets; a child appends those of what was kept. Pages that were never used take no memory. */
static char names[NAMES_SIZE];

static void set_deadline(struct keeper *k, unsigned ms)
{
	k->deadline_ns = num_now_ns() + (uint64_t)ms * 1000000;
}

static void keeper_finish(struct keeper *k, int status)
{
	k->is_done = true;
	k->status = status;
}

/* Only ever the child: 0 and -1 would mean our group, and every process there is. */
static void signal_child(const struct keeper *k, int signo)
{
	if (k->pid > 0)
		(void)kill(k->pid, signo); /* it may be dead already: then SIGCHLD follows */
}

/* --- Starting a child ------------------------------------------------------------------------ */

static void set_number(const char *name, uint64_t value)
{
	char s[24];

	(void)snprintf(s, sizeof(s), "%llu", (unsigned long long)value);
	(void)setenv(name, s, 1);
}

static void set_environment(const struct keeper *k)
{
	uint64_t pid = (uint64_t)getpid();

	set_number("FDSTORE", k->kept.max);
	(void)setenv("WEIGHTD_KEEPER", "1", 1);
	if (k->options->watchdog_ms > 0) {
		set_number("WATCHDOG_USEC", (uint64_t)k->options->watchdog_ms * 1000);
		set_number("WATCHDOG_PID", pid);
	}
	if (k->n_sockets + k->kept.n == 0)
		return;
	fdstore_append_names(&k->kept, names);
	set_number("LISTEN_FDS", k->n_sockets + k->kept.n);
	set_number("LISTEN_PID", pid);
	(void)setenv("LISTEN_FDNAMES", k->n_sockets > 0 ? names : names + 1, 1);
}

/* In the child, which is a process of one thread like its parent, and may do what it likes. */
_Noreturn static void become_daemon(const struct keeper *k)
{
	set_environment(k);
	fdstore_pass(&k->kept);
	/*
	 * Not SIGTERM and SIGINT: the daemon reads them from a descriptor, also those from before
	 * it had one.
	 */
	(void)sigdelset(&watched, SIGTERM);
	(void)sigdelset(&watched, SIGINT);
	(void)sigprocmask(SIG_UNBLOCK, &watched, NULL);
	(void)execv(k->program, k->argv);
	log_warning("cannot execute %s: %s; using the file that the keeper started with",
		    k->program, strerror(errno));
	(void)fexecve(k->program_fd, k->argv, environ);
	log_error("cannot start the daemon: %s", strerror(errno));
	_exit(127);
}

static void start_later(struct keeper *k)
{
	k->phase = PHASE_DOWN;
	set_deadline(k, k->delay_ms);
	k->delay_ms = k->delay_ms * 2 < DELAY_MAX_MS ? k->delay_ms * 2 : DELAY_MAX_MS;
}

static void keeper_start(struct keeper *k)
{
	pid_t pid = fork();

	if (pid == 0)
		become_daemon(k);
	if (pid < 0) {
		log_error("cannot fork: %s; trying again in %u ms", strerror(errno), k->delay_ms);
		start_later(k);
		return;
	}
	k->pid = pid;
	k->phase = PHASE_RUNNING;
	k->deadline_ns = 0;
}

/* --- Messages of the child -------------------------------------------------------------------- */

static void keeper_keep(struct keeper *k, const char *name, int fd)
{
	int r = fdstore_add(&k->kept, name, fd);

	if (r == 0 || k->is_surplus_told)
		return;
	k->is_surplus_told = true;
	if (r == -ENOSPC)
		log_error("'%s' is not kept: %u descriptors are, which is the limit", name,
			  k->kept.n);
	else if (r == -E2BIG)
		log_error("'%s' is not kept: the names of %u descriptors fill LISTEN_FDNAMES", name,
			  k->kept.n);
	else
		log_error("'%s' is not kept: %s", name, strerror(-r));
}

static void apply_store(struct keeper *k, struct notify_message *n)
{
	if (!n->name[0]) {
		log_error("a descriptor to keep needs a name of 1 to %d characters",
			  FDSTORE_NAME_MAX);
		return;
	}
	if (n->words & NOTIFY_REMOVE) {
		fdstore_remove(&k->kept, n->name);
		k->is_surplus_told = false;
	}
	if (!(n->words & NOTIFY_STORE))
		return;
	for (unsigned i = 0; i < n->n_fds; i++) {
		keeper_keep(k, n->name, n->fds[i]);
		n->fds[i] = -1;
	}
}

static void apply_message(struct keeper *k, struct notify_message *n)
{
	/* A barrier's descriptor has served its purpose when it is closed, after all earlier messages. */
	if (n->pid != k->pid || n->words & NOTIFY_BARRIER)
		return;
	if (!n->is_whole) {
		log_error("a message of the daemon was truncated and ignored");
		return;
	}
	if (n->words & (NOTIFY_STORE | NOTIFY_REMOVE))
		apply_store(k, n);
	if (n->words & NOTIFY_READY)
		k->delay_ms =
			DELAY_MIN_MS; /* a child that dies earlier than this is restarted more and more slowly */
	if (k->phase != PHASE_RUNNING)
		return;
	if (n->words & NOTIFY_STOPPING) {
		k->phase = PHASE_ENDING;
		set_deadline(k, STOP_MS);
	} else if (k->options->watchdog_ms > 0 &&
		   (n->words & NOTIFY_READY || (n->words & NOTIFY_WATCHDOG && k->deadline_ns))) {
		set_deadline(k, k->options->watchdog_ms);
	}
}

static void receive_messages(struct keeper *k)
{
	struct notify_message n;

	for (unsigned i = 0; i < MESSAGES_MAX && notify_recv(k->messages.fd, &n) == 0; i++) {
		apply_message(k, &n);
		notify_message_deinit(&n);
	}
}

/* --- The end of a child ---------------------------------------------------------------------- */

static void keeper_on_child_end(struct keeper *k, int status)
{
	bool is_exit = WIFEXITED(status);
	int code = is_exit ? WEXITSTATUS(status) : WTERMSIG(status);
	pid_t pid = k->pid;

	k->pid = -1;
	if (k->is_stopping) {
		keeper_finish(k, is_exit ? code : 1);
		return;
	}
	if (k->is_replacing) {
		k->is_replacing = false;
		k->delay_ms = DELAY_MIN_MS;
		keeper_start(k);
		return;
	}
	/*
	 * 0: it ended on its own; 2: its options were wrong, and would be again. But a new release
	 * that lacks our options must not lose what the old one left here.
	 */
	if (is_exit && (code == 0 || (code == 2 && k->kept.n == 0))) {
		keeper_finish(k, code);
		return;
	}
	log_warning("the daemon (pid %d) ended with %s %d; starting it again in %u ms, %u descriptors "
		    "are kept",
		    pid, is_exit ? "status" : "signal", code, k->delay_ms, k->kept.n);
	start_later(k);
}

/* As the first process of a container we also inherit the dead of others. */
static void keeper_reap(struct keeper *k)
{
	siginfo_t info = {0};
	int status;

	while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid > 0) {
		bool is_ours = info.si_pid == k->pid;

		/*
		 * Its messages before its death count, and its pid is not used again before it is
		 * reaped.
		 */
		if (is_ours)
			receive_messages(k);
		if (waitpid(info.si_pid, &status, 0) < 0)
			return;
		if (is_ours)
			keeper_on_child_end(k, status);
		info.si_pid = 0;
	}
}

/* --- Signals and deadlines ------------------------------------------------------------------- */

static void end_child(struct keeper *k, int signo)
{
	if (k->phase == PHASE_RUNNING) {
		k->phase = PHASE_ENDING;
		set_deadline(k, STOP_MS);
	}
	signal_child(k, signo);
}

/* After SIGINT there is no successor: the descriptors that are kept end with the keeper. */
static void keeper_stop(struct keeper *k)
{
	k->is_stopping = true;
	if (k->phase == PHASE_DOWN)
		keeper_finish(k, 0);
	else
		end_child(k, SIGINT);
}

static void keeper_replace(struct keeper *k)
{
	if (k->is_stopping)
		return;
	log_info("replacing the daemon by %s", k->program);
	if (k->phase == PHASE_DOWN) {
		k->delay_ms = DELAY_MIN_MS;
		set_deadline(k, 0);
		return;
	}
	k->is_replacing = true;
	end_child(k, SIGTERM);
}

static void keeper_on_signal(struct keeper *k, int signo)
{
	switch (signo) {
	case SIGCHLD:
		keeper_reap(k);
		break;
	case SIGTERM:
	case SIGINT:
		keeper_reap(
			k); /* a child that has died before was not told to: signalfd gives SIGCHLD last */
		if (!k->is_done)
			keeper_stop(k);
		break;
	case SIGHUP:
		keeper_replace(k);
		break;
	default:
		signal_child(k, signo);
	}
}

static void keeper_on_deadline(struct keeper *k)
{
	k->deadline_ns = 0;
	switch (k->phase) {
	case PHASE_DOWN:
		keeper_start(k);
		break;
	case PHASE_RUNNING:
		log_error("the daemon (pid %d) was silent for %u ms: aborting it", k->pid,
			  k->options->watchdog_ms);
		end_child(k, SIGABRT);
		set_deadline(k, ABORT_MS);
		break;
	case PHASE_ENDING:
		log_error("the daemon (pid %d) does not end: killing it", k->pid);
		signal_child(k, SIGKILL);
		break;
	}
}

static int timeout_ms(const struct keeper *k)
{
	uint64_t now = num_now_ns();

	if (k->deadline_ns == 0)
		return -1;
	return k->deadline_ns <= now ? 0 : (int)((k->deadline_ns - now + 999999) / 1000000);
}

static void keeper_watch(struct keeper *k)
{
	struct pollfd p[] = {
		{.fd = k->messages.fd, .events = POLLIN},
		{.fd = k->signal_fd, .events = POLLIN},
	};
	struct signalfd_siginfo info;

	if (poll(p, ARRAY_LEN(p), timeout_ms(k)) < 0)
		return; /* interrupted: ask anew */
	receive_messages(k); /* before the deadline, which they may put off */
	while (!k->is_done && read(k->signal_fd, &info, sizeof(info)) == sizeof(info))
		keeper_on_signal(k, (int)info.ssi_signo);
	if (!k->is_done && k->deadline_ns != 0 && k->deadline_ns <= num_now_ns())
		keeper_on_deadline(k);
}

/* --- The keeper itself ----------------------------------------------------------------------- */

/* Appends the names of the sockets to `names`, and frees them. False: there is no room. */
static bool keep_names(char **given, unsigned n)
{
	char *end = names;
	bool fits = true;

	for (unsigned i = 0; i < n; i++) {
		fits = fits && strlen(given[i]) + 2 < sizeof(names) / 2 - (size_t)(end - names);
		if (fits)
			end = stpcpy(stpcpy(end, i > 0 ? ":" : ""), given[i]);
		free(given[i]);
	}
	free(given);
	return fits;
}

/* The sockets that were passed to us: children inherit them. Returns how many, or -EINVAL without libsystemd. */
static int take_sockets(void)
{
	const struct libsystemd *systemd;
	char **given = NULL;
	const char *why;
	int n;

	if (!getenv("LISTEN_FDS"))
		return 0;
	systemd = libsystemd_open(&why);
	if (!systemd) {
		log_error("cannot take sockets from the service manager (LISTEN_FDS): %s", why);
		return -EINVAL;
	}
	n = systemd->listen_fds_with_names(true, &given);
	if (n > 0 && (!keep_names(given, (unsigned)n) || n > SOCKETS_MAX))
		n = -E2BIG;
	if (n < 0)
		log_warning("invalid LISTEN_FDS from the service manager (%s): ignored",
			    strerror(-n));
	for (int fd = LISTEN_FDS_START; fd < LISTEN_FDS_START + n; fd++)
		(void)fcntl(fd, F_SETFD, 0); /* libsystemd set FD_CLOEXEC */
	return n < 0 ? 0 : n;
}

/* As many as were asked for, or as the limit on descriptors has room for. */
static unsigned store_max(unsigned wanted, unsigned n_sockets)
{
	uint64_t others = LISTEN_FDS_START + n_sockets + OWN_FDS + NOTIFY_FDS_MAX;
	struct rlimit limit;
	uint64_t room;

	program_raise_descriptor_limit();
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return wanted;
	room = limit.rlim_cur > others ? limit.rlim_cur - others : 0;
	if (room >= wanted)
		return wanted;
	log_warning("%llu descriptors can be kept instead of %u: the hard limit on open ones is %llu; "
		    "raise it to %llu (ulimit -Hn)",
		    (unsigned long long)room, wanted, (unsigned long long)limit.rlim_cur,
		    (unsigned long long)(others + wanted));
	return (unsigned)room;
}

/* Ours begin at 3. Descriptors from elsewhere have no owner. */
static void tidy_descriptors(unsigned n_sockets)
{
	int fd;

	(void)libc_close_range(LISTEN_FDS_START + n_sockets, ~0U);
	do
		fd = open("/dev/null", O_RDWR); /* in place of a missing 0, 1 or 2 */
	while (fd >= 0 && fd < LISTEN_FDS_START);
	(void)fd_close(fd);
}

/* Behind all that may be kept. */
static int move_up(const struct keeper *k, int *fd)
{
	int new_fd = fcntl(*fd, F_DUPFD_CLOEXEC, k->kept.first_fd + (int)k->kept.max);

	if (new_fd < 0)
		return -errno;
	(void)fd_close(*fd);
	*fd = new_fd;
	return 0;
}

static int find_program(struct keeper *k)
{
	const char *path = k->options->program ?: "/proc/self/exe";
	ssize_t n;

	if (k->options->program) {
		if (!realpath(path, k->program))
			return -errno;
	} else {
		/* The path now: " (deleted)" is part of it once the file was replaced. */
		n = readlink(path, k->program, sizeof(k->program) - 1);
		if (n < 0)
			return -errno;
		k->program[n] = '\0';
	}
	k->program_fd = open(path, O_PATH | O_CLOEXEC);
	return k->program_fd < 0 ? -errno : move_up(k, &k->program_fd);
}

static int catch_signals(struct keeper *k)
{
	static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

	(void)sigemptyset(&watched);
	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		(void)sigaddset(&watched, signals[i]);
	(void)sigprocmask(SIG_BLOCK, &watched, NULL);
	k->signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
	return k->signal_fd < 0 ? -errno : move_up(k, &k->signal_fd);
}

static int listen_for_messages(struct keeper *k)
{
	int r = notify_socket_init(&k->messages);

	if (r < 0)
		return r;
	(void)setenv("NOTIFY_SOCKET", k->messages.address, 1);
	return move_up(k, &k->messages.fd);
}

static int keeper_init(struct keeper *k)
{
	int r = take_sockets();

	if (r < 0)
		return r;
	k->n_sockets = (unsigned)r;
	/* A manager above the keeper must not receive messages of the child. */
	(void)unsetenv("WATCHDOG_USEC");
	(void)unsetenv("WATCHDOG_PID");
	tidy_descriptors(k->n_sockets);
	r = fdstore_init(&k->kept, LISTEN_FDS_START + (int)k->n_sockets,
			 store_max(k->options->store_max, k->n_sockets),
			 sizeof(names) - 1 - strlen(names));
	if (r == 0)
		r = find_program(k);
	if (r == 0)
		r = catch_signals(k);
	if (r == 0)
		r = listen_for_messages(k);
	return r;
}

static void keeper_deinit(struct keeper *k)
{
	notify_socket_deinit(&k->messages);
	k->signal_fd = fd_close(k->signal_fd);
	k->program_fd = fd_close(k->program_fd);
	fdstore_deinit(&k->kept);
}

int keeper_run(char *const argv[], const struct keeper_options *options)
{
	struct keeper k = {
		.options = options,
		.argv = argv,
		.program_fd = -1,
		.signal_fd = -1,
		.messages.fd = -1,
		.pid = -1,
		.delay_ms = DELAY_MIN_MS,
	};
	int r = keeper_init(&k);

	if (r < 0) {
		log_error("cannot start the keeper: %s", strerror(-r));
		keeper_finish(&k, 1);
	} else {
		keeper_start(&k);
	}
	while (!k.is_done)
		keeper_watch(&k);
	keeper_deinit(&k);
	return k.status;
}
