/*
 * Meetings of nodes that are processes: words, nodes that are late, killed or replaced, and connections that are none of a
 * node's
 */
#include "tests/unit/train_nodes.h"

#include "ipc/base/num.h"
#include "libclient/train/plan/sentence.h"

#define N_MAX 4
#define WORD_MAX (1u << 24)
#define N_GUESTS 300
#define FDS_MAX 100 /* of a node that is flooded */

/* Frames, as meet.c has them. */
#define MAGIC 0x317465656d746477ull
#define KIND_WORD 4

struct join {
	uint64_t magic;
	uint32_t line, node, n_nodes, zero;
};

struct frame {
	uint32_t kind, node, line, n_nodes, size, zero;
};

static uint32_t n_nodes; /* of the test that runs */
static const char *address; /* likewise */

static struct meet *open_place(uint32_t node)
{
	struct meet_place place = nodes_place(node, n_nodes);
	struct meet *m;

	place.address = address;
	CHECK(meet_open(&place, &m) == 0);
	return m;
}

static struct meet *join(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, never_ends, NULL, &own) == 0);
	CHECK(meet_missing(m) == n_nodes);
	CHECK(own.ss_family == (strcmp(address, "::1") == 0 ? AF_INET6 : AF_INET));
	CHECK(((struct sockaddr_in *)&own)->sin_port == 0);
	return m;
}

static uint32_t size_of_word(uint32_t node, uint32_t round)
{
	static const uint32_t sizes[] = {1, 0, 5 * (uint32_t)MIB + 7, 3000, 17};

	return sizes[(node * 3 + round) % ARRAY_LEN(sizes)];
}

static void tell(struct meet *m, uint32_t node, uint32_t round)
{
	uint32_t size = size_of_word(node, round);
	char *word = malloc(size + 1);
	struct meet_word words[N_MAX];

	CHECK(word);
	memset(word, (int)(node * 16 + round), size);
	CHECK(meet_tell(m, word, size, WORD_MAX, never_ends, NULL, words) == 0);
	free(word);
	for (uint32_t i = 0; i < n_nodes; i++) {
		CHECK(words[i].size == size_of_word(i, round));
		for (uint32_t j = 0; j < words[i].size; j++)
			CHECK(((char *)words[i].data)[j] == (char)(i * 16 + round));
	}
	meet_words_free(words, n_nodes);
}

static void tells_words(uint32_t node)
{
	struct meet *m = join(node);

	for (uint32_t round = 0; round < 8; round++)
		tell(m, node, round);
	meet_close(m);
}

static void all_nodes_receive_the_words_of_all(void **state)
{
	(void)state;
	address = "127.0.0.1";
	for (n_nodes = 2; n_nodes <= N_MAX; n_nodes++)
		nodes_run(n_nodes, tells_words);
}

static bool has_ipv6(void)
{
	const struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0;

	if (fd >= 0)
		(void)close(fd);
	return has;
}

static void nodes_meet_by_ipv6(void **state)
{
	(void)state;
	if (!has_ipv6())
		skip();
	n_nodes = 3;
	address = "::1";
	nodes_run(n_nodes, tells_words);
}

static void tells_words_by_name(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, never_ends, NULL, &own) == 0);
	tell(m, node, 0);
	meet_close(m);
}

static void nodes_meet_by_name(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "localhost";
	nodes_run(n_nodes, tells_words_by_name);
}

static void passes_sockets_on(uint32_t node)
{
	struct meet *m = join(node);
	char byte = (char)node;

	tell(m, node, 0);
	for (uint32_t i = 0; i < n_nodes; i++) {
		int fd = meet_socket(m, i);
		ssize_t n;

		if (i == node || (node && i)) {
			CHECK(fd == -1);
			continue;
		}
		CHECK(send(fd, &byte, 1, 0) == 1);
		while ((n = recv(fd, &byte, 1, 0)) < 0)
			CHECK(errno == EAGAIN);
		CHECK(n == 1 && byte == (char)i);
		byte = (char)node;
	}
	tell(m, node, 1);
	meet_close(m);
}

