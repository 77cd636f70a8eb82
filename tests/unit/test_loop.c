/* The loop: what is dispatched, in which order, and what callbacks may take away from under it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/loop.h"

#define MS 1000000u

static struct loop loop;
static unsigned n_events; /* calls of sources and timers */

static int set_up(void **state)
{
	(void)state;
	return loop_init(&loop);
}

static int tear_down(void **state)
{
	(void)state;
	loop_deinit(&loop);
	return 0;
}

/* --- Sources -------------------------------------------------------------------------------------- */

/* A source on an eventfd that is ready from the start, and what it does when it is called. */
struct probe {
	struct source source;
	int fd;
	unsigned n_calls;
	uint32_t events; /* events of the last call */
	void (*act)(struct probe *p);
	struct probe *other;
};

static void on_ready(struct source *s, uint32_t events)
{
	struct probe *p = container_of(s, struct probe, source);

	n_events++;
	p->n_calls++;
	p->events = events;
	if (p->act)
		p->act(p);
}

static void probe_init(struct probe *p, unsigned count)
{
	*p = (struct probe){.fd = eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK)};
	assert_true(p->fd >= 0);
	assert_int_equal(loop_add(&loop, &p->source, p->fd, EPOLLIN, on_ready), 0);
}

static void probe_deinit(struct probe *p)
{
	loop_remove(&p->source);
	p->fd = fd_close(p->fd);
}

static void drain(struct probe *p)
{
	eventfd_t n;

	assert_int_equal(eventfd_read(p->fd, &n), 0);
}

static void quit(struct probe *p)
{
	(void)p;
	loop_quit(&loop);
}

static void remove_itself(struct probe *p)
{
	loop_remove(&p->source);
}

/* Ends a run once 20 ms have passed in which nothing was called. */
struct end {
	struct timer timer;
	unsigned n_events_before;
};

static void on_end(struct timer *t)
{
	struct end *end = container_of(t, struct end, timer);

	if (end->n_events_before == n_events) {
		loop_quit(&loop);
		return;
	}
	end->n_events_before = n_events;
	timer_start(&loop, t, num_now_ns() + 20 * MS);
}

/* Runs until a callback quits, or nothing more happens. */
static void run(void)
{
	struct end end = {.n_events_before = n_events - 1};

	loop.quit = false;
	timer_init(&end.timer, on_end);
	on_end(&end.timer);
	assert_int_equal(loop_run(&loop), 0);
	timer_stop(&end.timer);
}

static void a_source_is_called_with_the_events_that_are_ready(void **state)
{
	struct probe p;
	int fds[2];

	(void)state;
	probe_init(&p, 1);
	p.act = remove_itself;
	run();
	assert_int_equal(p.n_calls, 1);
	assert_int_equal(p.events, EPOLLIN);
	probe_deinit(&p);

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	p = (struct probe){.fd = fds[0], .act = remove_itself};
	assert_int_equal(loop_add(&loop, &p.source, p.fd, EPOLLIN, on_ready), 0);
	fd_close(fds[1]);
	run();
	assert_int_equal(p.n_calls, 1);
	assert_int_equal(p.events, EPOLLHUP);
	probe_deinit(&p);
}

static unsigned n_left;

static void drain_at_zero(struct probe *p)
{
	if (--n_left == 0)
		drain(p);
}

static void a_source_is_called_as_long_as_it_is_ready(void **state)
{
	struct probe p;

	(void)state;
	probe_init(&p, 1);
	p.act = drain_at_zero;
	n_left = 5;
	run();
	assert_int_equal(p.n_calls, 5);
	probe_deinit(&p);
}

static void a_source_that_is_not_ready_is_not_called(void **state)
{
	struct probe p;

	(void)state;
	probe_init(&p, 0);
	run();
	assert_int_equal(p.n_calls, 0);
	probe_deinit(&p);
}

static void more_sources_than_fit_a_round_are_all_called(void **state)
{
	static struct probe probes[3 * LOOP_BATCH + 1];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
		probe_init(&probes[i], 1);
		probes[i].act = drain;
	}
	run();
	for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
		assert_int_equal(probes[i].n_calls, 1);
		probe_deinit(&probes[i]);
	}
}

static void remove_both(struct probe *p)
{
	loop_remove(&p->source);
	loop_remove(&p->other->source);
}

static void who_is_removed_in_a_round_is_not_called_in_it(void **state)
{
	struct probe a, b;

	(void)state;
	probe_init(&a, 1);
	probe_init(&b, 1);
	a.other = &b;
	b.other = &a;
	a.act = b.act = remove_both; /* in any order */
	run();
	assert_int_equal(a.n_calls + b.n_calls, 1);
	probe_deinit(&a);
	probe_deinit(&b);
}

