/*
 * The parts of the server of metrics: connections that end, and the address that it listens at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "libclient/weightctl/http/connections.h"
#include "libclient/weightctl/http/listener.h"

#define N (CONNECTIONS_MAX + 2)

struct world {
	struct connections c;
	int server[N], client[N];
};

static int set_up(void **state)
{
	static struct world w;

	w = (struct world){0};
	for (int i = 0; i < N; i++) {
		int pair[2];

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		w.server[i] = pair[0];
		w.client[i] = pair[1];
	}
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	for (int i = 0; i < N; i++) {
		(void)close(w->server[i]);
		(void)close(w->client[i]);
	}
	return 0;
}

/* True if the client finds the connection at its end. */
static int is_shut(const struct world *w, int i)
{
	struct pollfd p = {.fd = w->client[i], .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void test_the_oldest_makes_room(void **state)
{
	struct world *w = *state;

	for (int i = 0; i < CONNECTIONS_MAX; i++)
		connections_add(&w->c, w->server[i], (uint64_t)i);
	assert_false(is_shut(w, 0));
	connections_add(&w->c, w->server[CONNECTIONS_MAX], CONNECTIONS_MAX);
	assert_true(is_shut(w, 0));
	assert_false(is_shut(w, 1));

	connections_remove(&w->c, w->server[0]); /* its owner closes it later */
	connections_remove(&w->c, w->server[1]);
	connections_add(&w->c, w->server[CONNECTIONS_MAX + 1], CONNECTIONS_MAX);
	for (int i = 1; i < N; i++)
		assert_false(is_shut(w, i));
}

static void test_each_has_an_end(void **state)
{
	struct world *w = *state;

	assert_int_equal(connections_expire(&w->c, 0), -1);
	connections_add(&w->c, w->server[0], 1);
	connections_add(&w->c, w->server[1], 2000000);
	assert_int_equal(connections_expire(&w->c, 2000000), CONNECTIONS_LIFE_NS / 1000000 - 1);
	assert_false(is_shut(w, 0));
	assert_int_equal(connections_expire(&w->c, CONNECTIONS_LIFE_NS + 1), 2);
	assert_true(is_shut(w, 0));
	assert_false(is_shut(w, 1));
	assert_int_equal(connections_expire(&w->c, CONNECTIONS_LIFE_NS + 2000000), -1);
	assert_true(is_shut(w, 1));
}

static void test_wrong_addresses(void **state)
{
	static const char *const wrong[] = {
		"",           ":80",
		"80",         "127.0.0.1",
		"127.0.0.1:", "127.0.0.1:65536",
		"[::1]",      "::1:80",
		"[]:80",      "127.0.0.1:-1",
		"[::1:80",    "127.0.0.1:000080",
		"[::1]:8x",   "127.0.0.1: 8",
		"::1]:80",    "127.0.0.1:80:80",
	};
	char at[LISTENER_ADDRESS_SIZE], why[LISTENER_WHY_SIZE];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		if (listener_open(wrong[i], at, why) != -EINVAL)
			fail_msg("'%s' is no address", wrong[i]);
		assert_string_equal(why, "it is no ADDR:PORT, such as 127.0.0.1:9464 or [::1]:9464");
	}
}

static void test_a_port_in_use(void **state)
{
	char at[LISTENER_ADDRESS_SIZE], again[LISTENER_ADDRESS_SIZE], why[LISTENER_WHY_SIZE];
	int fd = listener_open("127.0.0.1:0", at, why);

	(void)state;
	assert_true(fd >= 0);
	assert_ptr_equal(strstr(at, "127.0.0.1:"), at);
	assert_int_equal(listener_open(at, again, why), -EADDRINUSE);
	assert_string_equal(why, "Address already in use");
	(void)close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_oldest_makes_room, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_each_has_an_end, set_up, tear_down),
		cmocka_unit_test(test_wrong_addresses),
		cmocka_unit_test(test_a_port_in_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