static void sockets_are_free_for_bytes_between_words(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_run(n_nodes, passes_sockets_on);
}

/* Counts the ticks of all nodes that wait. */
static int count_ticks(void *data, bool is_interrupted)
{
	(void)data;
	(void)is_interrupted;
	nodes->words[0]++;
	return 0;
}

/* Each end asks the kernel to look whether the other machine is still there. */
static void probes_the_other_machine(uint32_t node)
{
	struct meet *m = join(node);
	int is_on = 0;
	socklen_t size = sizeof(is_on);

	CHECK(getsockopt(meet_socket(m, !node), SOL_SOCKET, SO_KEEPALIVE, &is_on, &size) == 0);
	CHECK(is_on);
	meet_close(m);
}

static void machines_that_vanish_are_noticed(void **state)
{
	(void)state;
	address = "127.0.0.1";
	n_nodes = 2;
	nodes_run(n_nodes, probes_the_other_machine);
}

static void comes_early(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_missing(m) == 0);
	CHECK(meet_join(m, count_ticks, NULL, &own) == 0);
	tell(m, node, 0);
	meet_close(m);
}

static void nodes_wait_for_node_0(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_fork(1, comes_early);
	nodes_fork(2, comes_early);
	while (nodes->words[0] < 4)
		(void)usleep(1000);
	nodes_fork(0, tells_words_by_name);
	for (uint32_t i = 0; i < n_nodes; i++)
		assert_int_equal(nodes_wait(i), 0);
}

/* Of a node that waits for node 2. */
static int die_once_joined(void *data, bool is_interrupted)
{
	(void)is_interrupted;
	return meet_missing(*(struct meet **)data) == 2 ? raise(SIGKILL) : 0;
}

static void dies_once_joined(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	(void)meet_join(m, die_once_joined, &m, &own);
}

static void a_successor_takes_the_place_of_a_node_that_was_killed(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_fork(0, tells_words_by_name);
	for (int i = 0; i < 3; i++) {
		nodes_fork(1, dies_once_joined);
		assert_int_equal(nodes_wait(1), SIGKILL);
	}
	nodes_fork(1, tells_words_by_name);
	nodes_fork(2, tells_words_by_name);
	for (uint32_t i = 0; i < n_nodes; i++)
		assert_int_equal(nodes_wait(i), 0);
}

static int show_missing(void *data, bool is_interrupted)
{
	struct meet *m = *(struct meet **)data;

	(void)is_interrupted;
	nodes->words[0] = 100 + meet_missing(m);
	return 0;
}

static void is_replaced(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, show_missing, &m, &own) == -EEXIST);
	CHECK(strstr(weightd_train_error(), "another process has joined"));
	CHECK(strstr(weightd_train_error(), "rank 0 of node 1"));
	meet_close(m);
}

static void is_another_node_1(uint32_t slot)
{
	(void)slot;
	tells_words_by_name(1);
}

static void two_processes_as_one_node_are_reported(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_fork(0, tells_words_by_name);
	nodes_fork(1, is_replaced);
	while (nodes->words[0] != 102) /* it waits for node 2 */
		(void)usleep(1000);
	nodes_fork(3, is_another_node_1);
	assert_int_equal(nodes_wait(1), 0);
	nodes_fork(2, tells_words_by_name);
	for (uint32_t i = 0; i <= 3; i++)
		if (i != 1)
			assert_int_equal(nodes_wait(i), 0);
}

static int until_told(void *data, bool is_interrupted)
{
	(void)data;
	(void)is_interrupted;
	return nodes->words[0] ? train_fail(-ECANCELED, "enough") : 0;
}

static void waits_in_vain(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, until_told, NULL, &own) == -ECANCELED);
	CHECK(strcmp(weightd_train_error(), "enough") == 0);
	meet_close(m);
}

static void has_another_number_of_nodes(uint32_t node)
{
	struct meet_place place = nodes_place(node, 4);
	struct sockaddr_storage own;
	struct meet *m;

	CHECK(meet_open(&place, &m) == 0);
	CHECK(meet_join(m, never_ends, NULL, &own) == -EPROTOTYPE);
	CHECK(strstr(weightd_train_error(), "has 3 nodes, and node 1 has 4"));
	meet_close(m);
}

