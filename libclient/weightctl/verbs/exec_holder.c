/*
 * The program must not find a child that it did not start. So the holder is the child of a process that ends at once,
 * and watches the program by a pidfd. It is in a session of its own, where no terminal reaches it, and ignores the
 * signals that ask a group of processes to end: the program may need the model until it has ended.
 */
#include "libclient/weightctl/verbs/exec_holder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "libclient/weightctl/holder.h"

/* With the space of one descriptor. */
struct packet {
	struct iovec part;
	struct msghdr header;
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
};

static void packet_init(struct packet *p, void *data, size_t size)
{
	*p = (struct packet){.part = {.iov_base = data, .iov_len = size}};
	p->header = (struct msghdr){.msg_iov = &p->part, .msg_iovlen = 1};
}

static bool packet_send(int fd, void *data, size_t size, int passed_fd)
{
	struct packet p;

	packet_init(&p, data, size);
	if (passed_fd >= 0) {
		struct cmsghdr *c;

		p.header.msg_control = p.control.space;
		p.header.msg_controllen = sizeof(p.control.space);
		c = CMSG_FIRSTHDR(&p.header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &passed_fd, sizeof(int));
	}
	return sendmsg(fd, &p.header, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool packet_receive(int fd, void *ret, size_t size, int *ret_passed_fd)
{
	struct packet p;
	struct cmsghdr *c;
	ssize_t n;

	packet_init(&p, ret, size);
	p.header.msg_control = p.control.space;
	p.header.msg_controllen = sizeof(p.control.space);
	do
		n = recvmsg(fd, &p.header, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	c = n < 0 ? NULL : CMSG_FIRSTHDR(&p.header);
	*ret_passed_fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(ret_passed_fd, CMSG_DATA(c), sizeof(int));
	return n == (ssize_t)size;
}

/* --- In the holder ----------------------------------------------------------------------------- */

/* The descriptors of the caller are the program's alone: it may wait for the end of a pipe. */
static void close_others(int a, int b)
{
	const unsigned first = (unsigned)(a < b ? a : b), last = (unsigned)(a < b ? b : a);

	if (first > STDERR_FILENO + 1)
		(void)libc_close_range(STDERR_FILENO + 1, first - 1);
	if (last > first + 1)
		(void)libc_close_range(first + 1, last - 1);
	(void)libc_close_range(last + 1, ~0U);
}

/* Keeps what is printed until it is known that somebody waits for it. -1: it is printed at once. */
static int divert_errors(int *ret_memory)
{
	int memory = memfd_create("errors", MFD_CLOEXEC), saved;

	saved = memory < 0 ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (saved >= 0)
		(void)dup2(memory, STDERR_FILENO);
	*ret_memory = memory;
	return saved;
}

/* A terminal is another program's once the process that started the holder has ended. */
static void print_diverted(int memory, int saved, int process_fd)
{
	struct pollfd end = {.fd = process_fd, .events = POLLIN};
	char text[1024];
	ssize_t n;

	if (saved >= 0) {
		(void)dup2(saved, STDERR_FILENO);
		if (poll(&end, 1, 0) == 0 && lseek(memory, 0, SEEK_SET) == 0)
			while ((n = read(memory, text, sizeof(text))) > 0)
				(void)fwrite(text, 1, (size_t)n, stderr);
		(void)close(saved);
	}
	if (memory >= 0)
		(void)close(memory);
}

static void close_standard_descriptors(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int i = 0; i <= STDERR_FILENO; i++)
		if (fd < 0 || dup2(fd, i) < 0)
			(void)close(i);
	if (fd > STDERR_FILENO)
		(void)close(fd);
}

static void ignore_signals(void)
{
	static const int signals[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,
				      SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM};

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		(void)signal(signals[i], SIG_IGN);
}

static bool send_all(const struct weightd_model_dir *dir, int fd, size_t n, bool with_descriptors)
{
	struct exec_directory directory = {.pid = getpid()};

	for (size_t i = 0; i < n; i++) {
		struct weightd_model_weights weights = {.size = sizeof(weights)};
		struct exec_link link = {};
		struct stat st;

		if (weightd_model_dir_weights(dir, i, &weights) < 0 || fstat(weights.fd, &st) < 0)
			return false;
		link.dev = st.st_dev;
		link.ino = st.st_ino;
		if (snprintf(link.path, sizeof(link.path), "%s/%s", weightd_model_dir_path(dir),
			     weights.path) >= (int)sizeof(link.path))
			return false;
		if (!packet_send(fd, &link, sizeof(link), with_descriptors ? weights.fd : -1))
			return false;
	}
	(void)snprintf(directory.path, sizeof(directory.path), "%s", weightd_model_dir_path(dir));
	return packet_send(fd, &directory, sizeof(directory), -1);
}

/* True: the program runs. False: it does not, and the socket had a packet or its process has ended. */
static bool wait_for_program(int fd, int process_fd)
{
	struct pollfd fds[] = {
		{.fd = fd, .events = POLLIN},
		{.fd = process_fd, .events = POLLIN},
	};
	char byte;

	while (poll(fds, 2, -1) < 0)
		continue;
	return fds[0].revents && recv(fd, &byte, 1, 0) == 0;
}

_Noreturn static void holder_run(struct cli *cli, const char *const *specs, size_t n, int self_fd,
				 int fd, int process_fd)
{
	const struct weightd_model_dir_options options = {
		.size = sizeof(options),
		.self_fd = self_fd,
		.owner = cli->owner,
	};
	struct holder holder;
	int memory, saved, r;

	(void)prctl(PR_SET_NAME, "weightd-holder");
	ignore_signals();
	close_others(fd, process_fd);
	saved = divert_errors(&memory);
	r = holder_open(&holder, cli, specs, n, &options);
	print_diverted(memory, saved, process_fd);
	if (r)
		_exit(EXIT_FAILED);
	if (!send_all(holder.dir, fd, n, self_fd)) {
		(void)cli_error(
			"the path of the model directory is too long, or weightctl has ended");
		holder_close(&holder);
		_exit(EXIT_FAILED);
	}
	close_standard_descriptors();
	if (wait_for_program(fd, process_fd))
		holder_keep(&holder, process_fd);
	holder_close(&holder);
	_exit(EXIT_SUCCESS);
}

/* --- In the process that becomes the program ---------------------------------------------------- */

/* Ends once the holder runs, or could not be started. */
static int fork_holder(struct cli *cli, const char *const *specs, size_t n, int self_fd, int fd,
		       int process_fd)
{
	pid_t between = fork();

	if (between < 0)
		return cli_error("cannot start a holder: %s", strerror(errno));
	if (between > 0) {
		while (waitpid(between, NULL, 0) < 0 && errno == EINTR)
			continue;
		return 0;
	}
	(void)setsid();
	between = fork();
	if (between == 0)
		holder_run(cli, specs, n, self_fd, fd, process_fd);
	if (between < 0)
		(void)cli_error("cannot start a holder: %s", strerror(errno));
	_exit(EXIT_SUCCESS);
}

static bool receive_all(struct exec_holder *h, bool with_descriptors)
{
	struct exec_directory directory;
	int none;

	for (size_t i = 0; i < h->n; i++) {
		int weights;

		if (!packet_receive(h->fd, &h->links[i], sizeof(*h->links), &weights))
			return false;
		if (with_descriptors)
			h->weights[i] = weights;
	}
	if (!packet_receive(h->fd, &directory, sizeof(directory), &none))
		return false;
	h->pid = directory.pid;
	memcpy(h->path, directory.path, sizeof(h->path));
	return true;
}

int exec_holder_start(struct exec_holder *h, struct cli *cli, const char *const *specs, size_t n,
		      int self_fd)
{
	int pair[2], process_fd, r;

	*h = (struct exec_holder){.fd = -1, .n = n};
	h->links = calloc(n, sizeof(*h->links));
	h->weights = calloc(n, sizeof(*h->weights));
	if (!h->links || !h->weights)
		cli_out_of_memory();
	process_fd = libc_pidfd_open(getpid());
	if (process_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return cli_error("cannot start a holder: %s%s", strerror(errno),
				 errno == EMFILE ? "; raise the limit (ulimit -n)" : "");
	r = fork_holder(cli, specs, n, self_fd, pair[1], process_fd);
	(void)close(pair[1]);
	(void)close(process_fd);
	h->fd = pair[0];
	if (r == 0 && !receive_all(h, self_fd))
		r = EXIT_FAILED; /* the holder has printed why */
	return r;
}

void exec_holder_end(struct exec_holder *h)
{
	char byte = 0;

	free(h->links);
	free(h->weights);
	if (h->fd < 0)
		return;
	(void)send(h->fd, &byte, 1, MSG_NOSIGNAL);
	while (recv(h->fd, &byte, 1, 0) < 0 && errno == EINTR)
		continue;
	(void)close(h->fd);
	h->fd = -1;
}
