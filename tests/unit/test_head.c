/* Head pages: what a reader sees of the writer's flips, in another thread and in another process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/head.h"

#define BUFFER 42
#define MS 1000000u

/* The page as the writer maps it, and as a reader does. */
static struct head *head;
static const struct head *reader_head;

static int set_up(void **state)
{
	cleanup(fd_closep) int fd = -1;

	(void)state;
	if (fd_memfd("test-head", HEAD_SIZE, &fd) < 0)
		return -1;
	head = mmap(NULL, HEAD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	reader_head = mmap(NULL, HEAD_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (head == MAP_FAILED || reader_head == MAP_FAILED)
		return -1;
	head_init(head, BUFFER);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	return munmap(head, HEAD_SIZE) | munmap((void *)reader_head, HEAD_SIZE);
}

/* A record with fields that all follow from the version. */
static struct head_record make_record(uint64_t version)
{
	struct head_record r = {
		.version = version,
		.slot = version * 3,
		.data_size = version * 5,
		.published_ns = version * 7,
	};

	memset(r.layout_hash, (int)(version & 0xff), HASH_SIZE);
	memset(r.digest, (int)(version >> 1 & 0xff), HASH_SIZE);
	return r;
}

static void publish(uint64_t version)
{
	const struct head_record r = make_record(version);

	if (head_publish(head, &r, HEAD_READY))
		head_wake(head);
}

static void expect(const struct head *h, uint64_t version, enum head_state state)
{
	uint64_t current = head_current(h);

	assert_int_equal(head_version(current), version);
	assert_int_equal(head_state(current), state);
}

static void a_fresh_head_is_empty(void **state)
{
	(void)state;
	expect(reader_head, 0, HEAD_EMPTY);
	assert_true(head_ok(reader_head, BUFFER));
}

static void only_the_head_of_that_buffer_is_ok(void **state)
{
	(void)state;
	assert_false(head_ok(reader_head, BUFFER + 1));
	assert_false(head_ok(reader_head, 0));
	head->magic ^= 1;
	assert_false(head_ok(reader_head, BUFFER));
	head->magic ^= 1;
	head->abi++;
	assert_false(head_ok(reader_head, BUFFER));
	head->abi--;
	assert_true(head_ok(reader_head, BUFFER));
	memset(head, 0, HEAD_SIZE);
	assert_false(head_ok(reader_head, 0));
}

static void publishing_shows_the_version_and_its_record(void **state)
{
	(void)state;
	for (uint64_t v = 1; v <= 3 * HEAD_RECORDS; v++) {
		const struct head_record want = make_record(v);

		publish(v);
		expect(reader_head, v, HEAD_READY);
		assert_memory_equal(&reader_head->records[v % HEAD_RECORDS], &want, sizeof(want));
	}
}

static void the_newest_records_are_kept(void **state)
{
	const uint64_t newest = 100;

	(void)state;
	for (uint64_t v = 1; v <= newest; v++)
		publish(v);
	for (uint64_t v = newest - HEAD_RECORDS + 1; v <= newest; v++) {
		const struct head_record want = make_record(v);

		assert_memory_equal(&reader_head->records[v % HEAD_RECORDS], &want, sizeof(want));
	}
}

static void a_state_changes_without_its_version(void **state)
{
	static const enum head_state states[] = {HEAD_UPDATING, HEAD_TORN, HEAD_READY, HEAD_GONE};

	(void)state;
	publish(7);
	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		assert_int_equal(head_set(head, 7, states[i]), true);
		assert_int_equal(head_set(head, 7, states[i]), false);
		expect(reader_head, 7, states[i]);
	}
}

static void versions_of_56_bits_have_room(void **state)
{
	const uint64_t most = ((uint64_t)1 << 56) - 1;

	(void)state;
	publish(most);
	expect(reader_head, most, HEAD_READY);
	assert_true(head_set(head, most, HEAD_GONE));
	expect(reader_head, most, HEAD_GONE);
}

/* --- Waiting --------------------------------------------------------------------------------------- */

static void waiting_for_what_is_there_already_returns_it(void **state)
{
	uint64_t before = head_current(reader_head);

	(void)state;
	publish(1);
	assert_int_equal(head_wait(reader_head, before, -1), head_current(reader_head));
	assert_int_equal(head_wait(reader_head, before, 0), head_current(reader_head));
}

static void a_wait_without_a_change_ends_with_its_timeout_and_not_before(void **state)
{
	static const int timeouts[] = {0, 1, 20, HEAD_RECHECK_MS + 50};
	uint64_t seen = head_current(reader_head);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(timeouts); i++) {
		uint64_t start = num_now_ns();

		assert_int_equal(head_wait(reader_head, seen, timeouts[i]), seen);
		assert_in_range(num_now_ns() - start, (uint64_t)timeouts[i] * MS, 60000ull * MS);
	}
}

