#include "server/base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/libc.h"
#include "ipc/base/num.h"
#include "server/base/program.h"

#define CHILD_FD 3
#define GO_NS 1000000000u
#define KILLED_NS 5000000000u /* it needs a processor to end, and time to unmap what it has */

void child_init(struct child *c)
{
	*c = (struct child){.pidfd = -1, .fd = -1};
}

static int find_program(const char *path, const char *name, char *ret, size_t size)
{
	char *slash;
	int r;

	if (path[0])
		return (size_t)snprintf(ret, size, "%s", path) < size ? 0 : -ENAMETOOLONG;
	r = program_file(ret, size);
	if (r < 0)
		return r;
	slash = strrchr(ret, '/');
	if (!slash || (size_t)(slash + 1 - ret) + strlen(name) >= size)
		return -ENAMETOOLONG;
	memcpy(slash + 1, name, strlen(name) + 1);
	return 0;
}

/* Variables that belong to weightd and not to the child: sockets and names of its own. */
static bool is_private(const char *variable)
{
	static const char *const names[] = {
		"NOTIFY_SOCKET=", "LISTEN_",    "WATCHDOG_", "FDSTORE=",
		"MAINPID=",       "INVOCATION", "WEIGHTD_",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strncmp(variable, names[i], strlen(names[i])))
			return true;
	return false;
}

static char **environment(void)
{
	size_t n = 0;
	char **e;

	while (environ[n])
		n++;
	e = calloc(n + 1, sizeof(*e));
	n = 0;
	for (char **v = environ; e && *v; v++)
		if (!is_private(*v))
			e[n++] = *v;
	return e;
}

static int fill_actions(posix_spawn_file_actions_t *actions, int fd)
{
	int r = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);

	if (r == 0)
		r = posix_spawn_file_actions_adddup2(actions, STDERR_FILENO, STDOUT_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(actions, fd, CHILD_FD);
	if (r == 0)
		r = libc_spawn_close_from(actions, CHILD_FD + 1);
	return r;
}

/* The worker's thread has all signals blocked, weightd ignores some. */
static int fill_attributes(posix_spawnattr_t *attributes)
{
	sigset_t none, all;
	int r;

	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	r = posix_spawnattr_setsigmask(attributes, &none);
	if (r == 0)
		r = posix_spawnattr_setsigdefault(attributes, &all);
	if (r == 0)
		r = posix_spawnattr_setflags(attributes,
					     POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	return r;
}

static int child_spawn(const char *program, const char *argument, int fd, pid_t *ret)
{
	char *argv[] = {(char *)program, (char *)argument, NULL};
	cleanup(freep) char **variables = environment();
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int r;

	if (!variables)
		return -ENOMEM;
	r = posix_spawn_file_actions_init(&actions);
	if (r != 0)
		return -r;
	r = posix_spawnattr_init(&attributes);
	if (r == 0) {
		r = fill_actions(&actions, fd);
		if (r == 0)
			r = fill_attributes(&attributes);
		if (r == 0)
			r = posix_spawn(ret, program, &actions, &attributes, argv, variables);
		(void)posix_spawnattr_destroy(&attributes);
	}
	(void)posix_spawn_file_actions_destroy(&actions);
	return -r;
}

/*
 * A descriptor that shows the end (Linux 5.3). Without one the child is ended again: it is in no
 * driver yet.
 */
static int child_watch(struct child *c)
{
	int r = 0;

	c->pidfd = libc_pidfd_open(c->pid);
	if (c->pidfd < 0) {
		r = -errno;
		(void)kill(c->pid, SIGKILL);
		(void)waitpid(c->pid, NULL, 0);
	}
	return r;
}

int child_start(struct child *c, const char *path, const char *name, const char *argument,
		char ret_why[CHILD_WHY_SIZE])
{
	char program[4096] = "";
	int ends[2];
	int r = find_program(path, name, program, sizeof(program));

	if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		r = -errno;
	if (r == 0) {
		r = child_spawn(program, argument, ends[1], &c->pid);
		(void)fd_close(ends[1]);
		if (r == 0)
			r = child_watch(c);
		if (r < 0)
			(void)fd_close(ends[0]);
	}
	if (r < 0) {
		c->pid = 0;
		(void)snprintf(ret_why, CHILD_WHY_SIZE, "%.160s cannot be started: %s", program,
			       strerror(-r));
		return r;
	}
	c->fd = ends[0];
	return 0;
}

static int wait_for_packet(int fd, uint64_t deadline_ns, int stop_fd)
{
	struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};

	for (;;) {
		uint64_t now = num_now_ns();
		uint64_t ms = now < deadline_ns ? (deadline_ns - now) / 1000000 + 1 : 0;
		int n = poll(p, 2, ms < INT32_MAX ? (int)ms : INT32_MAX);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			return p[1].revents ? -ECANCELED : 0;
		if (n == 0)
			return -ETIMEDOUT;
	}
}

int child_call(struct child *c, const void *request, size_t size, uint64_t deadline_ns, int stop_fd,
	       struct channel_packet *ret)
{
	int r = channel_send(c->fd, request, size, NULL, 0);

	ret->n_fds = 0;
	if (r == 0)
		r = wait_for_packet(c->fd, deadline_ns, stop_fd);
	if (r == 0)
		r = channel_receive(c->fd, MSG_DONTWAIT, ret);
	if (r > 0)
		return 0;
	channel_packet_deinit(ret);
	return r == 0 || r == -ECONNRESET ? -EPIPE : r;
}

static bool is_over(const struct child *c, uint64_t for_ns)
{
	struct pollfd p = {.fd = c->pidfd, .events = POLLIN};

	return poll(&p, 1, (int)(for_ns / 1000000)) > 0;
}

void child_kill(const struct child *c)
{
	if (c->pid)
		(void)kill(c->pid, SIGKILL); /* it is ours until we wait for it */
}

int child_end(struct child *c, char ret_how[CHILD_WHY_SIZE])
{
	int status = 0;

	(void)snprintf(ret_how, CHILD_WHY_SIZE, "nothing");
	if (!c->pid)
		return 0;
	c->fd = fd_close(c->fd);
	if (!is_over(c, GO_NS)) {
		child_kill(c);
		if (!is_over(c, KILLED_NS))
			return -EBUSY;
	}
	if (waitpid(c->pid, &status, 0) == c->pid) {
		if (WIFSIGNALED(status))
			(void)snprintf(ret_how, CHILD_WHY_SIZE, "signal %d", WTERMSIG(status));
		else
			(void)snprintf(ret_how, CHILD_WHY_SIZE, "exit status %d",
				       WEXITSTATUS(status));
	}
	c->pidfd = fd_close(c->pidfd);
	c->pid = 0;
	return 0;
}

void child_leave(struct child *c)
{
	c->fd = fd_close(c->fd);
	c->pidfd = fd_close(c->pidfd);
	for (unsigned i = 0; c->pid && i < CHILD_LEFT_MAX; i++)
		if (!c->left[i]) {
			c->left[i] = c->pid;
			break;
		}
	c->pid = 0;
}

bool child_look(struct child *c)
{
	char how[CHILD_WHY_SIZE];
	bool some = false;

	for (unsigned i = 0; i < CHILD_LEFT_MAX; i++) {
		if (c->left[i] && waitpid(c->left[i], NULL, WNOHANG) != 0)
			c->left[i] = 0;
		some |= c->left[i] != 0;
	}
	if (c->pid && is_over(c, 0))
		(void)child_end(c, how); /* it ended on its own, or what it held is lost anyway */
	return some || c->pid;
}
