/* Channels: packets and their descriptors through real sockets; no descriptor is ever lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/channel.h"

/* The two ends of a connection, and how many descriptors were open before it was made. */
struct pair {
	int here, there;
	unsigned n_open_before;
};

static struct pair pair;
static struct channel_packet packet;

static unsigned count_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n;
}

static int set_up(void **state)
{
	int fds[2];

	(void)state;
	pair.n_open_before = count_open();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -1;
	pair.here = fds[0];
	pair.there = fds[1];
	memset(&packet, 0x5a, sizeof(packet));
	packet.n_fds = 0;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	channel_packet_deinit(&packet);
	pair.here = fd_close(pair.here);
	pair.there = fd_close(pair.there);
	assert_int_equal(count_open(), pair.n_open_before);
	return 0;
}

static ino_t inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

/* One packet with any number of descriptors, all of them of one file: channel_send() has a limit. */
static void send_raw(const void *data, size_t size, unsigned n_fds)
{
	char control[CMSG_SPACE(sizeof(int) * CHANNEL_FDS_MAX)] __attribute__((aligned(8))) = {0};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	cleanup(fd_closep) int file = open("/dev/null", O_RDONLY | O_CLOEXEC);

	assert_in_range(n_fds, 0, CHANNEL_FDS_MAX);
	if (n_fds > 0) {
		struct cmsghdr *c;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		for (unsigned i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &file, sizeof(int));
	}
	assert_int_equal(sendmsg(pair.there, &msg, MSG_NOSIGNAL), size);
}

static void send_text(const char *text)
{
	assert_int_equal(channel_send(pair.there, text, strlen(text), NULL, 0), 0);
}

static void expect_text(const char *text)
{
	assert_int_equal(channel_receive(pair.here, MSG_DONTWAIT, &packet), 1);
	assert_int_equal(packet.size, strlen(text));
	assert_memory_equal(packet.data, text, packet.size);
	assert_int_equal(packet.n_fds, 0);
}

/* --- Packets --------------------------------------------------------------------------------------- */

static void packets_keep_their_bounds_and_their_order(void **state)
{
	(void)state;
	send_text("one");
	send_text("number two");
	send_text("3");
	expect_text("one");
	expect_text("number two");
	expect_text("3");
}

static void descriptors_arrive_in_order_and_close_on_exec(void **state)
{
	(void)state;
	for (unsigned n = 0; n <= WIRE_FDS_MAX; n++) {
		int fds[WIRE_FDS_MAX];
		ino_t inodes[WIRE_FDS_MAX];

		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(fd_memfd("test", i, &fds[i]), 0);
			inodes[i] = inode(fds[i]);
		}
		assert_int_equal(channel_send(pair.there, "fds", 3, fds, n), 0);
		for (unsigned i = 0; i < n; i++)
			fd_close(fds[i]);
		assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
		assert_int_equal(packet.size, 3);
		assert_int_equal(packet.n_fds, n);
		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(inode(packet.fds[i]), inodes[i]);
			assert_int_equal(fcntl(packet.fds[i], F_GETFD), FD_CLOEXEC);
		}
		channel_packet_deinit(&packet);
		assert_int_equal(packet.n_fds, 0);
	}
}

static void what_was_taken_from_a_packet_is_not_closed_with_it(void **state)
{
	int taken;

	(void)state;
	send_raw("x", 1, 2);
	assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
	assert_int_equal(packet.n_fds, 2);
	taken = take_fd(packet.fds[0]);
	channel_packet_deinit(&packet);
	assert_true(fcntl(taken, F_GETFD) >= 0);
	fd_close(taken);
}

static void the_longest_packet_arrives_and_one_byte_more_does_not(void **state)
{
	char data[WIRE_MESSAGE_MAX + 1];

	(void)state;
	memset(data, 'x', sizeof(data));
	send_raw(data, WIRE_MESSAGE_MAX, 0);
	assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
	assert_int_equal(packet.size, WIRE_MESSAGE_MAX);
	assert_memory_equal(packet.data, data, WIRE_MESSAGE_MAX);
	send_raw(data, WIRE_MESSAGE_MAX + 1, 0);
	assert_int_equal(channel_receive(pair.here, 0, &packet), -EMSGSIZE);
	assert_int_equal(packet.n_fds, 0);
}

static void a_packet_that_is_too_long_still_hands_over_its_descriptors(void **state)
{
	char data[2 * WIRE_MESSAGE_MAX] = {0};

	(void)state;
	send_raw(data, sizeof(data), 3);
	assert_int_equal(channel_receive(pair.here, 0, &packet), -EMSGSIZE);
	assert_int_equal(packet.n_fds, 3);
	channel_packet_deinit(&packet);
	send_text("next");
	expect_text("next");
}

