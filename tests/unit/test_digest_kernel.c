/* The kernel that digests leaves on a GPU, run on the host: what it computes is what the host computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "tests/unit/thread_block.h"

void weightd_digest(const unsigned char *data, unsigned long long data_size,
		    unsigned long long first_leaf, unsigned long long n_leaves,
		    unsigned long long *out);

#include "libclient/cuda/digest.cu"

#define LEAVES_MAX 4

/* The arguments of the launch that runs. */
static struct {
	const uint8_t *data;
	uint64_t size, first, n;
	u64 out[LEAVES_MAX][2];
} launch;

static void run_thread(void)
{
	weightd_digest(launch.data, launch.size, launch.first, launch.n, launch.out[0]);
}

/* As digest_leaf(), of several. */
static void digest_leaves(const uint8_t *data, uint64_t size, uint64_t first, uint64_t n,
			  uint8_t (*ret)[HASH_SIZE])
{
	assert_in_range(n, 1, LEAVES_MAX);
	launch.data = data;
	launch.size = size;
	launch.first = first;
	launch.n = n;
	memset(launch.out, 0xee, sizeof(launch.out));
	thread_block_launch(run_thread, (unsigned)n, THREADS);
	memcpy(ret, launch.out, n * HASH_SIZE);
}

/* Exactly `size` bytes, so that ASan sees a read past them. */
static uint8_t *make_data(size_t size)
{
	uint8_t *data = malloc(size);

	assert_non_null(data);
	for (size_t i = 0; i < size; i++)
		data[i] = (uint8_t)(rand() >> 7);
	return data;
}

static void check(size_t size)
{
	cleanup(freep) uint8_t *data = make_data(size);
	uint8_t want[LEAVES_MAX][HASH_SIZE], got[LEAVES_MAX][HASH_SIZE];
	uint64_t n = digest_n_leaves(size);

	for (uint64_t i = 0; i < n; i++)
		digest_leaf(data, size, i, want[i]);
	digest_leaves(data, size, 0, n, got);
	if (memcmp(got, want, n * HASH_SIZE))
		print_error("of %zu bytes:\n", size);
	assert_memory_equal(got, want, n * HASH_SIZE);
}

static void each_size_up_to_two_kibibytes_is_hashed_as_on_the_host(void **state)
{
	(void)state;
	for (size_t size = 1; size <= 2048; size++)
		check(size);
}

/* Sizes around the ends of one turn of 64 KiB and of a leaf. */
static void sizes_around_a_turn_and_a_leaf_are_hashed_as_on_the_host(void **state)
{
	static const size_t sizes[] = {64 << 10, 128 << 10, 960 << 10, 1 << 20};
	static const int around[] = {-1025, -65, -64, -63, -1, 0, 1, 63, 64, 65, 240, 241, 1025};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (size_t k = 0; k < ARRAY_LEN(around); k++)
			check(sizes[i] + (size_t)around[k]);
}

static void random_sizes_are_hashed_as_on_the_host(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++)
		check(1 + (size_t)rand() % (LEAVES_MAX * DIGEST_LEAF_SIZE));
}

static void leaves_in_the_middle_are_those_that_were_asked_for(void **state)
{
	const size_t size = 3 * DIGEST_LEAF_SIZE + 5;
	cleanup(freep) uint8_t *data = make_data(size);
	uint8_t all[4][HASH_SIZE], middle[2][HASH_SIZE];

	(void)state;
	digest_leaves(data, size, 0, 4, all);
	digest_leaves(data, size, 1, 2, middle);
	assert_memory_equal(middle, all + 1, sizeof(middle));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_size_up_to_two_kibibytes_is_hashed_as_on_the_host),
		cmocka_unit_test(sizes_around_a_turn_and_a_leaf_are_hashed_as_on_the_host),
		cmocka_unit_test(random_sizes_are_hashed_as_on_the_host),
		cmocka_unit_test(leaves_in_the_middle_are_those_that_were_asked_for),
	};

	srand(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
