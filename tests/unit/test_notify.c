/* Messages to the service manager: those that waited take little time of the loop at once, and it is their users'. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/base/notify.h"

#define ALICE 4001u
#define BOB 4002u
#define N_MESSAGES 100
#define SEND_NS 50000u
#define ROUND_NS 1000000u /* of the loop: nothing in it may last longer */

static struct loop loop;
static struct notify notify;
static int manager_fd;
static bool full;
static uint64_t clock_ns, charged_ns[2]; /* of Alice, of Bob */
static unsigned n_sent;

uint64_t __wrap_num_now_ns(void);
uint64_t __wrap_num_now_ns(void)
{
	return clock_ns;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
	(void)fd;
	(void)flags;
	if (full) {
		errno = EAGAIN;
		return -1;
	}
	n_sent++;
	clock_ns += SEND_NS;
	return (ssize_t)message->msg_iov->iov_len;
}

static void charge(void *arg, uid_t uid, uint64_t begin, uint64_t end)
{
	(void)arg;
	charged_ns[uid == BOB] += end - begin;
}

static int set_up(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[32];

	(void)state;
	(void)snprintf(path, sizeof(path), "@weightd-test-%d", (int)getpid());
	memcpy(address.sun_path + 1, path + 1, strlen(path) - 1);
	manager_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(manager_fd, (const struct sockaddr *)&address,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))),
			 0);
	assert_int_equal(setenv("NOTIFY_SOCKET", path, 1), 0);
	clock_ns = 1000000000;
	n_sent = 0;
	memset(charged_ns, 0, sizeof(charged_ns));
	assert_int_equal(loop_init(&loop), 0);
	assert_int_equal(notify_init(&notify, &loop), 0);
	notify_charge(&notify, charge, NULL);
	assert_true(notify_works(&notify));
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	full = false;
	notify_deinit(&notify);
	loop_deinit(&loop);
	return close(manager_fd);
}

/* Messages of both, by turns, that wait. */
static void send_many(void)
{
	full = true;
	for (int i = 0; i < N_MESSAGES; i++)
		assert_int_equal(notify_send(&notify, i % 2 ? BOB : ALICE, "FDSTORE=1", -1), 0);
	full = false;
}

static void many_messages_are_sent_in_many_rounds(void **state)
{
	unsigned n_rounds = 0;

	(void)state;
	send_many();
	while (n_sent < N_MESSAGES) {
		uint64_t began_ns = clock_ns;

		assert_int_equal(notify.source.events, EPOLLOUT);
		notify.source.fn(&notify.source, EPOLLOUT);
		assert_in_range(clock_ns - began_ns, SEND_NS, ROUND_NS);
		n_rounds++;
	}
	assert_in_range(n_rounds, N_MESSAGES * SEND_NS / ROUND_NS, N_MESSAGES);
	assert_int_equal(notify.source.events, 0);
}

static void the_time_is_that_of_their_users(void **state)
{
	(void)state;
	send_many();
	while (n_sent < N_MESSAGES)
		notify.source.fn(&notify.source, EPOLLOUT);
	assert_int_equal(charged_ns[0], N_MESSAGES / 2 * SEND_NS);
	assert_int_equal(charged_ns[1], N_MESSAGES / 2 * SEND_NS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(many_messages_are_sent_in_many_rounds),
		TEST(the_time_is_that_of_their_users),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