static void is_another_line(uint32_t node)
{
	struct meet_place place = nodes_place(1, 3);
	struct sockaddr_storage own;
	struct meet *m;

	(void)node;
	place.line = 5;
	CHECK(meet_open(&place, &m) == 0);
	CHECK(meet_join(m, never_ends, NULL, &own) == -EPROTOTYPE);
	CHECK(strstr(weightd_train_error(), "is rank 0 of node 0, and rank 5 of node 1 looks"));
	meet_close(m);
}

static void nodes_that_do_not_belong_together_are_told(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_fork(0, waits_in_vain);
	nodes_fork(1, has_another_number_of_nodes);
	nodes_fork(2, is_another_line);
	assert_int_equal(nodes_wait(1), 0);
	assert_int_equal(nodes_wait(2), 0);
	nodes->words[0] = 1;
	assert_int_equal(nodes_wait(0), 0);
}

static void a_check_ends_a_wait_for_nodes(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_fork(1, waits_in_vain);
	nodes->words[0] = 1;
	assert_int_equal(nodes_wait(1), 0);
}

/* Node 1 dies before the last word; the others meet again, with its successor. */
static void loses_a_node(uint32_t node)
{
	struct meet_word words[N_MAX];
	struct meet *m = join(node);

	tell(m, node, 0);
	if (node == 1)
		(void)raise(SIGKILL);
	CHECK(meet_tell(m, "x", 1, WORD_MAX, never_ends, NULL, words) == -EPIPE);
	CHECK(strstr(weightd_train_error(), node ? "node 0 left" : "node 1 left"));
	meet_close(m);
	tells_words_by_name(node);
}

static void all_notice_a_node_that_is_lost_and_meet_again(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	for (uint32_t i = 0; i < n_nodes; i++)
		nodes_fork(i, loses_a_node);
	assert_int_equal(nodes_wait(1), SIGKILL);
	nodes_fork(1, tells_words_by_name);
	for (uint32_t i = 0; i < n_nodes; i++)
		assert_int_equal(nodes_wait(i), 0);
}

static void watches(uint32_t node)
{
	struct meet *m = join(node);

	tell(m, node, 0);
	if (node == 1)
		return; /* its connection is closed */
	while (meet_watch(m) == 0)
		(void)usleep(1000);
	CHECK(meet_watch(m) == -EPIPE);
	CHECK(strstr(weightd_train_error(), node ? "node 0 left" : "node 1 left"));
	meet_close(m);
}

/* Its child lives on. */
static void leaves_a_child(uint32_t node)
{
	struct meet *m = join(node);

	tell(m, node, 0);
	if (node == nodes->words[1] && fork() == 0) {
		(void)alarm(60); /* should the test fail */
		while (!nodes->words[0])
			(void)usleep(1000);
		_exit(0);
	}
	if (node == nodes->words[1])
		(void)raise(SIGKILL);
	for (int i = 0; i < 5000 && meet_watch(m) == 0; i++)
		(void)usleep(1000);
	CHECK(meet_watch(m) == -EPIPE);
	nodes->words[0] = 1;
	meet_close(m);
}

static void a_child_of_a_node_that_is_killed_does_not_keep_its_connection(void **state)
{
	(void)state;
	n_nodes = 2;
	address = "127.0.0.1";
	for (uint32_t victim = 0; victim < n_nodes; victim++) {
		nodes->words[0] = 0;
		nodes->words[1] = victim;
		nodes_fork(0, leaves_a_child);
		nodes_fork(1, leaves_a_child);
		assert_int_equal(nodes_wait(victim), SIGKILL);
		assert_int_equal(nodes_wait(1 - victim), 0);
	}
}

static void a_lost_node_is_seen_without_words(void **state)
{
	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_run(n_nodes, watches);
}

static void knows_no_such_name(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, never_ends, NULL, &own) == -EADDRNOTAVAIL);
	CHECK(strstr(weightd_train_error(), "node 0 has the address 'no name' (MASTER_ADDR)"));
	meet_close(m);
}

