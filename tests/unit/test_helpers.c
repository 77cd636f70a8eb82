/*
 * Helpers: each share of a step is done once, by whichever thread comes first, and a step ends although none comes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "server/base/helpers.h"

#define N_SHARES 64
#define N_STEPS 500

static struct helpers helpers;

struct step {
	_Atomic unsigned next;
	unsigned char done[N_SHARES]; /* times; each by one thread */
};

static void work(void *arg)
{
	struct step *s = arg;
	unsigned i;

	while ((i = atomic_fetch_add(&s->next, 1)) < N_SHARES)
		s->done[i]++;
}

static void test_shares_are_done_once(void **state)
{
	unsigned char once[N_SHARES];

	(void)state;
	memset(once, 1, sizeof(once));
	helpers_init(&helpers);
	for (unsigned i = 0; i < N_STEPS; i++) {
		struct step s = {0};

		helpers_begin(&helpers, HELPERS_MAX + 1, work, &s);
		work(&s);
		helpers_end(&helpers);
		assert_memory_equal(s.done, once, sizeof(once));
	}
	helpers_deinit(&helpers);
}

/* A step in which the helper that began waits for the step, and is waited for. */
struct meeting {
	sem_t came, go;
	_Atomic bool has_left;
};

static void meet(void *arg)
{
	struct meeting *m = arg;

	(void)sem_post(&m->came);
	while (sem_wait(&m->go) < 0)
		continue;
	atomic_store(&m->has_left, true);
}

static void test_the_end_waits_for_a_helper(void **state)
{
	struct meeting m = {0};

	(void)state;
	helpers_init(&helpers);
	assert_int_equal(sem_init(&m.came, 0, 0), 0);
	assert_int_equal(sem_init(&m.go, 0, 0), 0);
	helpers_begin(&helpers, 1, meet, &m);
	if (helpers.n_threads > 0) {
		while (sem_wait(&m.came) < 0)
			continue;
		(void)sem_post(&m.go);
		helpers_end(&helpers);
		assert_true(atomic_load(&m.has_left));
	} else {
		helpers_end(&helpers); /* one processor: nobody helps */
	}
	helpers_deinit(&helpers);
	(void)sem_destroy(&m.came);
	(void)sem_destroy(&m.go);
}

static void test_none_is_wanted(void **state)
{
	struct step s = {0};

	(void)state;
	helpers_init(&helpers);
	helpers_begin(&helpers, 0, work, &s);
	helpers_end(&helpers);
	assert_int_equal(helpers.n_threads, 0);
	assert_int_equal(s.next, 0);
	helpers_deinit(&helpers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shares_are_done_once),
		cmocka_unit_test(test_the_end_waits_for_a_helper),
		cmocka_unit_test(test_none_is_wanted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