static void a_short_timeout_does_not_wait_for_the_next_look(void **state)
{
	const uint64_t due = HEAD_RECHECK_MS * MS / 2;
	uint64_t seen = head_current(reader_head), shortest = UINT64_MAX;

	(void)state;
	for (int i = 0; i < 100 && shortest > due; i++) { /* this process may get no processor */
		uint64_t start = num_now_ns(), ns;

		(void)head_wait(reader_head, seen, 1);
		ns = num_now_ns() - start;
		if (ns < shortest)
			shortest = ns;
	}
	assert_in_range(shortest, 1 * MS, due);
}

struct waiter {
	pthread_t thread;
	uint64_t seen;
	uint64_t got;
	_Atomic bool returned;
};

static void *wait_once(void *arg)
{
	struct waiter *w = arg;

	w->got = head_wait(reader_head, w->seen, -1);
	w->returned = true;
	return NULL;
}

static void start_waiter(struct waiter *w)
{
	*w = (struct waiter){.seen = head_current(reader_head)};
	assert_int_equal(pthread_create(&w->thread, NULL, wait_once, w), 0);
}

static void expect_end(struct waiter *w, uint64_t version)
{
	assert_int_equal(pthread_join(w->thread, NULL), 0);
	assert_int_equal(head_version(w->got), version);
}

static long futex(uint32_t *word, int op, int n, uint64_t n2, uint32_t *other)
{
	return syscall(SYS_futex, word, op, n, n2, other, 0);
}

/* Wakes without a change until the waiter was seen asleep this often. */
static void wake_for_nothing(int times)
{
	while (times > 0)
		if (futex((uint32_t *)&head->futex, FUTEX_WAKE, 1, 0, NULL) == 1)
			times--;
		else
			(void)sched_yield();
}

static void a_waiter_survives_wakes_for_nothing(void **state)
{
	struct waiter w;

	(void)state;
	publish(1);
	start_waiter(&w);
	wake_for_nothing(20);
	assert_false(w.returned);
	publish(2);
	expect_end(&w, 2);
}

static void a_waiter_notices_a_changed_hint_without_a_change(void **state)
{
	struct waiter w;

	(void)state;
	publish(1);
	start_waiter(&w);
	for (int i = 0; i < 20; i++) {
		wake_for_nothing(1);
		atomic_fetch_add(&head->futex, 1);
	}
	assert_false(w.returned);
	publish(2);
	expect_end(&w, 2);
}

static void a_waiter_that_was_requeued_still_finds_the_change(void **state)
{
	static uint32_t elsewhere;
	struct waiter w;

	(void)state;
	publish(1);
	start_waiter(&w);
	/* Wakes no waiter, and moves one to a word that is never woken. */
	while (futex((uint32_t *)&head->futex, FUTEX_REQUEUE, 0, 1, &elsewhere) != 1)
		(void)sched_yield();
	publish(2);
	expect_end(&w, 2);
}

static void a_waiter_that_nobody_wakes_still_finds_the_change(void **state)
{
	struct waiter w;

	(void)state;
	publish(1);
	start_waiter(&w);
	wake_for_nothing(1);
	atomic_store(&head->current, (uint64_t)2 << 8 | HEAD_READY); /* a flip without its wake */
	expect_end(&w, 2);
}

static void a_change_of_state_ends_a_wait(void **state)
{
	struct waiter w;

	(void)state;
	publish(1);
	start_waiter(&w);
	wake_for_nothing(1);
	assert_true(head_set(head, 1, HEAD_GONE));
	head_wake(head);
	expect_end(&w, 1);
	assert_int_equal(head_state(w.got), HEAD_GONE);
}

#define N_WAITERS 8

