/* Listings: a page ends with its time, and the list continues behind what was looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/channel.h"
#include "server/backend/backend.h"
#include "server/buffers/buffer.h"
#include "server/requests/listing.h"
#include "server/state/server.h"
#include "server/state/session.h"

#define N_BUFFERS 200
#define ALICE 4001

static struct server server;
static struct session session;
static struct buffer *buffers[N_BUFFERS];
static int client_fd;
static uint64_t clock_ns, look_ns; /* each look at the clock takes that long */

uint64_t __wrap_num_now_ns(void);
uint64_t __wrap_num_now_ns(void)
{
	clock_ns += look_ns;
	return clock_ns;
}

static void ignore(struct session *s)
{
	(void)s;
}

/* Alice may see one in twenty, and the last. */
static int set_up(void **state)
{
	int fds[2];

	(void)state;
	server = (struct server){.config.keep = 2};
	clock_ns = 1;
	list_init(&server.buffers);
	list_init(&server.removed);
	list_init(&server.untallied);
	list_init(&server.held);
	list_init(&server.groups);
	quota_init(&server.quota);
	costs_init(&server.costs);
	turns_init(&server.turns, &server.loop, ignore);
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		const struct access access = {.mode = i % 20 == 19 ? 0644 : 0600};
		char name[16];

		(void)snprintf(name, sizeof(name), "b%u", i);
		assert_int_equal(
			buffer_new(&server, name, "host", &backend_host, &access, &buffers[i]), 0);
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	client_fd = fds[0];
	session = (struct session){
		.server = &server,
		.source.fd = fds[1],
		.peer = {.uid = ALICE, .gid = ALICE},
		.cost = cost_ref(&server, ALICE),
	};
	list_init(&session.ready_link);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	for (unsigned i = 0; i < N_BUFFERS; i++)
		buffer_unref(buffers[i]);
	session.cost = cost_unref(session.cost);
	(void)fd_close(session.source.fd);
	(void)fd_close(client_fd);
	turns_deinit(&server.turns);
	costs_deinit(&server.costs);
	id_index_deinit(&server.slots);
	quota_deinit(&server.quota);
	return 0;
}

/* All names of a list, "b19 b39 ...", and how many pages it took. */
static unsigned list_names(const char *name, char *ret, size_t size)
{
	struct wire_list list = {.kind = WIRE_LIST_BUFFERS};
	unsigned n_pages = 0;

	ret[0] = '\0';
	(void)snprintf(list.name, sizeof(list.name), "%s", name);
	do {
		struct channel_packet packet;
		struct wire_list_reply page;

		listing_answer(&session, &list);
		assert_int_equal(channel_receive(client_fd, 0, &packet), 1);
		assert_int_equal(packet.size, sizeof(struct wire_header) + sizeof(page));
		memcpy(&page, packet.data + sizeof(struct wire_header), sizeof(page));
		for (unsigned i = 0; i < page.n_records; i++) {
			struct wire_buffer_record rec;
			size_t used = strlen(ret);

			memcpy(&rec, page.records + i * sizeof(rec), sizeof(rec));
			(void)snprintf(ret + used, size - used, "%s ", rec.name);
		}
		assert_true(page.next == 0 || page.next > list.after);
		list.after = page.next;
		assert_true(++n_pages <= N_BUFFERS);
	} while (list.after);
	return n_pages;
}

#define VISIBLE "b19 b39 b59 b79 b99 b119 b139 b159 b179 b199 "

static void a_list_that_is_in_time_has_one_page(void **state)
{
	char names[256];

	(void)state;
	assert_int_equal(list_names("", names, sizeof(names)), 1);
	assert_string_equal(names, VISIBLE);
}

static void a_list_that_is_late_has_more_pages_and_the_same_records(void **state)
{
	char names[256];

	(void)state;
	look_ns = 1000000000;
	assert_true(list_names("", names, sizeof(names)) >= N_BUFFERS / 20);
	look_ns = 0;
	assert_string_equal(names, VISIBLE);
}

static void a_late_page_without_a_record_does_not_end_the_list(void **state)
{
	char names[256];

	(void)state;
	look_ns = 1000000000;
	assert_true(list_names("b199", names, sizeof(names)) >= N_BUFFERS / 20);
	look_ns = 0;
	assert_string_equal(names, "b199 ");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_list_that_is_in_time_has_one_page),
		TEST(a_list_that_is_late_has_more_pages_and_the_same_records),
		TEST(a_late_page_without_a_record_does_not_end_the_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
