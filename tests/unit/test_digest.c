/* Digests: XXH3-128 is ABI, so its values are told here by other means than the code's own. */
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
#include "ipc/hash_isa.h"

#define LEAF DIGEST_LEAF_SIZE

static void hash_is_xxh3_in_canonical_form(void **state)
{
	/* xxhsum -H2 of the same bytes. */
	static const uint8_t of_nothing[HASH_SIZE] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47,
						      0x98, 0xd8, 0x60, 0x01, 0xc3, 0x24,
						      0x46, 0x8d, 0x49, 0x7f};
	static const uint8_t of_abc[HASH_SIZE] = {0x06, 0xb0, 0x5a, 0xb6, 0x73, 0x3a, 0x61, 0x85,
						  0x78, 0xaf, 0x5f, 0x94, 0x89, 0x2f, 0x39, 0x50};
	uint8_t hash[HASH_SIZE];

	(void)state;
	hash128("", 0, hash);
	assert_memory_equal(hash, of_nothing, HASH_SIZE);
	hash128("abc", 3, hash);
	assert_memory_equal(hash, of_abc, HASH_SIZE);
}

static void each_instruction_set_has_the_same_hash(void **state)
{
	enum {
		SIZE = LEAF + 64
	};
	cleanup(freep) uint8_t *bytes = malloc(SIZE);
	static const size_t sizes[] = {0, 1, 240, 241, 1023, 1024, 1025, 4097, LEAF - 1, LEAF};
	uint32_t random = 1;

	(void)state;
	assert_non_null(bytes);
	for (size_t i = 0; i < SIZE; i++) {
		random = random * 1664525 + 1013904223;
		bytes[i] = (uint8_t)(random >> 24);
	}
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (size_t shift = 0; shift < 64; shift += 21) {
			uint8_t portable[HASH_SIZE], chosen[HASH_SIZE];

			hash128_portable(bytes + shift, sizes[i], portable);
			hash128(bytes + shift, sizes[i], chosen);
			assert_memory_equal(chosen, portable, HASH_SIZE);
#ifdef __x86_64__
			if (!__builtin_cpu_supports("avx2"))
				continue;
			hash128_avx2(bytes + shift, sizes[i], chosen);
			assert_memory_equal(chosen, portable, HASH_SIZE);
#endif
		}
}

static void names_hash_to_64_bits_of_xxh3(void **state)
{
	(void)state;
	assert_int_equal(hash64("", 0), 0x2d06800538d394c2);
	assert_int_equal(hash64("abc", 3), 0x78af5f94892f3950);
}

static void a_range_has_a_leaf_for_each_mebibyte_begun(void **state)
{
	(void)state;
	assert_int_equal(digest_n_leaves(0), 0);
	assert_int_equal(digest_n_leaves(1), 1);
	assert_int_equal(digest_n_leaves(LEAF), 1);
	assert_int_equal(digest_n_leaves(LEAF + 1), 2);
	assert_int_equal(digest_n_leaves(UINT64_MAX), (uint64_t)1 << 44);
}

static void leaves_stand_on_the_page_behind_the_data(void **state)
{
	static const struct {
		uint64_t data, leaves, slot;
	} sizes[] = {
		{0, 0, 4096},
		{1, 4096, 8192},
		{4096, 4096, 8192},
		{4097, 8192, 12288},
		{LEAF, LEAF, LEAF + 4096},
		{256 * LEAF, 256 * LEAF, 256 * LEAF + 4096},
		{256 * LEAF + 1, 256 * LEAF + 4096, 256 * LEAF + 3 * 4096},
		{DIGEST_DATA_MAX, DIGEST_DATA_MAX, DIGEST_DATA_MAX + 16 * GIB},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		assert_int_equal(digest_leaves_offset(sizes[i].data), sizes[i].leaves);
		assert_int_equal(digest_slot_size(sizes[i].data), sizes[i].slot);
	}
}

static void data_past_the_limit_is_our_own_mistake(void **state)
{
	(void)state;
	assert_true(digest_slot_size(DIGEST_DATA_MAX) > DIGEST_DATA_MAX);
	assert_true(DIGEST_DATA_MAX + DIGEST_DATA_MAX / LEAF * HASH_SIZE + 4096 <
		    (uint64_t)INT64_MAX);
}

/* Exactly `size` bytes, so that ASan sees a read past them. */
static uint8_t *make_data(size_t size)
{
	uint8_t *data = malloc(size);

	assert_non_null(data);
	for (size_t i = 0; i < size; i++)
		data[i] = (uint8_t)(i * 2654435761u >> 13);
	return data;
}

static void each_leaf_covers_its_mebibyte_and_the_last_what_is_left(void **state)
{
	const size_t size = 2 * LEAF + 5;
	cleanup(freep) uint8_t *data = make_data(size);

	(void)state;
	for (uint64_t i = 0; i < 3; i++) {
		uint8_t want[HASH_SIZE], got[HASH_SIZE];

		hash128(data + i * LEAF, i < 2 ? LEAF : 5, want);
		digest_leaf(data, size, i, got);
		assert_memory_equal(got, want, HASH_SIZE);
	}
}

static void digest(const uint8_t *data, size_t size, uint8_t ret[HASH_SIZE])
{
	uint8_t leaves[3][HASH_SIZE];
	uint64_t n = digest_n_leaves(size);

	assert_in_range(n, 1, 3);
	for (uint64_t i = 0; i < n; i++)
		digest_leaf(data, size, i, leaves[i]);
	digest_root(leaves, n, ret);
}

static void any_changed_bit_and_a_changed_size_change_the_root(void **state)
{
	const size_t size = 2 * LEAF + 5;
	cleanup(freep) uint8_t *data = make_data(size);
	const size_t places[] = {0, LEAF - 1, LEAF, 2 * LEAF - 1, 2 * LEAF, size - 1};
	uint8_t root[HASH_SIZE], other[HASH_SIZE];

	(void)state;
	digest(data, size, root);
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		data[places[i]] ^= 1;
		digest(data, size, other);
		data[places[i]] ^= 1;
		assert_memory_not_equal(other, root, HASH_SIZE);
	}
	digest(data, size - 1, other);
	assert_memory_not_equal(other, root, HASH_SIZE);
	digest(data, size, other);
	assert_memory_equal(other, root, HASH_SIZE);
}

static void leaves_that_change_places_change_the_root(void **state)
{
	uint8_t leaves[2][HASH_SIZE] = {{1}, {2}}, swapped[2][HASH_SIZE] = {{2}, {1}};
	uint8_t root[HASH_SIZE], other[HASH_SIZE];

	(void)state;
	digest_root(leaves, 2, root);
	digest_root(swapped, 2, other);
	assert_memory_not_equal(other, root, HASH_SIZE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hash_is_xxh3_in_canonical_form),
		cmocka_unit_test(each_instruction_set_has_the_same_hash),
		cmocka_unit_test(names_hash_to_64_bits_of_xxh3),
		cmocka_unit_test(a_range_has_a_leaf_for_each_mebibyte_begun),
		cmocka_unit_test(leaves_stand_on_the_page_behind_the_data),
		cmocka_unit_test(data_past_the_limit_is_our_own_mistake),
		cmocka_unit_test(each_leaf_covers_its_mebibyte_and_the_last_what_is_left),
		cmocka_unit_test(any_changed_bit_and_a_changed_size_change_the_root),
		cmocka_unit_test(leaves_that_change_places_change_the_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
