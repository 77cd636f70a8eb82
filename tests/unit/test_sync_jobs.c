/*
 * Jobs: a killed process must end before another one of the same buffer continues. Each job here is
 * this program again, which writes into every descriptor that it receives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/jobs.h"

#define PATIENCE_MS 30000

struct scene {
	char program[256];
	struct loop loop;
	struct jobs jobs;
	int pipe[2];
	struct source written;
	struct timer late;
	int n_awaited;
};

static int child(void)
{
	struct json_packet t;

	while (json_packet_receive(JSON_PACKET_FD, 0, &t) == 0) {
		for (unsigned i = 0; i < t.n_fds; i++)
			if (write(t.fds[i], "", 1) != 1)
				return 1;
		json_packet_deinit(&t);
	}
	return 0;
}

static void on_said(void *userdata, void *owner, const json_t *message, int *fds, unsigned n_fds)
{
	(void)userdata, (void)owner, (void)message, (void)fds, (void)n_fds;
	fail_msg("nobody says anything here");
}

static void on_end(void *userdata, void *owner, const char *how)
{
	(void)userdata, (void)owner;
	fail_msg("a job ended by itself: %s", how);
}

static const struct jobs_events events = {.on_said = on_said, .on_end = on_end};

static int setup(void **state)
{
	static struct scene s;
	char path[256] = "";

	assert_true(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
	(void)snprintf(s.program, sizeof(s.program), "%s", basename(path));
	assert_int_equal(loop_init(&s.loop), 0);
	jobs_init(&s.jobs, &s.loop, &events, NULL);
	assert_int_equal(pipe2(s.pipe, O_CLOEXEC), 0);
	*state = &s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	jobs_deinit(&s->jobs);
	loop_deinit(&s->loop);
	(void)close(s->pipe[0]);
	(void)close(s->pipe[1]);
	return 0;
}

static struct job *start(struct scene *s, const char *buffer)
{
	char why[WHY_SIZE];
	struct job *job;

	assert_int_equal(job_start(&s->jobs, s->program, "child", buffer, NULL, &job, why), 0);
	return job;
}

/* Makes it write. */
static void tell(struct scene *s, struct job *job)
{
	json_t *message = json_object();

	job_tell(job, message, &s->pipe[1], 1);
	json_decref(message);
}

static int n_written(const struct scene *s, int timeout_ms)
{
	struct pollfd p = {.fd = s->pipe[0], .events = POLLIN};
	char bytes[16];

	return poll(&p, 1, timeout_ms) > 0 ? (int)read(s->pipe[0], bytes, sizeof(bytes)) : 0;
}

/* Only the loop reaps processes, and it runs here on request. */
static void test_one_that_dies_holds_up_no_other_buffer(void **state)
{
	struct scene *s = *state;
	struct job *other = start(s, "other"), *of_none = start(s, NULL);

	job_end(start(s, NULL));
	job_end(start(s, "m"));
	tell(s, other);
	assert_int_equal(n_written(s, PATIENCE_MS), 1);
	tell(s, start(s, "n"));
	assert_int_equal(n_written(s, PATIENCE_MS), 1);
	tell(s, of_none);
	assert_int_equal(n_written(s, PATIENCE_MS), 1);
}

static void on_written(struct source *source, uint32_t ready)
{
	struct scene *s = container_of(source, struct scene, written);

	(void)ready;
	s->n_awaited -= n_written(s, 0);
	if (s->n_awaited <= 0)
		loop_quit(&s->loop);
}

static void on_late(struct timer *timer)
{
	fail_msg("%d were never told", container_of(timer, struct scene, late)->n_awaited);
}

/* Runs the loop until `n` have written. */
static void await(struct scene *s, int n)
{
	s->n_awaited = n;
	timer_init(&s->late, on_late);
	timer_start(&s->loop, &s->late, num_now_ns() + (uint64_t)PATIENCE_MS * 1000000);
	assert_int_equal(loop_add(&s->loop, &s->written, s->pipe[0], EPOLLIN, on_written), 0);
	assert_int_equal(loop_run(&s->loop), 0);
	assert_int_equal(s->n_awaited, 0);
	loop_remove(&s->written);
	timer_stop(&s->late);
}

static void test_whoever_works_on_the_same_buffer_waits_until_it_is_gone(void **state)
{
	struct scene *s = *state;
	struct job *before = start(s, "m"), *dying = start(s, "m"), *behind;

	tell(s, before);
	assert_int_equal(n_written(s, PATIENCE_MS), 1);
	job_end(dying);
	tell(s, before);
	behind = start(s, "m");
	tell(s, behind);
	tell(s, start(s, "other")); /* earlier messages have arrived before this one */
	assert_int_equal(n_written(s, PATIENCE_MS), 1);
	await(s, 2);
	tell(s, before);
	assert_int_equal(n_written(s, PATIENCE_MS), 1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_that_dies_holds_up_no_other_buffer, setup,
						teardown),
		cmocka_unit_test_setup_teardown(
			test_whoever_works_on_the_same_buffer_waits_until_it_is_gone, setup,
			teardown),
	};

	(void)argv;
	return argc > 1 ? child() : cmocka_run_group_tests(tests, NULL, NULL);
}