static void an_unknown_name_is_reported(void **state)
{
	(void)state;
	n_nodes = 2;
	address = "no name";
	nodes_fork(1, knows_no_such_name);
	assert_int_equal(nodes_wait(1), 0);
}

static int listen_there(void)
{
	const struct sockaddr_in at = {.sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				       .sin_port = htons(nodes->port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int yes = 1;

	CHECK(fd >= 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
	CHECK(bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(listen(fd, 1) == 0);
	return fd;
}

static int close_at_tick(void *data, bool is_interrupted)
{
	int *fd = data;

	(void)is_interrupted;
	if (*fd >= 0)
		CHECK(close(*fd) == 0);
	*fd = -1;
	nodes->words[0] = 1;
	return 0;
}

static void finds_its_port_in_use(uint32_t node)
{
	int fd = listen_there();
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, never_ends, NULL, &own) == -EADDRINUSE);
	CHECK(strstr(weightd_train_error(), "choose another port (MASTER_PORT)"));
	CHECK(meet_join(m, close_at_tick, &fd, &own) == 0);
	tell(m, node, 0);
	meet_close(m);
}

static void a_port_that_is_in_use_may_become_free(void **state)
{
	(void)state;
	n_nodes = 2;
	address = "127.0.0.1";
	nodes_fork(0, finds_its_port_in_use);
	while (!nodes->words[0])
		(void)usleep(1000);
	nodes_fork(1, tells_words_by_name);
	assert_int_equal(nodes_wait(0), 0);
	assert_int_equal(nodes_wait(1), 0);
}

/* --- Connections that are none of a node's ----------------------------------------------------------- */

static int connect_there(void)
{
	const struct sockaddr_in at = {.sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				       .sin_port = htons(nodes->port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	while (connect(fd, (const struct sockaddr *)&at, sizeof(at)) < 0)
		assert_int_equal(errno, ECONNREFUSED);
	return fd;
}

static int has_few_descriptors(void *data, bool is_interrupted)
{
	(void)data;
	(void)is_interrupted;
	CHECK(count_entries("/proc/self/fd") < FDS_MAX);
	return 0;
}

static void is_flooded(uint32_t node)
{
	struct meet *m = open_place(node);
	struct sockaddr_storage own;

	CHECK(meet_join(m, has_few_descriptors, NULL, &own) == 0);
	CHECK(has_few_descriptors(NULL, false) == 0);
	tell(m, node, 0);
	meet_close(m);
}

static void send_there(int fd, const void *data, size_t size)
{
	assert_int_equal(send(fd, data, size, MSG_NOSIGNAL), size);
}

/* It closed the connection. */
static bool is_closed(int fd)
{
	char byte;

	return recv(fd, &byte, 1, 0) <= 0;
}

static void strangers_delay_no_node(void **state)
{
	const struct join first = {MAGIC, 0, 0, 3, 0}, beyond = {MAGIC, 0, 3, 3, 0},
			  padded = {MAGIC, 0, 1, 3, 7}, old = {MAGIC - 1, 0, 1, 3, 0};
	const struct join *bad[] = {&first, &padded, &old};
	static const char request[] = "GET / HTTP/1.1\r\nHost: there\r\n\r\n";
	int fds[N_GUESTS], fd;

	(void)state;
	n_nodes = 3;
	address = "127.0.0.1";
	nodes_fork(0, is_flooded);
	fd = connect_there();
	send_there(fd, request, sizeof(request) - 1);
	assert_true(is_closed(fd));
	(void)close(fd);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		fd = connect_there();
		send_there(fd, bad[i], sizeof(*bad[i]));
		assert_true(is_closed(fd));
		(void)close(fd);
	}
	/* Refused, and then closed. */
	fd = connect_there();
	send_there(fd, &beyond, sizeof(beyond));
	{
		struct frame f;

		assert_int_equal(recv(fd, &f, sizeof(f), MSG_WAITALL), sizeof(f));
		assert_true(is_closed(fd));
		(void)close(fd);
	}
	/* Silent ones, and some that never end their first word; the first of them make place for the last. */
	for (int i = 0; i < N_GUESTS; i++) {
		fds[i] = connect_there();
		if (i % 2)
			send_there(fds[i], &old, 5);
	}
	assert_true(is_closed(fds[0]));
	nodes_fork(1, tells_words_by_name);
	nodes_fork(2, tells_words_by_name);
	for (uint32_t i = 0; i < n_nodes; i++)
		assert_int_equal(nodes_wait(i), 0);
	for (int i = 0; i < N_GUESTS; i++)
		(void)close(fds[i]);
}

static void receives_no_word(uint32_t node)
{
	struct meet_word words[N_MAX];
	struct meet *m = join(node);

	CHECK(meet_tell(m, "x", 1, WORD_MAX, never_ends, NULL, words) == -EPIPE);
	CHECK(strstr(weightd_train_error(), "node 1 sent what is no word"));
	meet_close(m);
}

static void a_word_of_a_wrong_form_ends_the_meeting(void **state)
{
	const struct join j = {MAGIC, 0, 1, 2, 0};
	const struct frame bad[] = {{.kind = KIND_WORD, .node = 1, .size = WORD_MAX + 1},
				    {.kind = KIND_WORD, .node = 1, .size = UINT32_MAX},
				    {.kind = KIND_WORD, .node = 0, .size = 1},
				    {.kind = KIND_WORD + 1, .node = 1, .size = 1}};

	(void)state;
	n_nodes = 2;
	address = "127.0.0.1";
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int fd;

		nodes_fork(0, receives_no_word);
		fd = connect_there();
		send_there(fd, &j, sizeof(j));
		send_there(fd, &bad[i], sizeof(bad[i]));
		assert_int_equal(nodes_wait(0), 0);
		(void)close(fd);
	}
}

/* One byte at a time is enough, too. */
static void slow_bytes_arrive(void **state)
{
	const struct join j = {MAGIC, 0, 1, 2, 0};
	const struct frame f = {.kind = KIND_WORD, .node = 1, .size = size_of_word(1, 0)};
	char word[4096];
	int fd;

	(void)state;
	n_nodes = 2;
	address = "127.0.0.1";
	memset(word, 16, sizeof(word));
	assert_true(f.size <= sizeof(word));
	nodes_fork(0, tells_words_by_name);
	fd = connect_there();
	for (size_t i = 0; i < sizeof(j); i++)
		send_there(fd, (const char *)&j + i, 1);
	{
		struct frame complete[3]; /* node 1 is missing, then none is, then that */

		assert_int_equal(recv(fd, complete, sizeof(complete), MSG_WAITALL),
				 sizeof(complete));
		assert_int_equal(complete[2].kind, 1);
	}
	for (size_t i = 0; i < sizeof(f); i++)
		send_there(fd, (const char *)&f + i, 1);
	for (size_t i = 0; i < f.size; i++)
		send_there(fd, word + i, 1);
	assert_int_equal(nodes_wait(0), 0);
	(void)close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, nodes_setup, nodes_teardown)
	const struct CMUnitTest tests[] = {
		TEST(all_nodes_receive_the_words_of_all),
		TEST(nodes_meet_by_ipv6),
		TEST(machines_that_vanish_are_noticed),
		TEST(nodes_meet_by_name),
		TEST(sockets_are_free_for_bytes_between_words),
		TEST(nodes_wait_for_node_0),
		TEST(a_successor_takes_the_place_of_a_node_that_was_killed),
		TEST(two_processes_as_one_node_are_reported),
		TEST(nodes_that_do_not_belong_together_are_told),
		TEST(a_check_ends_a_wait_for_nodes),
		TEST(all_notice_a_node_that_is_lost_and_meet_again),
		TEST(a_lost_node_is_seen_without_words),
		TEST(a_child_of_a_node_that_is_killed_does_not_keep_its_connection),
		TEST(an_unknown_name_is_reported),
		TEST(a_port_that_is_in_use_may_become_free),
		TEST(strangers_delay_no_node),
		TEST(a_word_of_a_wrong_form_ends_the_meeting),
		TEST(slow_bytes_arrive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
