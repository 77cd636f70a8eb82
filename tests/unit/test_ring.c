/*
 * Rings: how much is taken at once from one that is filled without an end. The test has a libbpf of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bpf/libbpf.h>
#include <stdbool.h>

#include "bpf/base/ring.h"

#define SIZE 4096u
#define RECORD 20u /* 32 in the ring */

struct ring_buffer {
	ring_buffer_sample_fn take;
	void *context;
	size_t n_there; /* SIZE_MAX: more and more */
};

static struct ring_buffer buffer;
static struct ring ring;
static size_t n_taken;

__u32 bpf_map__max_entries(const struct bpf_map *map)
{
	(void)map;
	return SIZE;
}

int bpf_map__fd(const struct bpf_map *map)
{
	(void)map;
	return -1;
}

struct ring_buffer *ring_buffer__new(int map_fd, ring_buffer_sample_fn take, void *context,
				     const struct ring_buffer_opts *options)
{
	(void)map_fd;
	(void)options;
	buffer.take = take;
	buffer.context = context;
	return &buffer;
}

void ring_buffer__free(struct ring_buffer *b)
{
	(void)b;
}

int ring_buffer__epoll_fd(const struct ring_buffer *b)
{
	(void)b;
	return -1;
}

int ring_buffer__consume(struct ring_buffer *b)
{
	char record[RECORD] = {};
	int r;

	while (b->n_there > 0) {
		if (b->n_there != SIZE_MAX)
			b->n_there--;
		r = b->take(b->context, record, sizeof(record));
		if (r < 0)
			return r;
	}
	return 0;
}

static void take(void *context, const void *data, size_t size)
{
	(void)context;
	(void)data;
	assert_int_equal(size, RECORD);
	n_taken++;
}

static int set_up(void **state)
{
	(void)state;
	n_taken = 0;
	return ring_open(&ring, NULL, take, NULL);
}

static void test_a_turn_is_bounded(void **state)
{
	(void)state;
	buffer.n_there = SIZE_MAX;
	ring_take(&ring);
	assert_int_equal(n_taken, RING_TURN);
	ring_take(&ring);
	assert_int_equal(n_taken, 2 * RING_TURN);
}

static void test_what_is_there_is_taken_once(void **state)
{
	(void)state;
	buffer.n_there = RING_TURN + 1;
	ring_take(&ring);
	ring_take(&ring);
	assert_int_equal(n_taken, RING_TURN + 1);
	ring_take(&ring);
	assert_int_equal(n_taken, RING_TURN + 1);
}

static void test_all_is_what_fills_it(void **state)
{
	(void)state;
	buffer.n_there = SIZE / 32;
	ring_take_all(&ring);
	assert_int_equal(n_taken, SIZE / 32);
	buffer.n_there = SIZE_MAX;
	ring_take_all(&ring);
	assert_int_equal(n_taken, 2 * (SIZE / 32));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_turn_is_bounded, set_up),
		cmocka_unit_test_setup(test_what_is_there_is_taken_once, set_up),
		cmocka_unit_test_setup(test_all_is_what_fills_it, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
