#include "server/keeper.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "server/log.h"

#define DELAY_MIN_MS 50
#define DELAY_MAX_MS 5000
#define STEADY_NS 10000000000u /* who lived that long is restarted at once again */

static sigset_t watched;

static pid_t start_child(char *const argv[])
{
	pid_t parent = getpid();
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	/* The daemon must not outlive its keeper unseen: nothing would restart it. */
	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1);
	(void)sigprocmask(SIG_UNBLOCK, &watched, NULL);
	execv("/proc/self/exe", argv);
	log_error("cannot start the daemon: %s", strerror(errno));
	_exit(127);
}

/* Waits for the child's end, passing signals on. True when it was asked to end. */
static bool watch_child(pid_t pid, int *ret_status)
{
	bool stopping = false;

	for (;;) {
		siginfo_t info;

		if (sigwaitinfo(&watched, &info) < 0)
			continue; /* EINTR */
		if (info.si_signo != SIGCHLD) {
			stopping = true;
			(void)kill(pid,
				   info.si_signo); /* it may be gone already: then SIGCHLD follows */
		} else if (waitpid(pid, ret_status, WNOHANG) == pid) {
			return stopping;
		}
	}
}

/* Waits before the next start. True when the keeper was asked to end meanwhile. */
static bool delay(unsigned ms)
{
	struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
	sigset_t set = watched;

	(void)sigdelset(&set, SIGCHLD);
	return sigtimedwait(&set, NULL, &ts) > 0;
}

int keeper_run(char *const argv[])
{
	unsigned delay_ms = DELAY_MIN_MS;

	(void)sigemptyset(&watched);
	(void)sigaddset(&watched, SIGCHLD);
	(void)sigaddset(&watched, SIGTERM);
	(void)sigaddset(&watched, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &watched, NULL);
	for (;;) {
		uint64_t started_ns = num_now_ns();
		pid_t pid = start_child(argv);
		int status = 0;

		if (pid < 0) {
			log_error("cannot fork: %s", strerror(errno));
			return 1;
		}
		if (watch_child(pid, &status))
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		/* 0: it ended by its own will; 2: it was called wrongly, and would be again. */
		if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2))
			return WEXITSTATUS(status);
		if (num_now_ns() - started_ns > STEADY_NS)
			delay_ms = DELAY_MIN_MS;
		log_warning("the daemon (pid %d) ended with %s %d; starting it again in %u ms", pid,
			    WIFEXITED(status) ? "status" : "signal",
			    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), delay_ms);
		if (delay(delay_ms))
			return 0;
		delay_ms = delay_ms * 2 < DELAY_MAX_MS ? delay_ms * 2 : DELAY_MAX_MS;
	}
}
