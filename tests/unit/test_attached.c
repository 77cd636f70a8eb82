/*
 * Attachments are found until they are detached, and those without room are counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bpf/probe/attached.h"

#define SECOND_NS 1000000000ull

static void add(struct attached *a, pid_t weightd, uint64_t lease, pid_t pid, uint64_t ns)
{
	const struct attachment one = {
		.weightd = (uint32_t)weightd, .lease = lease, .pid = pid, .name = "m", .ns = ns};

	attached_add(a, &one);
}

/* The pid of a process that is no more. */
static pid_t dead(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	return pid;
}

static void count(void *context, const struct attachment *one)
{
	assert_string_equal(one->name, "m");
	++*(unsigned *)context;
}

static unsigned n_told(struct attached *a)
{
	unsigned n = 0;

	attached_each(a, count, &n);
	return n;
}

static void test_leases_are_those_of_one_weightd(void **state)
{
	struct attached a;

	(void)state;
	attached_init(&a);
	add(&a, 1, 7, getpid(), 1);
	add(&a, 1, 7 + ATTACHED_BUCKETS, getpid(), 2);
	assert_int_equal(attached_find(&a, 1, 7)->ns, 1);
	assert_int_equal(attached_find(&a, 1, 7 + ATTACHED_BUCKETS)->ns, 2);
	assert_null(attached_find(&a, 2, 7));
	assert_null(attached_find(&a, 1, 8));
	attached_remove(&a, attached_find(&a, 1, 7));
	assert_null(attached_find(&a, 1, 7));
	assert_int_equal(n_told(&a), 1);
	attached_deinit(&a);
	assert_int_equal(a.n, 0);
}

static void test_what_ended_with_its_process_is_not_told(void **state)
{
	struct attached a;

	(void)state;
	attached_init(&a);
	add(&a, getpid(), 1, getpid(), 1);
	add(&a, getpid(), 2, 0, 1); /* in another pid namespace */
	add(&a, getpid(), 3, dead(), 1);
	add(&a, dead(), 4, getpid(), 1);
	assert_int_equal(n_told(&a), 2);
	assert_int_equal(a.n, 2);
	assert_non_null(attached_find(&a, (uint32_t)getpid(), 1));
	assert_non_null(attached_find(&a, (uint32_t)getpid(), 2));
	attached_deinit(&a);
}

static void test_what_does_not_fit_is_counted(void **state)
{
	struct attached a;

	(void)state;
	attached_init(&a);
	for (uint64_t i = 0; i < ATTACHED_MAX; i++)
		add(&a, getpid(), i, getpid(), 1);
	assert_int_equal(a.n_lost, 0);
	add(&a, getpid(), ATTACHED_MAX, getpid(), 20 * SECOND_NS);
	assert_int_equal(a.n_lost, 1);
	assert_int_equal(n_told(&a), ATTACHED_MAX);
	attached_deinit(&a);
}

/* Once in ten seconds. */
static void test_what_is_over_makes_room(void **state)
{
	struct attached a;

	(void)state;
	attached_init(&a);
	for (uint64_t i = 0; i < ATTACHED_MAX; i++)
		add(&a, getpid(), i, getpid(), 1);
	add(&a, getpid(), ATTACHED_MAX, getpid(), 20 * SECOND_NS); /* this call looks */
	attached_find(&a, (uint32_t)getpid(), 5)->pid = dead();
	add(&a, getpid(), ATTACHED_MAX + 1, getpid(), 25 * SECOND_NS);
	assert_int_equal(a.n_lost, 2);
	add(&a, getpid(), ATTACHED_MAX + 2, getpid(), 31 * SECOND_NS);
	assert_int_equal(a.n_lost, 2);
	assert_non_null(attached_find(&a, (uint32_t)getpid(), ATTACHED_MAX + 2));
	assert_null(attached_find(&a, (uint32_t)getpid(), 5));
	attached_deinit(&a);
}

static void test_no_user_takes_all_the_room(void **state)
{
	const struct attachment another = {.weightd = (uint32_t)getpid(),
					   .weightd_uid = 2,
					   .name = "m"};
	struct attachment one = {.weightd = (uint32_t)getpid(), .weightd_uid = 1, .name = "m"};
	struct attached a;

	(void)state;
	attached_init(&a);
	for (one.lease = 1; one.lease <= ATTACHED_OF_USER_MAX + 1; one.lease++)
		attached_add(&a, &one);
	assert_int_equal(a.n, ATTACHED_OF_USER_MAX);
	assert_int_equal(a.n_lost, 1);
	attached_add(&a, &another);
	assert_int_equal(a.n, ATTACHED_OF_USER_MAX + 1);
	assert_int_equal(a.n_lost, 1);
	attached_deinit(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_leases_are_those_of_one_weightd),
		cmocka_unit_test(test_what_ended_with_its_process_is_not_told),
		cmocka_unit_test(test_what_does_not_fit_is_counted),
		cmocka_unit_test(test_what_is_over_makes_room),
		cmocka_unit_test(test_no_user_takes_all_the_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