static void free_other(struct probe *p)
{
	if (p->other) {
		p->other->other = NULL;
		probe_deinit(p->other);
		free(p->other);
		p->other = NULL;
	}
	drain(p);
}

static void who_is_freed_in_a_round_is_not_touched(void **state)
{
	struct probe *a = malloc(sizeof(*a)), *b = malloc(sizeof(*b));

	(void)state;
	assert_non_null(a);
	assert_non_null(b);
	probe_init(a, 1);
	probe_init(b, 1);
	a->other = b;
	b->other = a;
	a->act = b->act = free_other;
	run();
	/* epoll reports them in the order in which they became ready: `a` has freed the other. */
	assert_null(a->other);
	assert_int_equal(a->n_calls, 1);
	probe_deinit(a);
	free(a);
}

static void free_itself(struct probe *p)
{
	probe_deinit(p);
	free(p);
}

static void a_source_may_free_itself(void **state)
{
	struct probe *p = malloc(sizeof(*p));

	(void)state;
	assert_non_null(p);
	probe_init(p, 1);
	p->act = free_itself;
	run();
}

static void add_other(struct probe *p)
{
	drain(p);
	assert_int_equal(loop_add(&loop, &p->other->source, p->other->fd, EPOLLIN, on_ready), 0);
}

static void a_source_added_in_a_round_is_called_in_the_next(void **state)
{
	struct probe a, b;

	(void)state;
	probe_init(&a, 1);
	probe_init(&b, 1);
	loop_remove(&b.source);
	a.other = &b;
	a.act = add_other;
	b.act = drain;
	run();
	assert_int_equal(a.n_calls, 1);
	assert_int_equal(b.n_calls, 1);
	probe_deinit(&a);
	probe_deinit(&b);
}

/* Takes the other one away and puts it back on a descriptor that is not ready. */
static void replace_other(struct probe *p)
{
	struct probe *other = p->other;

	drain(p);
	loop_remove(&other->source);
	drain(other);
	assert_int_equal(loop_add(&loop, &other->source, other->fd, EPOLLIN, on_ready), 0);
}

static void a_source_added_anew_gets_no_event_of_its_earlier_life(void **state)
{
	struct probe a, b;

	(void)state;
	probe_init(&a, 1);
	probe_init(&b, 1);
	a.other = &b;
	b.other = &a;
	a.act = b.act = replace_other;
	run();
	assert_int_equal(a.n_calls + b.n_calls, 1);
	probe_deinit(&a);
	probe_deinit(&b);
}

static void a_source_waits_for_the_events_it_was_last_told(void **state)
{
	struct probe p;

	(void)state;
	probe_init(&p, 1);
	p.act = quit;
	loop_modify(&p.source, 0);
	run();
	assert_int_equal(p.n_calls, 0);
	loop_modify(&p.source, EPOLLIN);
	run();
	assert_int_equal(p.n_calls, 1);
	assert_int_equal(p.events, EPOLLIN);
	loop_modify(&p.source, EPOLLOUT);
	run();
	assert_int_equal(p.n_calls, 2);
	assert_int_equal(p.events, EPOLLOUT);
	loop_modify(&p.source, EPOLLIN | EPOLLOUT);
	loop_modify(&p.source, EPOLLIN | EPOLLOUT);
	run();
	assert_int_equal(p.events, EPOLLIN | EPOLLOUT);
	probe_deinit(&p);
}

static void what_cannot_be_polled_is_not_added(void **state)
{
	struct source s = {0};
	struct probe p;
	int file = -1;

	(void)state;
	assert_int_equal(fd_memfd("test", 0, &file), 0);
	assert_int_equal(loop_add(&loop, &s, file, EPOLLIN, on_ready), -EPERM);
	fd_close(file);
	assert_int_equal(loop_add(&loop, &s, file, EPOLLIN, on_ready), -EBADF);
	probe_init(&p, 0);
	assert_int_equal(loop_add(&loop, &s, p.fd, EPOLLIN, on_ready), -EEXIST);
	assert_null(s.loop);
	loop_remove(&s);
	probe_deinit(&p);
	probe_deinit(&p);
}

static void a_loop_without_its_epoll_ends_with_its_error(void **state)
{
	(void)state;
	loop.epoll_fd = fd_close(loop.epoll_fd);
	assert_int_equal(loop_run(&loop), -EBADF);
}

/* --- Timers --------------------------------------------------------------------------------------- */

#define N_TIMERS 6

