/* Turns: users share the loop's time, whatever the number of their connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <cmocka.h>

#include "server/state/cost.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/turns.h"

enum {
	ALICE = 4001,
	BOB = 4002,
	CAROL = 4003,
};

#define N_SESSIONS 100
#define N_SERVED 8000

static struct server server;
static struct session sessions[2 * N_SESSIONS + 1];
static unsigned n_requests[2 * N_SESSIONS + 1]; /* served, of each session */
static unsigned n_sessions;
static uid_t served[N_SERVED]; /* the user of each session that was served */
static const struct session *order[N_SERVED];
static unsigned n_served, stop_after;
static uint64_t work_ns[2]; /* of a request of Alice, of Bob */
static struct session *arriving; /* sends a request while the next one is served */

static uint64_t clock_ns; /* moves while a session is served, and while the loop sleeps */
static uint64_t slept_ns;

uint64_t __wrap_num_now_ns(void);
uint64_t __wrap_num_now_ns(void)
{
	return clock_ns;
}

int __real_epoll_wait(int fd, struct epoll_event *events, int n, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int n, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int n, int timeout_ms)
{
	assert_int_not_equal(timeout_ms, -1); /* nothing would end it */
	clock_ns += (uint64_t)timeout_ms * 1000000;
	slept_ns += (uint64_t)timeout_ms * 1000000;
	return __real_epoll_wait(fd, events, n, 0);
}

/* Each session has another request at once, but Carol's. */
static void serve(struct session *s)
{
	if (server.loop.quit) { /* the round goes on until its time is over */
		clock_ns += (uint64_t)TURN_NS;
		turns_add(s);
		return;
	}
	order[n_served] = s;
	served[n_served++] = s->peer.uid;
	n_requests[s - sessions]++;
	clock_ns += work_ns[s->peer.uid == BOB];
	if (s->peer.uid != CAROL)
		turns_add(s);
	if (arriving) {
		turns_add(arriving);
		arriving = NULL;
	}
	if (n_served == stop_after || n_served == N_SERVED)
		loop_quit(&server.loop);
}

static int set_up(void **state)
{
	(void)state;
	server = (struct server){0};
	n_sessions = n_served = stop_after = 0;
	memset(n_requests, 0, sizeof(n_requests));
	arriving = NULL;
	work_ns[0] = work_ns[1] = 1000;
	clock_ns = 1000000000;
	slept_ns = 0;
	costs_init(&server.costs);
	turns_init(&server.turns, &server.loop, serve);
	return loop_init(&server.loop);
}

static int tear_down(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_sessions; i++) {
		turns_remove(&sessions[i]);
		sessions[i].cost = cost_unref(sessions[i].cost);
	}
	turns_deinit(&server.turns);
	costs_deinit(&server.costs);
	loop_deinit(&server.loop);
	return 0;
}

static struct session *connect_as(uid_t uid)
{
	struct session *s = &sessions[n_sessions++];

	*s = (struct session){.server = &server, .peer.uid = uid, .cost = cost_ref(&server, uid)};
	list_init(&s->ready_link);
	return s;
}

static void ask_as(uid_t uid, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		turns_add(connect_as(uid));
}

static void run(unsigned n)
{
	stop_after = n_served + n;
	server.loop.quit = false;
	assert_int_equal(loop_run(&server.loop), 0);
}

static unsigned n_served_of(uid_t uid)
{
	unsigned n = 0;

	for (unsigned i = 0; i < n_served; i++)
		n += served[i] == uid;
	return n;
}

static uint64_t time_of(uid_t uid)
{
	return cost_of(&server, uid)->loop_ns;
}

static void many_connections_have_no_more_time_than_one(void **state)
{
	(void)state;
	work_ns[0] = work_ns[1] = (uint64_t)TURN_NS / 4;
	ask_as(ALICE, N_SESSIONS);
	ask_as(BOB, 5);
	run(200);
	/* Each turn may be too long by one request, and is then owed. */
	assert_true(time_of(BOB) <= time_of(ALICE) + 2 * (uint64_t)TURN_NS);
	assert_true(time_of(ALICE) <= time_of(BOB) + 2 * (uint64_t)TURN_NS);
}

static void a_user_with_long_requests_has_no_more_time_than_one_with_short_ones(void **state)
{
	(void)state;
	work_ns[0] = 5 * (uint64_t)TURN_NS;
	work_ns[1] = (uint64_t)TURN_NS / 10;
	ask_as(ALICE, N_SESSIONS);
	ask_as(BOB, 20);
	run(300);
	assert_true(n_served_of(BOB) > 40 * n_served_of(ALICE));
	assert_true(time_of(ALICE) <= time_of(BOB) + 6 * (uint64_t)TURN_NS);
}

