/* Descriptors of clients: those of one packet are closed together, whatever their number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "ipc/base/num.h"
#include "server/requests/client_fds.h"
#include "server/state/server.h"

#define ALICE 4001
#define N_FDS 40

static struct server server;
static struct client_fds client_fds;
static struct chore look;

static int set_up(void **state)
{
	(void)state;
	server = (struct server){.client_fds = &client_fds};
	list_init(&server.sessions);
	costs_init(&server.costs);
	quota_init(&server.quota);
	assert_int_equal(loop_init(&server.loop), 0);
	assert_int_equal(worker_init(&server.freer, &server.loop), 0);
	return client_fds_init(&client_fds, &server);
}

static int tear_down(void **state)
{
	(void)state;
	worker_deinit(&server.freer);
	assert_true(client_fds_deinit(&client_fds));
	loop_deinit(&server.loop);
	quota_deinit(&server.quota);
	costs_deinit(&server.costs);
	return 0;
}

static void quit_when_closed(struct chore *chore)
{
	if (quota_used(&server.quota, ALICE, QUOTA_CLOSING) == 0)
		loop_quit(&server.loop);
	else
		chore_start(&server.loop, chore);
}

static void descriptors_that_came_together_are_closed_by_one_job(void **state)
{
	int fds[N_FDS], copy[N_FDS];

	(void)state;
	for (int i = 0; i < N_FDS; i++) {
		copy[i] = fds[i] = i % 2 ? memfd_create("sent", MFD_CLOEXEC)
					 : open("/dev/null", O_RDONLY | O_CLOEXEC);
		assert_true(fds[i] >= 0);
	}
	client_fds_close(&client_fds, ALICE, fds, N_FDS);
	assert_int_equal(quota_used(&server.quota, ALICE, QUOTA_CLOSING), N_FDS);
	assert_int_equal(server.freer.n_jobs,
			 1); /* of memfds; the others have a thread of the user */
	chore_init(&look, quit_when_closed);
	chore_start(&server.loop, &look);
	assert_int_equal(loop_run(&server.loop), 0);
	for (int i = 0; i < N_FDS; i++) {
		assert_int_equal(fcntl(copy[i], F_GETFD), -1);
		assert_int_equal(errno, EBADF);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(descriptors_that_came_together_are_closed_by_one_job,
						set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