static void all_waiters_are_woken_and_not_by_looking_again(void **state)
{
	unsigned n_quick = 0;

	(void)state;
	/* A round takes longer when one of us gets no processor, and nearly always when one has to look again. */
	for (uint64_t v = 1; n_quick < 30; v++) {
		struct waiter waiters[N_WAITERS];
		uint64_t start;

		for (int i = 0; i < N_WAITERS; i++)
			start_waiter(&waiters[i]);
		wake_for_nothing(1); /* one of them sleeps by now */
		start = num_now_ns();
		publish(v);
		for (int i = 0; i < N_WAITERS; i++)
			expect_end(&waiters[i], v);
		n_quick += num_now_ns() - start < HEAD_RECHECK_MS * MS / 2;
		assert_in_range(v - n_quick, 0, 300);
	}
}

/* A child that maps the page read-only reports by its exit status that it saw the right value. */
static void a_reader_in_another_process_is_woken(void **state)
{
	uint64_t seen = head_current(reader_head);
	pid_t pid = fork();
	int status;

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0) {
		uint64_t got = head_wait(reader_head, seen, -1);

		_exit(head_version(got) == 5 && reader_head->records[5].slot == 15 ? 0 : 1);
	}
	wake_for_nothing(3);
	publish(5);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* --- Readers beside a writer ---------------------------------------------------------------------- */

#define N_READERS 2
#define N_VERSIONS 20000

struct reader {
	pthread_t thread;
	_Atomic uint64_t done_with; /* versions before it are read no more */
	uint64_t n_seen;
	uint64_t wrong_version; /* the first with the record of another version */
};

/* Reads records while they are among the newest: what the writer of this test waits for. */
static void *read_records(void *arg)
{
	struct reader *r = arg;
	uint64_t current = head_wait(reader_head, HEAD_EMPTY, -1);
	uint64_t last = 0;

	for (;;) {
		uint64_t v = head_version(current);
		struct head_record want = make_record(v);

		if (v <= last ||
		    memcmp(&reader_head->records[v % HEAD_RECORDS], &want, sizeof(want))) {
			r->wrong_version = v;
			r->done_with = UINT64_MAX;
			return NULL;
		}
		r->n_seen++;
		r->done_with = last = v;
		if (v == N_VERSIONS)
			return NULL;
		current = head_wait(reader_head, current, -1);
	}
}

static void version_and_record_belong_together_under_a_busy_writer(void **state)
{
	struct reader readers[N_READERS] = {0};

	(void)state;
	for (int i = 0; i < N_READERS; i++)
		assert_int_equal(pthread_create(&readers[i].thread, NULL, read_records, &readers[i]),
				 0);
	for (uint64_t v = 1; v <= N_VERSIONS; v++) {
		for (int i = 0; i < N_READERS; i++)
			while (v >= HEAD_RECORDS && readers[i].done_with < v - HEAD_RECORDS + 1)
				(void)sched_yield();
		publish(v);
	}
	for (int i = 0; i < N_READERS; i++) {
		assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
		if (readers[i].wrong_version)
			fail_msg("reader %d saw the record of another version with %" PRIu64
				 ", or versions out of order",
				 i, readers[i].wrong_version);
		assert_in_range(readers[i].n_seen, N_VERSIONS / HEAD_RECORDS, N_VERSIONS);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_fresh_head_is_empty),
		TEST(only_the_head_of_that_buffer_is_ok),
		TEST(publishing_shows_the_version_and_its_record),
		TEST(the_newest_records_are_kept),
		TEST(a_state_changes_without_its_version),
		TEST(versions_of_56_bits_have_room),
		TEST(waiting_for_what_is_there_already_returns_it),
		TEST(a_wait_without_a_change_ends_with_its_timeout_and_not_before),
		TEST(a_short_timeout_does_not_wait_for_the_next_look),
		TEST(a_waiter_survives_wakes_for_nothing),
		TEST(a_waiter_notices_a_changed_hint_without_a_change),
		TEST(a_waiter_that_was_requeued_still_finds_the_change),
		TEST(a_waiter_that_nobody_wakes_still_finds_the_change),
		TEST(a_change_of_state_ends_a_wait),
		TEST(all_waiters_are_woken_and_not_by_looking_again),
		TEST(a_reader_in_another_process_is_woken),
		TEST(version_and_record_belong_together_under_a_busy_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
