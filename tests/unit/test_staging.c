/* Pinned staging: what stays pinned, and for how long; and loads at once, which share it and wait in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/cuda/staging.h"

#define CONTEXT ((cu_context)1)
#define MANY 64

/* --- A driver ---------------------------------------------------------------------------------- */

static struct {
	int n_holds; /* of the context */
	int n_pinned; /* allocations */
	int n_left; /* that succeed */
} gpu;

static cu_result retain(cu_context *ret, cu_device device)
{
	assert_int_equal(device, 3);
	gpu.n_holds++;
	*ret = CONTEXT;
	return CU_OK;
}

static cu_result release(cu_device device)
{
	assert_int_equal(device, 3);
	gpu.n_holds--;
	return CU_OK;
}

static cu_result push(cu_context c)
{
	assert_ptr_equal(c, CONTEXT);
	return CU_OK;
}

static cu_result pop(cu_context *ret)
{
	*ret = CONTEXT;
	return CU_OK;
}

static cu_result exchange_mode(int *mode)
{
	(void)mode;
	return CU_OK;
}

static cu_result pin(void **ret, size_t size, unsigned flags)
{
	assert_int_equal(flags, CU_HOST_ALLOC_PORTABLE);
	if (gpu.n_left == 0)
		return CU_OUT_OF_MEMORY;
	gpu.n_left--;
	gpu.n_pinned++;
	*ret = malloc(size);
	return CU_OK;
}

static cu_result unpin(void *p)
{
	gpu.n_pinned--;
	free(p);
	return CU_OK;
}

/* Without an address on a bus it has no node. */
static cu_result attribute(int *ret, int which, cu_device device)
{
	(void)ret;
	(void)which;
	(void)device;
	return CU_NOT_SUPPORTED;
}

static cu_result name_of(cu_result r, const char **ret)
{
	assert_int_equal(r, CU_OUT_OF_MEMORY);
	*ret = "NO_MEMORY";
	return CU_OK;
}

static cu_result text_of(cu_result r, const char **ret)
{
	(void)r;
	*ret = "none is left";
	return CU_OK;
}

static const struct cuda_driver driver = {
	.primary_ctx_retain = retain,
	.primary_ctx_release = release,
	.ctx_push = push,
	.ctx_pop = pop,
	.capture_mode = exchange_mode,
	.device_attribute = attribute,
	.mem_host_alloc = pin,
	.mem_host_free = unpin,
	.error_name = name_of,
	.error_string = text_of,
};

static struct place place = {.driver = &driver, .device = 3, .primary = CONTEXT};

/* --- Loads ------------------------------------------------------------------------------------- */

/* One that waits in a thread of its own. */
struct load {
	struct staging staging;
	pthread_t thread;
	sem_t waits; /* posted at each tick */
	sem_t ended;
	_Atomic bool is_cancelled;
	bool is_slow; /* stays in its first tick until it is released */
	sem_t released;
	int r;
};

static int tick(void *userdata, struct sentence *s)
{
	struct load *l = userdata;

	(void)sem_post(&l->waits);
	if (l->is_slow) {
		(void)sem_wait(&l->released);
		l->is_slow = false;
	}
	return l->is_cancelled ? sentence_set(s, -ECANCELED, "cancelled") : 0;
}

static int refuse_to_wait(void *userdata, struct sentence *s)
{
	(void)userdata;
	return sentence_set(s, -EBUSY, "it would wait");
}

static unsigned take(struct staging *t, unsigned n)
{
	struct sentence s;

	assert_int_equal(staging_borrow(t, &place, n, refuse_to_wait, NULL, &s), 0);
	for (unsigned i = 0; i < t->n; i++)
		memset(staging_data(t, i), (int)i, STAGING_LANE_SIZE);
	return t->n;
}

static void *load_main(void *arg)
{
	struct load *l = arg;
	struct sentence s;

	l->r = staging_borrow(&l->staging, &place, MANY, tick, l, &s);
	(void)sem_post(&l->ended);
	return NULL;
}

/* Returns when it waits. */
static void begin(struct load *l, bool is_slow)
{
	*l = (struct load){.is_slow = is_slow, .r = 1};
	assert_int_equal(sem_init(&l->released, 0, 0), 0);
	assert_int_equal(sem_init(&l->waits, 0, 0), 0);
	assert_int_equal(sem_init(&l->ended, 0, 0), 0);
	assert_int_equal(pthread_create(&l->thread, NULL, load_main, l), 0);
	(void)sem_wait(&l->waits);
}

static int end(struct load *l)
{
	(void)sem_wait(&l->ended);
	assert_int_equal(pthread_join(l->thread, NULL), 0);
	return l->r;
}