static void sessions_of_a_user_are_served_one_after_the_other(void **state)
{
	(void)state;
	ask_as(ALICE, 3);
	ask_as(BOB, 1);
	run(N_SERVED / 4 - 1);
	for (int i = 0; i < 3; i++)
		assert_in_range(n_requests[i], n_requests[0] - 1, n_requests[0] + 1);
}

static void a_user_that_comes_is_served_when_the_turn_is_over(void **state)
{
	unsigned at = 0;

	(void)state;
	work_ns[0] = work_ns[1] = (uint64_t)TURN_NS;
	ask_as(ALICE, N_SESSIONS);
	ask_as(BOB, N_SESSIONS);
	run(20);
	arriving = connect_as(CAROL);
	run(3);
	while (at < n_served && served[at] != CAROL)
		at++;
	assert_int_equal(at, 21); /* right behind the request in which Carol's came */
}

/* Alice connects for so long, outside of her turns. */
static void connect_for(uint64_t ns)
{
	clock_ns += ns;
	turns_charge(sessions[0].cost, clock_ns - ns, clock_ns);
}

static void a_user_that_connects_has_no_more_time_than_one_that_does_not(void **state)
{
	(void)state;
	work_ns[0] = work_ns[1] = (uint64_t)TURN_NS / 4;
	ask_as(ALICE, 5);
	ask_as(BOB, 5);
	connect_for(20 * (uint64_t)TURN_NS);
	run(200);
	assert_true(time_of(ALICE) >= 20 * (uint64_t)TURN_NS);
	assert_true(time_of(ALICE) <= time_of(BOB) + 2 * (uint64_t)TURN_NS);
}

static void connections_that_were_accepted_long_ago_are_forgotten(void **state)
{
	struct session *alice = connect_as(ALICE);

	(void)state;
	connect_for(20 * (uint64_t)TURN_NS);
	clock_ns += 20 * (uint64_t)TURN_NS;
	ask_as(BOB, 1);
	turns_add(alice);
	run(2);
	assert_int_equal(n_served_of(ALICE), 1);
}

static void a_user_alone_waits_for_no_debt(void **state)
{
	(void)state;
	work_ns[0] = 100 * (uint64_t)TURN_NS;
	ask_as(ALICE, 1);
	run(3); /* ends */
	assert_int_equal(n_served_of(ALICE), 3);
}

static void a_session_that_is_removed_is_not_served(void **state)
{
	struct session *gone = connect_as(BOB);

	(void)state;
	turns_add(gone);
	turns_remove(gone);
	ask_as(ALICE, 1);
	run(5);
	assert_int_equal(n_served_of(BOB), 0);
	turns_add(gone); /* and comes back */
	run(2);
	assert_true(n_served_of(BOB) > 0);
}

static void a_session_is_queued_once(void **state)
{
	struct session *s = connect_as(CAROL);

	(void)state;
	for (int i = 0; i < 5; i++)
		turns_add(s);
	ask_as(ALICE, 1);
	run(20);
	assert_int_equal(n_served_of(CAROL), 1);
}

/* Alice works for four bursts beside the sessions that are there. Returns the time that she rested. */
static uint64_t rest_of_a_busy_user(void)
{
	work_ns[0] = (uint64_t)TURN_NS / 2;
	ask_as(ALICE, N_SESSIONS);
	turns_join(&sessions[n_sessions - 1]);
	run(4 * (unsigned)(TURN_BURST_NS / (TURN_NS / 2)));
	return slept_ns;
}

static void test_share(unsigned share_ms)
{
	const int64_t worked_ns = 4 * TURN_BURST_NS;
	const int64_t rested_ns = (worked_ns - TURN_BURST_NS) * 1000 / share_ms - worked_ns;

	server.turns.share_ms = share_ms;
	turns_join(connect_as(BOB));
	assert_in_range(rest_of_a_busy_user(), rested_ns - 5000000, rested_ns + 5000000);
	assert_int_equal(time_of(ALICE), worked_ns);
}

static void a_user_has_its_share_of_the_time_beside_another_one(void **state)
{
	(void)state;
	test_share(TURN_SHARE_MS);
}

static void the_share_can_be_set(void **state)
{
	(void)state;
	test_share(500);
}

static void a_burst_has_no_rest(void **state)
{
	(void)state;
	turns_join(connect_as(BOB));
	work_ns[0] = (uint64_t)TURN_NS / 2;
	ask_as(ALICE, N_SESSIONS);
	turns_join(&sessions[n_sessions - 1]);
	run((unsigned)(TURN_BURST_NS / (TURN_NS / 2)));
	assert_int_equal(slept_ns, 0);
	/* So it is for each burst, when the user was away long enough. */
	while (list_empty(&server.turns.resting))
		run(1);
	clock_ns += (uint64_t)TURN_BURST_NS * 1000 / TURN_SHARE_MS;
	slept_ns = 0;
	run((unsigned)(TURN_BURST_NS / (TURN_NS / 2)));
	assert_in_range(slept_ns, 0, TURN_REST_NS);
}