struct alarm {
	struct timer timer;
	uint64_t fired_ns;
	void (*act)(struct alarm *a);
	struct alarm *other;
};

static struct alarm alarms[N_TIMERS];
static char fired[64]; /* the letters of the alarms in the order in which they fired */

static void on_alarm(struct timer *t)
{
	struct alarm *a = container_of(t, struct alarm, timer);

	n_events++;
	a->fired_ns = num_now_ns();
	fired[strlen(fired)] = (char)('a' + (a - alarms));
	if (a->act)
		a->act(a);
}

static int set_up_timers(void **state)
{
	memset(fired, 0, sizeof(fired));
	for (size_t i = 0; i < N_TIMERS; i++) {
		alarms[i] = (struct alarm){0};
		timer_init(&alarms[i].timer, on_alarm);
	}
	return set_up(state);
}

static void start(size_t i, uint64_t deadline_ns)
{
	timer_start(&loop, &alarms[i].timer, deadline_ns);
}

static void timers_fire_in_the_order_of_their_deadlines(void **state)
{
	uint64_t now = num_now_ns();

	(void)state;
	start(2, now + 3 * MS);
	start(0, now + 1 * MS);
	start(4, now + 5 * MS);
	start(1, now + 2 * MS);
	start(3, now + 4 * MS);
	run();
	assert_string_equal(fired, "abcde");
}

static void timers_of_one_deadline_fire_in_the_order_they_were_started(void **state)
{
	uint64_t deadline = num_now_ns() + MS;

	(void)state;
	start(1, deadline);
	start(0, deadline);
	start(3, deadline);
	start(2, deadline - 1);
	run();
	assert_string_equal(fired, "cbad");
}

#define N_CROWD 2000

static struct timer crowd[N_CROWD];
static unsigned n_crowd_fired;
static uint64_t crowd_deadline_ns; /* of the last one that fired */

static void on_crowd(struct timer *t)
{
	assert_true(t->deadline_ns >= crowd_deadline_ns);
	crowd_deadline_ns = t->deadline_ns;
	n_crowd_fired++;
}

/* All are due. Some are stopped and some started again, wherever they are in the heap. */
static void thousands_of_timers_fire_in_order(void **state)
{
	unsigned n_stopped = 0;

	(void)state;
	srandom(1);
	for (int i = 0; i < N_CROWD; i++) {
		timer_init(&crowd[i], on_crowd);
		timer_start(&loop, &crowd[i], 1000 + (uint64_t)random() % 1000);
		if (i % 3 == 0)
			timer_start(&loop, &crowd[random() % (i + 1)],
				    1000 + (uint64_t)random() % 1000);
	}
	for (int i = 0; i < N_CROWD; i += 7) {
		n_stopped += timer_runs(&crowd[i]);
		timer_stop(&crowd[i]);
	}
	run();
	assert_int_equal(n_crowd_fired, N_CROWD - n_stopped);
	assert_null(loop.timers);
}

static void quit_too(struct alarm *a)
{
	(void)a;
	loop_quit(&loop);
}

static void a_timer_never_fires_early(void **state)
{
	struct probe busy;

	(void)state;
	alarms[0].act = quit_too;
	probe_init(&busy, 1); /* so that the loop looks at its timers all the time */
	for (uint64_t i = 0; i < 20; i++) {
		uint64_t deadline = num_now_ns() + i * 100000;

		start(0, deadline);
		run();
		assert_in_range(alarms[0].fired_ns, deadline, UINT64_MAX);
		loop_modify(&busy.source, i % 2 ? EPOLLIN : 0);
	}
	probe_deinit(&busy);
}

static void a_timer_in_the_past_fires_at_once_and_once(void **state)
{
	(void)state;
	start(0, 0);
	start(1, num_now_ns());
	run();
	assert_string_equal(fired, "ab");
}

static void a_timer_started_again_has_only_its_new_deadline(void **state)
{
	uint64_t now = num_now_ns();

	(void)state;
	start(0, now);
	start(1, now + 2 * MS);
	start(0, now + 4 * MS);
	start(1, now + 3 * MS);
	run();
	assert_string_equal(fired, "ba");
}

static void a_timer_started_once_keeps_its_deadline_while_it_runs(void **state)
{
	struct timer *t = &alarms[1].timer;

	(void)state;
	assert_false(timer_runs(t));
	timer_start_once(&loop, t, 0);
	assert_true(timer_runs(t));
	timer_start_once(&loop, t, 1000 * MS);
	start(0, num_now_ns() + MS);
	run();
	assert_string_equal(fired, "ba");
	assert_false(timer_runs(t));
}