/* It has waited once more since it was called. */
static void still_waits(struct load *l)
{
	while (sem_trywait(&l->waits) == 0)
		;
	(void)sem_wait(&l->waits);
	assert_int_equal(sem_trywait(&l->ended), -1);
}

static int set_up(void **state)
{
	(void)state;
	memset(&gpu, 0, sizeof(gpu));
	gpu.n_left = MANY;
	place.owner = getpid();
	staging_enter();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	staging_leave(&place);
	assert_int_equal(gpu.n_pinned, 0);
	assert_int_equal(gpu.n_holds, 0);
	return 0;
}

/* --- Tests ------------------------------------------------------------------------------------- */

static void test_the_next_load_has_what_the_last_one_has_pinned(void **state)
{
	struct staging t;
	char *first;

	(void)state;
	assert_int_equal(take(&t, 3), 3);
	first = staging_data(&t, 0);
	staging_return(&t);
	staging_return(&t); /* it has none any more */
	assert_int_equal(gpu.n_pinned, 3);
	assert_int_equal(take(&t, 2), 2);
	assert_ptr_equal(staging_data(&t, 0), first);
	staging_return(&t);
	assert_int_equal(take(&t, 5), 5);
	staging_return(&t);
	assert_int_equal(gpu.n_pinned, 5);
	assert_int_equal(gpu.n_left, MANY - 5);
	assert_int_equal(gpu.n_holds, 1);
}

static void test_it_is_freed_with_the_last_memory_that_is_mapped(void **state)
{
	struct staging t;

	(void)state;
	staging_enter();
	assert_int_equal(take(&t, 2), 2);
	staging_return(&t);
	staging_leave(&place);
	assert_int_equal(gpu.n_pinned, 2);
	staging_leave(&place);
	assert_int_equal(gpu.n_pinned, 0);
	assert_int_equal(gpu.n_holds, 0);
	staging_enter();
	assert_int_equal(take(&t, 1), 1);
	staging_return(&t);
}

static void test_a_forked_child_frees_nothing(void **state)
{
	struct staging t;
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(take(&t, 1), 1);
	staging_return(&t);
	child = fork();
	if (child == 0) {
		staging_leave(&place);
		_exit(gpu.n_pinned == 1 && gpu.n_holds == 1 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void test_what_cannot_be_pinned_is_named_and_leaves_the_rest_free(void **state)
{
	struct staging t;
	struct sentence s;

	(void)state;
	gpu.n_left = 2;
	assert_int_equal(staging_borrow(&t, &place, 5, refuse_to_wait, NULL, &s), -ENOMEM);
	assert_string_equal(
		s.text,
		"20 MiB of host memory to copy from cannot be pinned (the driver: NO_MEMORY: none is "
		"left); fewer threads need less");
	assert_int_equal(t.n, 0);
	assert_int_equal(take(&t, 2), 2);
	staging_return(&t);
	gpu.n_left = MANY;
	assert_int_equal(take(&t, MANY), STAGING_LANES_MAX / 2);
	staging_return(&t);
}

static void test_loads_at_once_share_the_lanes_and_wait_in_turn(void **state)
{
	static const unsigned shares[] = {16, 8, 4, 2, 1, 1};
	struct staging t[6];
	struct load gives_up, second, third;

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(take(&t[i], MANY), shares[i]);
	assert_int_equal(gpu.n_pinned, STAGING_LANES_MAX);
	begin(&gives_up, false);
	begin(&second, true);
	begin(&third, false);

	gives_up.is_cancelled = true;
	assert_int_equal(end(&gives_up), -ECANCELED);
	assert_int_equal(gives_up.staging.n, 0);
	staging_return(&t[5]);
	still_waits(&third);
	still_waits(&third); /* and has seen the lane, which is not its turn to take */
	(void)sem_post(&second.released);
	assert_int_equal(end(&second), 0);
	assert_int_equal(second.staging.n, 1);
	still_waits(&third);
	staging_return(&t[0]);
	assert_int_equal(end(&third), 0);
	assert_int_equal(third.staging.n, 8);
	assert_int_equal(gpu.n_pinned, STAGING_LANES_MAX);
	assert_int_equal(gpu.n_left, MANY - STAGING_LANES_MAX);

	staging_return(&second.staging);
	staging_return(&third.staging);
	for (unsigned i = 1; i < 5; i++)
		staging_return(&t[i]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(the_next_load_has_what_the_last_one_has_pinned),
		TEST(it_is_freed_with_the_last_memory_that_is_mapped),
		TEST(a_forked_child_frees_nothing),
		TEST(what_cannot_be_pinned_is_named_and_leaves_the_rest_free),
		TEST(loads_at_once_share_the_lanes_and_wait_in_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
