/*
 * The crew: each share of a step is done once, by whichever thread comes first, and a step ends although none comes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "server/base/threads/crew.h"

#define N_SHARES 64
#define N_STEPS 500

static struct crew crew;

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
	crew_init(&crew);
	for (unsigned i = 0; i < N_STEPS; i++) {
		struct step s = {0};

		crew_begin(&crew, CREW_MAX + 1, work, &s);
		work(&s);
		crew_end(&crew);
		assert_memory_equal(s.done, once, sizeof(once));
	}
	crew_deinit(&crew);
}

/* A step in which a thread that began waits for the step, and is waited for. */
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

static void test_the_end_waits_for_a_thread(void **state)
{
	struct meeting m = {0};

	(void)state;
	crew_init(&crew);
	assert_int_equal(sem_init(&m.came, 0, 0), 0);
	assert_int_equal(sem_init(&m.go, 0, 0), 0);
	crew_begin(&crew, 1, meet, &m);
	if (crew.n_threads > 0) {
		while (sem_wait(&m.came) < 0)
			continue;
		(void)sem_post(&m.go);
		crew_end(&crew);
		assert_true(atomic_load(&m.has_left));
	} else {
		crew_end(&crew); /* one processor: nobody comes */
	}
	crew_deinit(&crew);
	(void)sem_destroy(&m.came);
	(void)sem_destroy(&m.go);
}

static void test_none_is_wanted(void **state)
{
	struct step s = {0};

	(void)state;
	crew_init(&crew);
	crew_begin(&crew, 0, work, &s);
	crew_end(&crew);
	assert_int_equal(crew.n_threads, 0);
	assert_int_equal(s.next, 0);
	crew_deinit(&crew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shares_are_done_once),
		cmocka_unit_test(test_the_end_waits_for_a_thread),
		cmocka_unit_test(test_none_is_wanted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