static void nothing_to_receive_is_eagain(void **state)
{
	(void)state;
	packet.n_fds = 2; /* left from a packet before */
	assert_int_equal(channel_receive(pair.here, MSG_DONTWAIT, &packet), -EAGAIN);
	assert_int_equal(packet.n_fds, 0);
	assert_int_equal(packet.size, 0);
}

static void a_peer_that_closes_is_the_end_behind_its_last_packet(void **state)
{
	(void)state;
	send_text("last");
	pair.there = fd_close(pair.there);
	expect_text("last");
	assert_int_equal(channel_receive(pair.here, 0, &packet), 0);
	assert_int_equal(channel_receive(pair.here, 0, &packet), 0);
	assert_int_equal(packet.n_fds, 0);
}

static void a_peer_that_closes_without_reading_all_is_the_end_all_the_same(void **state)
{
	(void)state;
	send_text("last");
	assert_int_equal(channel_send(pair.here, "unread", 6, NULL, 0), 0);
	pair.there = fd_close(pair.there);
	expect_text("last");
	assert_int_equal(channel_receive(pair.here, 0, &packet), 0);
}

static void an_empty_packet_looks_like_the_end(void **state)
{
	(void)state;
	send_raw("", 0, 2);
	assert_int_equal(channel_receive(pair.here, 0, &packet), 0);
	assert_int_equal(packet.n_fds, 2);
}

static void what_is_no_socket_cannot_be_received_from(void **state)
{
	cleanup(fd_closep) int file = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void)state;
	assert_int_equal(channel_receive(file, 0, &packet), -ENOTSOCK);
	assert_int_equal(packet.n_fds, 0);
	assert_int_equal(channel_send(file, "x", 1, NULL, 0), -ENOTSOCK);
}

static volatile sig_atomic_t n_alarms;

static void on_alarm(int signal)
{
	(void)signal;
	if (++n_alarms == 3)
		(void)send(pair.there, "late", 4, MSG_DONTWAIT);
}

static void signals_do_not_end_a_receive(void **state)
{
	const struct sigaction act = {.sa_handler = on_alarm};
	const struct itimerval each_ms = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000};
	const struct itimerval never = {0};
	struct sigaction old;
	int r;

	(void)state;
	n_alarms = 0;
	assert_int_equal(sigaction(SIGALRM, &act, &old), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &each_ms, NULL), 0);
	r = channel_receive(pair.here, 0, &packet);
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
	assert_int_equal(r, 1);
	assert_in_range(n_alarms, 3, INT32_MAX);
	assert_int_equal(packet.size, 4);
}

/* --- Descriptors that do not arrive ---------------------------------------------------------------- */

static void more_descriptors_than_a_message_has_arrive_all_the_same(void **state)
{
	static const unsigned numbers[] = {WIRE_FDS_MAX + 1, 10, CHANNEL_FDS_MAX};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		unsigned before = count_open();

		send_raw("x", 1, numbers[i]);
		assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
		assert_int_equal(packet.n_fds, numbers[i]);
		assert_int_equal(count_open(), before + numbers[i]);
		channel_packet_deinit(&packet);
		assert_int_equal(count_open(), before);
	}
	send_text("next");
	expect_text("next");
}

static void the_kernel_passes_on_no_more_than_a_packet_can_hold(void **state)
{
	int fds[CHANNEL_FDS_MAX + 1];
	char control[CMSG_SPACE(sizeof(fds))] __attribute__((aligned(8))) = {0};
	struct iovec iov = {.iov_base = fds, .iov_len = 1};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		fds[i] = pair.there;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	assert_int_equal(sendmsg(pair.there, &msg, MSG_NOSIGNAL), -1);
	assert_int_equal(errno, EINVAL);
}

/* A limit under which this process may open n descriptors more. */
static rlim_t limit_for(unsigned n)
{
	int fd = 0;

	for (;; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			continue;
		if (n-- == 0)
			return (rlim_t)fd;
	}
}

static void a_receiver_out_of_descriptors_gets_an_error_and_keeps_none(void **state)
{
	struct rlimit old;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	for (unsigned n_free = 0; n_free <= 3; n_free++) {
		struct rlimit low = {.rlim_cur = limit_for(n_free), .rlim_max = old.rlim_max};
		unsigned before = count_open();
		int r;

		send_raw("bytes", 5, 3);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		r = channel_receive(pair.here, 0, &packet);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
		assert_int_equal(r, n_free < 3 ? -EMFILE : 1);
		assert_int_equal(packet.n_fds, n_free);
		assert_int_equal(packet.size, 5);
		assert_memory_equal(packet.data, "bytes", 5);
		channel_packet_deinit(&packet);
		assert_int_equal(count_open(), before);
	}
}

