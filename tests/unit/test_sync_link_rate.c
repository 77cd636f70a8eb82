/* Link rates: members that are too slow to wait for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "server/sync/coordinator/link_rate.h"
#include "server/sync/state/transport.h"

static uint64_t now_ns(void *userdata)
{
	(void)userdata;
	return 100 * SECOND;
}

static const struct env env = {.now_ns = now_ns};

/* The first member makes nearly no progress for a long time. */
static struct member *laggard(const struct transport *transport, struct member members[2])
{
	struct peer peers[2] = {{.up = true}, {.up = true}};
	const struct agent a = {.env = &env, .peers = peers};
	const struct broadcast t = {
		.sync = {.members = members, .n_members = 2},
		.transport = transport,
		.first = &members[0],
		.expected = 64 * MIB,
	};

	members[0] =
		(struct member){.peer = 0, .state = MEMBER_MOVING, .done = MIB, .next = &members[1]};
	members[1] = (struct member){.peer = 1, .state = MEMBER_MOVING};
	return link_rate_laggard(&a, &t);
}

static void test_in_a_chain_it_is_who_holds_up_those_behind(void **state)
{
	struct member members[2];

	(void)state;
	assert_ptr_equal(laggard(&transport_tcp, members), &members[0]);
}

static void test_in_a_ring_it_is_nobody(void **state)
{
	struct member members[2];

	(void)state;
	assert_null(laggard(&transport_nccl, members));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_a_chain_it_is_who_holds_up_those_behind),
		cmocka_unit_test(test_in_a_ring_it_is_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