static void a_stopped_timer_does_not_fire(void **state)
{
	(void)state;
	start(0, 0);
	timer_stop(&alarms[0].timer);
	timer_stop(&alarms[0].timer);
	timer_stop(&alarms[1].timer); /* never started */
	run();
	assert_string_equal(fired, "");
}

static void stop_other(struct alarm *a)
{
	timer_stop(&a->other->timer);
}

static void a_timer_may_stop_one_that_is_due(void **state)
{
	(void)state;
	alarms[0].act = stop_other;
	alarms[0].other = &alarms[1];
	start(0, 0);
	start(1, 0);
	start(2, 0);
	run();
	assert_string_equal(fired, "ac");
}

static void start_itself_thrice(struct alarm *a)
{
	if (strlen(fired) < 3)
		timer_start(&loop, &a->timer, num_now_ns() + MS);
}

static void a_timer_may_start_itself(void **state)
{
	(void)state;
	alarms[0].act = start_itself_thrice;
	start(0, 0);
	run();
	assert_string_equal(fired, "aaa");
}

static void start_other_now(struct alarm *a)
{
	timer_start(&loop, &a->other->timer, 0);
}

static void a_timer_may_start_another(void **state)
{
	(void)state;
	alarms[0].act = start_other_now;
	alarms[0].other = &alarms[1];
	start(0, 0);
	run();
	assert_string_equal(fired, "ab");
}

static void a_timer_centuries_away_does_not_fire(void **state)
{
	struct probe p;

	(void)state;
	start(0, UINT64_MAX);
	probe_init(&p, 1);
	p.act = quit;
	assert_int_equal(loop_run(&loop), 0);
	assert_int_equal(p.n_calls, 1);
	probe_deinit(&p);
	timer_stop(&alarms[0].timer);
	assert_string_equal(fired, "");
}

static void a_source_that_is_always_ready_does_not_hold_up_timers(void **state)
{
	struct probe p;

	(void)state;
	alarms[0].act = quit_too;
	probe_init(&p, 1);
	start(0, num_now_ns() + MS);
	run();
	assert_string_equal(fired, "a");
	assert_in_range(p.n_calls, 1, UINT32_MAX);
	probe_deinit(&p);
}

static volatile sig_atomic_t n_signals;

static void on_signal(int signal)
{
	(void)signal;
	n_signals++;
}

static void signals_do_not_end_the_loop(void **state)
{
	const struct sigaction act = {.sa_handler = on_signal};
	const struct itimerval each_ms = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000};
	const struct itimerval never = {0};
	struct sigaction old;

	(void)state;
	n_signals = 0;
	assert_int_equal(sigaction(SIGALRM, &act, &old), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &each_ms, NULL), 0);
	start(0, num_now_ns() + 10 * MS);
	run();
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
	assert_in_range(n_signals, 1, INT32_MAX);
	assert_string_equal(fired, "a");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define TIMER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_timers, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_source_is_called_with_the_events_that_are_ready),
		TEST(a_source_is_called_as_long_as_it_is_ready),
		TEST(a_source_that_is_not_ready_is_not_called),
		TEST(more_sources_than_fit_a_round_are_all_called),
		TEST(who_is_removed_in_a_round_is_not_called_in_it),
		TEST(who_is_freed_in_a_round_is_not_touched),
		TEST(a_source_may_free_itself),
		TEST(a_source_added_in_a_round_is_called_in_the_next),
		TEST(a_source_added_anew_gets_no_event_of_its_earlier_life),
		TEST(a_source_waits_for_the_events_it_was_last_told),
		TEST(what_cannot_be_polled_is_not_added),
		TEST(a_loop_without_its_epoll_ends_with_its_error),
		TIMER_TEST(timers_fire_in_the_order_of_their_deadlines),
		TIMER_TEST(timers_of_one_deadline_fire_in_the_order_they_were_started),
		TIMER_TEST(thousands_of_timers_fire_in_order),
		TIMER_TEST(a_timer_never_fires_early),
		TIMER_TEST(a_timer_in_the_past_fires_at_once_and_once),
		TIMER_TEST(a_timer_started_again_has_only_its_new_deadline),
		TIMER_TEST(a_timer_started_once_keeps_its_deadline_while_it_runs),
		TIMER_TEST(a_stopped_timer_does_not_fire),
		TIMER_TEST(a_timer_may_stop_one_that_is_due),
		TIMER_TEST(a_timer_may_start_itself),
		TIMER_TEST(a_timer_may_start_another),
		TIMER_TEST(a_timer_centuries_away_does_not_fire),
		TIMER_TEST(a_source_that_is_always_ready_does_not_hold_up_timers),
		TIMER_TEST(signals_do_not_end_the_loop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