static void descriptors_nobody_received_go_with_the_socket(void **state)
{
	int pipe_fds[2];
	char c;

	(void)state;
	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	assert_int_equal(channel_send(pair.there, "x", 1, &pipe_fds[1], 1), 0);
	fd_close(pipe_fds[1]);
	pair.here = fd_close(pair.here);
	pair.there = fd_close(pair.there);
	assert_int_equal(read(pipe_fds[0], &c, 1), 0); /* the last writer is gone */
	fd_close(pipe_fds[0]);
}

/* --- Sending --------------------------------------------------------------------------------------- */

static void sending_to_who_does_not_read_is_eagain_and_loses_nothing(void **state)
{
	uint32_t n_sent = 0;
	int r;

	(void)state;
	while ((r = channel_send(pair.there, &n_sent, sizeof(n_sent), NULL, 0)) == 0)
		n_sent++;
	assert_int_equal(r, -EAGAIN);
	assert_in_range(n_sent, 1, 1000000);
	for (uint32_t i = 0; i < n_sent; i++) {
		uint32_t got;

		assert_int_equal(channel_receive(pair.here, MSG_DONTWAIT, &packet), 1);
		assert_int_equal(packet.size, sizeof(got));
		memcpy(&got, packet.data, sizeof(got));
		assert_int_equal(got, i);
	}
	assert_int_equal(channel_receive(pair.here, MSG_DONTWAIT, &packet), -EAGAIN);
	assert_int_equal(channel_send(pair.there, "x", 1, NULL, 0), 0);
}

static void descriptors_of_a_packet_that_was_not_sent_stay_with_the_sender(void **state)
{
	unsigned before = count_open();
	int fd = pair.here;

	(void)state;
	while (channel_send(pair.there, "x", 1, NULL, 0) == 0)
		continue;
	assert_int_equal(channel_send(pair.there, "x", 1, &fd, 1), -EAGAIN);
	assert_int_equal(count_open(), before);
	while (channel_receive(pair.here, MSG_DONTWAIT, &packet) == 1)
		assert_int_equal(packet.n_fds, 0);
}

static void sending_to_who_is_gone_is_an_error_and_no_signal(void **state)
{
	(void)state;
	pair.here = fd_close(pair.here);
	assert_int_equal(channel_send(pair.there, "x", 1, NULL, 0), -EPIPE);
}

static void a_descriptor_that_is_none_cannot_be_sent(void **state)
{
	const int none = -1;

	(void)state;
	assert_int_equal(channel_send(pair.there, "x", 1, &none, 1), -EBADF);
	assert_int_equal(channel_receive(pair.here, MSG_DONTWAIT, &packet), -EAGAIN);
}

static size_t unread(void)
{
	size_t n = SIZE_MAX;

	assert_int_equal(channel_unread(pair.there, &n), 0);
	return n;
}

static void unread_is_zero_exactly_when_all_was_received(void **state)
{
	(void)state;
	assert_int_equal(unread(), 0);
	send_text("one");
	assert_int_not_equal(unread(), 0);
	send_text("two");
	expect_text("one");
	assert_int_not_equal(unread(), 0);
	expect_text("two");
	assert_int_equal(unread(), 0);
	assert_int_equal(channel_send(pair.here, "other way", 9, NULL, 0), 0);
	assert_int_equal(unread(), 0);
}

static void packets_with_descriptors_are_seen_and_not_dropped(void **state)
{
	(void)state;
	assert_false(channel_may_hold_fds(pair.here));
	send_raw("text", 4, 2);
	assert_true(channel_may_hold_fds(pair.here));
	assert_true(channel_may_hold_fds(pair.here));
	assert_false(channel_may_hold_fds(pair.there));
	assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
	assert_int_equal(packet.size, 4);
	assert_int_equal(packet.n_fds, 2);
	assert_false(channel_may_hold_fds(pair.here));
}

static void packets_without_descriptors_are_dropped_up_to_one_with_some(void **state)
{
	(void)state;
	send_raw("one", 3, 0);
	send_raw("two", 3, 0);
	assert_false(channel_may_hold_fds(pair.here));
	assert_int_equal(unread(), 0);
	send_raw("one", 3, 0);
	send_raw("text", 4, 1);
	assert_true(channel_may_hold_fds(pair.here));
	assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
	assert_int_equal(packet.n_fds, 1);
}