static void root_does_not_rest(void **state)
{
	(void)state;
	turns_join(connect_as(BOB));
	ask_as(0, N_SESSIONS);
	turns_join(&sessions[n_sessions - 1]);
	work_ns[0] = (uint64_t)TURN_NS / 2;
	run(4 * (unsigned)(TURN_BURST_NS / (TURN_NS / 2)));
	assert_int_equal(slept_ns, 0);
}

/* Carol asks again when she has her answer. */
static void a_user_with_one_request_at_a_time_rests_too(void **state)
{
	struct session *carol = connect_as(CAROL);

	(void)state;
	turns_join(carol);
	turns_join(connect_as(BOB));
	work_ns[0] = (uint64_t)TURN_NS / 2;
	for (int64_t ns = 0; ns < 2 * TURN_BURST_NS; ns += TURN_NS / 2) {
		turns_add(carol);
		run(1);
	}
	assert_true(slept_ns > (uint64_t)TURN_BURST_NS);
}

static void sessions_that_end_go_first(void **state)
{
	(void)state;
	ask_as(CAROL, 2);
	for (int i = 2; i < 4; i++) {
		connect_as(CAROL)->hung_up = true;
		turns_add(&sessions[i]);
	}
	run(4);
	for (int i = 0; i < 4; i++)
		assert_ptr_equal(order[i], &sessions[(i + 2) % 4]);
}

static void a_user_rests_for_its_connections_too(void **state)
{
	(void)state;
	ask_as(ALICE, 1);
	turns_join(&sessions[0]);
	turns_join(connect_as(BOB));
	run(1);
	connect_for(4 * TURN_BURST_NS);
	run(1);
	run(1);
	assert_true(slept_ns > 0);
}

static void what_a_user_did_alone_is_forgotten_soon(void **state)
{
	struct session *bob = connect_as(BOB);

	(void)state;
	assert_int_equal(rest_of_a_busy_user(), 0);
	turns_join(bob);
	run(5); /* Alice is served again before she rested for as long as she had worked alone */
	assert_in_range(slept_ns, 1, TURN_BURST_NS);
}

static void one_request_however_long_has_a_short_rest(void **state)
{
	(void)state;
	turns_join(connect_as(BOB));
	(void)rest_of_a_busy_user();
	work_ns[0] = 60000000000;
	run(1);
	work_ns[0] = (uint64_t)TURN_NS / 2;
	slept_ns = 0;
	run(5);
	assert_in_range(slept_ns, 1, TURN_BURST_NS);
}

static void a_user_alone_does_not_rest(void **state)
{
	struct session *bob = connect_as(BOB);

	(void)state;
	turns_join(bob);
	turns_leave(bob);
	assert_int_equal(rest_of_a_busy_user(), 0);
}

static void a_user_is_served_while_another_one_rests(void **state)
{
	(void)state;
	work_ns[1] = 1000;
	ask_as(CAROL, 1);
	turns_join(&sessions[0]);
	(void)rest_of_a_busy_user();
	while (list_empty(&server.turns.resting))
		run(1);
	turns_add(&sessions[0]);
	n_served = 0;
	run(1);
	assert_int_equal(served[0], CAROL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(many_connections_have_no_more_time_than_one),
		TEST(a_user_with_long_requests_has_no_more_time_than_one_with_short_ones),
		TEST(sessions_of_a_user_are_served_one_after_the_other),
		TEST(a_user_that_comes_is_served_when_the_turn_is_over),
		TEST(a_user_that_connects_has_no_more_time_than_one_that_does_not),
		TEST(connections_that_were_accepted_long_ago_are_forgotten),
		TEST(a_user_alone_waits_for_no_debt),
		TEST(a_session_that_is_removed_is_not_served),
		TEST(a_session_is_queued_once),
		TEST(a_user_has_its_share_of_the_time_beside_another_one),
		TEST(the_share_can_be_set),
		TEST(a_burst_has_no_rest),
		TEST(root_does_not_rest),
		TEST(a_user_with_one_request_at_a_time_rests_too),
		TEST(sessions_that_end_go_first),
		TEST(a_user_rests_for_its_connections_too),
		TEST(what_a_user_did_alone_is_forgotten_soon),
		TEST(one_request_however_long_has_a_short_rest),
		TEST(a_user_alone_does_not_rest),
		TEST(a_user_is_served_while_another_one_rests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
