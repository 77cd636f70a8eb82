/* Requests in work: sessions that wait for a place go on one for each place, whatever their number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/state/cost.h"
#include "server/state/in_work.h"
#include "server/state/server.h"
#include "server/state/session.h"
#include "server/state/turns.h"

#define ALICE 4001
#define N_PLACES 8
#define N_PARKED 100

static struct server server;
static struct session sessions[N_PARKED];

static void not_served(struct session *s)
{
	(void)s;
	fail();
}

static int set_up(void **state)
{
	uint64_t limits[QUOTA_KINDS];

	(void)state;
	server = (struct server){0};
	costs_init(&server.costs);
	turns_init(&server.turns, &server.loop, not_served);
	quota_init(&server.quota);
	memcpy(limits, quota_default_limits, sizeof(limits));
	limits[QUOTA_REQUESTS] = N_PLACES;
	quota_set_limits(&server.quota, limits, NULL, 0);
	for (int i = 0; i < N_PARKED; i++) {
		sessions[i] = (struct session){.server = &server,
					       .peer.uid = ALICE,
					       .cost = cost_ref(&server, ALICE)};
		list_init(&sessions[i].ready_link);
		turns_park(&sessions[i]);
	}
	return loop_init(&server.loop);
}

static int tear_down(void **state)
{
	(void)state;
	for (int i = 0; i < N_PARKED; i++) {
		turns_remove(&sessions[i]);
		sessions[i].cost = cost_unref(sessions[i].cost);
	}
	costs_deinit(&server.costs);
	turns_deinit(&server.turns);
	quota_deinit(&server.quota);
	loop_deinit(&server.loop);
	return 0;
}

static unsigned count(const struct list *l)
{
	unsigned n = 0;

	for (const struct list *link = l->next; link != l; link = link->next)
		n++;
	return n;
}

/* Requests that end in one round end before the sessions that go on are served. */
static void one_session_goes_on_for_each_request_that_ends(void **state)
{
	struct charge charges[N_PLACES] = {0};
	const struct turn *turn = &sessions[0].cost->turn;

	(void)state;
	for (int i = 0; i < N_PLACES; i++)
		in_work_begin(&server, ALICE, &charges[i]);
	assert_false(in_work_has_room(&sessions[0]));
	for (int i = 0; i < N_PLACES; i++)
		in_work_end(&server, &charges[i]);
	assert_int_equal(count(&turn->ready), N_PLACES);
	assert_int_equal(count(&turn->parked), N_PARKED - N_PLACES);
	assert_ptr_equal(list_first(&turn->ready, struct session, ready_link), &sessions[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_session_goes_on_for_each_request_that_ends,
						set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