static void only_a_few_packets_are_dropped(void **state)
{
	(void)state;
	for (int i = 0; i < 100; i++)
		send_raw("text", 4, 0);
	assert_true(channel_may_hold_fds(pair.here));
}

/* They look like the end of the connection. */
static void a_packet_behind_empty_ones_is_seen_for_its_descriptors(void **state)
{
	(void)state;
	send_raw("", 0, 0);
	send_raw("text", 4, 1);
	assert_int_equal(shutdown(pair.here, SHUT_RDWR), 0);
	assert_true(channel_may_hold_fds(pair.here));
}

static void the_end_holds_none(void **state)
{
	(void)state;
	send_raw("text", 4, 0);
	assert_int_equal(shutdown(pair.here, SHUT_RDWR), 0);
	assert_false(channel_may_hold_fds(pair.here));
	pair.there = fd_close(pair.there);
	assert_false(channel_may_hold_fds(pair.here));
}

static void a_waiting_packet_without_bytes_is_seen_for_its_descriptors(void **state)
{
	unsigned before = count_open();

	(void)state;
	send_raw("", 0, 1);
	assert_true(channel_may_hold_fds(pair.here));
	assert_int_equal(count_open(), before);
}

static void packets_of_who_is_gone_are_seen(void **state)
{
	(void)state;
	send_raw("text", 4, 1);
	pair.there = fd_close(pair.there);
	assert_true(channel_may_hold_fds(pair.here));
	assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
	assert_false(channel_may_hold_fds(pair.here));
}

static void packets_of_who_left_without_reading_are_seen(void **state)
{
	(void)state;
	send_raw("text", 4, 1);
	assert_int_equal(channel_send(pair.here, "unread", 6, NULL, 0), 0);
	pair.there = fd_close(pair.there); /* the reset is told before the packet */
	assert_true(channel_may_hold_fds(pair.here));
	assert_int_equal(channel_receive(pair.here, 0, &packet), 1);
	assert_int_equal(packet.n_fds, 1);
}

/* --- Peers ----------------------------------------------------------------------------------------- */

static void a_peer_is_who_made_the_pair(void **state)
{
	int n_groups = getgroups(0, NULL);
	cleanup(freep) gid_t *groups = calloc((size_t)n_groups + 1, sizeof(*groups));
	struct channel_peer peer;

	(void)state;
	assert_non_null(groups);
	assert_int_equal(getgroups(n_groups, groups), n_groups);
	assert_int_equal(channel_peer(pair.here, &peer), 0);
	assert_int_equal(peer.pid, getpid());
	assert_int_equal(peer.uid, geteuid());
	assert_int_equal(peer.gid, getegid());
	assert_int_equal(peer.n_groups, n_groups);
	for (int i = 0; i < n_groups; i++)
		assert_int_equal(peer.groups[i], groups[i]);
	channel_peer_deinit(&peer);
	assert_int_equal(peer.n_groups, 0);
	assert_null(peer.groups);
}

static void what_is_no_socket_has_no_peer(void **state)
{
	cleanup(fd_closep) int file = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct channel_peer peer = {.pid = 77};
	size_t n = 77;

	(void)state;
	assert_int_equal(channel_peer(file, &peer), -ENOTSOCK);
	assert_int_equal(peer.pid, 77);
	assert_int_equal(channel_unread(file, &n), -ENOTTY);
	assert_int_equal(n, 77);
}

#define CHILD_UID 40001
#define CHILD_GID 40002

/* A listening socket in a directory of its own, and its address. */
static int listen_somewhere(char dir[64], struct sockaddr_un *address)
{
	char path[80];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	(void)snprintf(dir, 64, "/tmp/test_channel.XXXXXX");
	assert_non_null(mkdtemp(dir));
	(void)snprintf(path, sizeof(path), "%s/s", dir);
	assert_int_equal(channel_address(path, address), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)address, sizeof(*address)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(chmod(dir, 0711), 0);
	assert_int_equal(chmod(path, 0777), 0);
	return fd;
}

/* Connects as another user with these groups and waits for the other end to close. */
static _Noreturn void be_a_client(const struct sockaddr_un *address, const gid_t *groups, size_t n)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char c;

	if (setgroups(n, groups) < 0 || setresgid(CHILD_GID, CHILD_GID, CHILD_GID) < 0 ||
	    setresuid(CHILD_UID, CHILD_UID, CHILD_UID) < 0)
		_exit(1);
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
		_exit(2);
	_exit(read(fd, &c, 1) == 0 ? 0 : 3);
}

static void check_client_with_groups(const gid_t *groups, size_t n)
{
	char dir[64];
	struct sockaddr_un address;
	cleanup(fd_closep) int listener = listen_somewhere(dir, &address);
	cleanup(fd_closep) int fd = -1;
	struct channel_peer peer;
	pid_t pid = fork();
	int r, status;

	assert_true(pid >= 0);
	if (pid == 0)
		be_a_client(&address, groups, n);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	r = channel_peer(fd, &peer);
	fd = fd_close(fd);
	(void)unlink(address.sun_path);
	(void)rmdir(dir);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(r, 0);
	assert_int_equal(peer.pid, pid);
	assert_int_equal(peer.uid, CHILD_UID);
	assert_int_equal(peer.gid, CHILD_GID);
	assert_int_equal(peer.n_groups, n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(peer.groups[i], groups[i]);
	channel_peer_deinit(&peer);
}

static void a_peer_is_who_connected_with_all_its_groups(void **state)
{
	static gid_t groups[5000];

	(void)state;
	if (geteuid() != 0) {
		print_message("needs root\n");
		skip();
	}
	for (size_t i = 0; i < ARRAY_LEN(groups); i++)
		groups[i] = (gid_t)(50000 + 2 * i); /* sorted, as the kernel keeps them */
	check_client_with_groups(groups, 0);
	check_client_with_groups(groups, 1);
	check_client_with_groups(groups, ARRAY_LEN(groups));
}

static void an_address_has_1_to_107_bytes(void **state)
{
	char path[109];
	struct sockaddr_un address, untouched;

	(void)state;
	memset(&address, 0x5a, sizeof(address));
	untouched = address;
	memset(path, 'x', sizeof(path));
	path[108] = '\0';
	assert_int_equal(channel_address(path, &address), -ENAMETOOLONG);
	assert_int_equal(channel_address("", &address), -EINVAL);
	assert_memory_equal(&address, &untouched, sizeof(address));
	path[107] = '\0';
	assert_int_equal(channel_address(path, &address), 0);
	assert_int_equal(address.sun_family, AF_UNIX);
	assert_string_equal(address.sun_path, path);
	assert_int_equal(channel_address("s", &address), 0);
	assert_memory_equal(address.sun_path, "s\0\0\0", 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(packets_keep_their_bounds_and_their_order),
		TEST(descriptors_arrive_in_order_and_close_on_exec),
		TEST(what_was_taken_from_a_packet_is_not_closed_with_it),
		TEST(the_longest_packet_arrives_and_one_byte_more_does_not),
		TEST(a_packet_that_is_too_long_still_hands_over_its_descriptors),
		TEST(nothing_to_receive_is_eagain),
		TEST(a_peer_that_closes_is_the_end_behind_its_last_packet),
		TEST(a_peer_that_closes_without_reading_all_is_the_end_all_the_same),
		TEST(an_empty_packet_looks_like_the_end),
		TEST(what_is_no_socket_cannot_be_received_from),
		TEST(signals_do_not_end_a_receive),
		TEST(more_descriptors_than_a_message_has_arrive_all_the_same),
		TEST(the_kernel_passes_on_no_more_than_a_packet_can_hold),
		TEST(a_receiver_out_of_descriptors_gets_an_error_and_keeps_none),
		TEST(descriptors_nobody_received_go_with_the_socket),
		TEST(sending_to_who_does_not_read_is_eagain_and_loses_nothing),
		TEST(descriptors_of_a_packet_that_was_not_sent_stay_with_the_sender),
		TEST(sending_to_who_is_gone_is_an_error_and_no_signal),
		TEST(a_descriptor_that_is_none_cannot_be_sent),
		TEST(unread_is_zero_exactly_when_all_was_received),
		TEST(packets_with_descriptors_are_seen_and_not_dropped),
		TEST(packets_without_descriptors_are_dropped_up_to_one_with_some),
		TEST(only_a_few_packets_are_dropped),
		TEST(a_packet_behind_empty_ones_is_seen_for_its_descriptors),
		TEST(the_end_holds_none),
		TEST(a_waiting_packet_without_bytes_is_seen_for_its_descriptors),
		TEST(packets_of_who_is_gone_are_seen),
		TEST(packets_of_who_left_without_reading_are_seen),
		TEST(a_peer_is_who_made_the_pair),
		TEST(what_is_no_socket_has_no_peer),
		TEST(a_peer_is_who_connected_with_all_its_groups),
		TEST(an_address_has_1_to_107_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
