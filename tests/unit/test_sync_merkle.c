/* The Merkle tree of SHA-256: compared with Python's hashlib, on any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/merkle.h"

/*
 * The bytes are (31 i + 7 (i >> 8) + 13 (i >> 20)) mod 256. The values were made by
 *
 *	leaf = lambda b: hashlib.sha256(b"\0" + b).digest()
 *	root = hashlib.sha256(b"\1" + n.to_bytes(8, "big") + b"".join(leaves))
 */
static const struct {
	uint64_t n_bytes;
	const char *last_leaf, *root;
} known[] = {
	{0, "", "a536aa3cede6ea3c1f3e0357c3c60e0f216a8c89b853df13b29daa8f85065dfb"},
	{1, "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
	 "02f3f8576d25ea3dbec7eaf938a12b5cfa25139bd4c211037b04135a9903296d"},
	{3, "444012aec1c29113abf85026795cb33340b6783608e5e4edbe4a600d06dde7c0",
	 "303aff8c58eebb905eeecdd742535a743a6ff5ba50df87e0d2009060754bcb3b"},
	{1048575, "8853f7bc8c7d26dcecbd23a999b15ca3f6dd6cf293666b5e275f68404a184250",
	 "5fa5ff77681afde601c04b08e21c93877ec6f9b4dce8890603338a6d17bb03ac"},
	{1048576, "fd9225da9f19b17bd43b088f33c806d27b3517550423dfbb1b5310c2d33adff0",
	 "c2dd64266c708b4b0f1953db55b1f338575afc5d48ecfc97b16143947bd69209"},
	{1048577, "a1f386a0ecb061b3c46a038616212779858ba7258b2eccb818a64986c97282da",
	 "1fb5b4603a295cddc69993a08283e6f2a7a7aa0260f9a9b334a3e13913e8d025"},
	{3145728, "05aa30647dceca83527a1b6cf55252e1dc2344d86d1cdec85811558542700f75",
	 "a0c17614ee2cb798ac2907fbb7fe82504258f41db32a7fee69009dfc8f700548"},
	{20983865, "ea8ce529515fb688563dad2f594335e4f8ad2769a62d31dda97e669631adb854",
	 "809ab095aa40d31211404a421f47a0f503557999e561f75c0b9f4502a3c4297e"},
};

/* Exactly n_bytes of them, so that ASan detects a read past the end. */
static uint8_t *pattern(uint64_t n_bytes)
{
	uint8_t *p = malloc(n_bytes ? n_bytes : 1);

	assert_non_null(p);
	for (uint64_t i = 0; i < n_bytes; i++)
		p[i] = (uint8_t)(31 * i + 7 * (i >> 8) + 13 * (i >> 20));
	return p;
}

static void expect_hash(const uint8_t hash[MERKLE_HASH_SIZE], const char *wanted)
{
	char found[2 * MERKLE_HASH_SIZE + 1];

	assert_string_equal(field_hex(hash, MERKLE_HASH_SIZE, found), wanted);
}

static void a_blob_has_its_sha256(void **state)
{
	uint8_t hash[MERKLE_HASH_SIZE];

	(void)state;
	merkle_hash("", 0, hash);
	expect_hash(hash, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	merkle_hash("abc", 3, hash);
	expect_hash(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void leaves_and_root_are_those_of_hashlib(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		uint64_t n_bytes = known[i].n_bytes, n = merkle_n_leaves(n_bytes);
		cleanup(freep) uint8_t *data = pattern(n_bytes);
		cleanup(freep) uint8_t(*leaves)[MERKLE_HASH_SIZE] = calloc(n + 1, sizeof(*leaves));
		uint8_t hash[MERKLE_HASH_SIZE];

		merkle_leaves(data, n_bytes, leaves, NULL, NULL);
		merkle_root(n_bytes, (const void *)leaves, hash);
		expect_hash(hash, known[i].root);
		if (n == 0)
			continue;
		expect_hash(leaves[n - 1], known[i].last_leaf);
		merkle_leaf(data, n_bytes, n - 1, hash);
		expect_hash(hash, known[i].last_leaf);
	}
}

static void as_many_leaves_as_bytes_need(void **state)
{
	(void)state;
	assert_int_equal(merkle_n_leaves(0), 0);
	assert_int_equal(merkle_n_leaves(1), 1);
	assert_int_equal(merkle_n_leaves(MERKLE_LEAF_SIZE), 1);
	assert_int_equal(merkle_n_leaves(MERKLE_LEAF_SIZE + 1), 2);
	assert_int_equal(merkle_n_leaves(UINT64_MAX), (uint64_t)1 << 44);
}

/* Bytes cannot be mistaken for leaves, nor for bytes of another length. */
static void what_is_cut_otherwise_has_another_root(void **state)
{
	uint8_t leaf[2][MERKLE_HASH_SIZE], a[MERKLE_HASH_SIZE], b[MERKLE_HASH_SIZE];

	(void)state;
	merkle_leaf("x", 1, 0, leaf[0]);
	merkle_root(1, (const void *)leaf, a);
	merkle_root(2, (const void *)leaf, b);
	assert_memory_not_equal(a, b, MERKLE_HASH_SIZE);
	merkle_hash("x", 1, b);
	assert_memory_not_equal(leaf[0], b, MERKLE_HASH_SIZE);
	merkle_leaf(leaf, MERKLE_HASH_SIZE, 0, b);
	assert_memory_not_equal(a, b, MERKLE_HASH_SIZE);
}

#define N_EACH 100

static void count(void *userdata, uint64_t leaf)
{
	_Atomic unsigned *n = userdata;

	atomic_fetch_add(&n[leaf < N_EACH ? leaf : N_EACH], 1);
}

static void each_leaf_is_told_once(void **state)
{
	cleanup(freep) uint8_t *data = calloc(N_EACH, MERKLE_LEAF_SIZE);
	static uint8_t leaves[N_EACH][MERKLE_HASH_SIZE];
	/* The last one: calls for leaves that do not exist. */
	static _Atomic unsigned n[N_EACH + 1];

	(void)state;
	assert_non_null(data);
	merkle_leaves(data, N_EACH * MERKLE_LEAF_SIZE - 1, leaves, count, n);
	for (uint64_t i = 0; i < N_EACH; i++)
		if (n[i] != 1)
			fail_msg("leaf %" PRIu64 " was told %u times", i, n[i]);
	assert_int_equal(n[N_EACH], 0);
}

/* --- Differences ---------------------------------------------------------------------------------- */

#define N_CUT 10
#define CUT_BYTES (N_CUT * MERKLE_LEAF_SIZE - 1000) /* the last leaf is short */

/* `bad`: digits of leaves that differ; `n_others`: leaves of the other version. */
static void difference_of_cut_is(const char *bad, uint64_t n_others, const char *wanted)
{
	static const uint8_t good[2 * N_CUT][MERKLE_HASH_SIZE];
	uint8_t found[N_CUT][MERKLE_HASH_SIZE] = {0};
	cleanup(ranges_deinit) struct ranges ranges = {0};
	char text[512] = "";
	size_t n = 0;

	for (const char *c = bad; *c; c++)
		found[*c - '0'][MERKLE_HASH_SIZE - 1] = 1;
	assert_int_equal(merkle_difference(CUT_BYTES, (const void *)found, n_others, good, &ranges),
			 0);
	for (size_t i = 0; i < ranges.n; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%g+%g", i ? " " : "",
				      (double)ranges.at[i].offset / (double)MERKLE_LEAF_SIZE,
				      (double)((ranges.at[i].size + 1000) / MERKLE_LEAF_SIZE));
	if (strcmp(text, wanted) != 0)
		fail_msg("of leaves %s beside %" PRIu64 " others: '%s', not '%s'", bad, n_others,
			 text, wanted);
}

static void leaves_that_differ_are_ranges(void **state)
{
	(void)state;
	difference_of_cut_is("", N_CUT, "");
	difference_of_cut_is("0", N_CUT, "0+1");
	difference_of_cut_is("4", N_CUT, "4+1");
	difference_of_cut_is("9", N_CUT, "9+1");
	difference_of_cut_is("012", N_CUT, "0+3");
	difference_of_cut_is("02389", N_CUT, "0+1 2+2 8+2");
	difference_of_cut_is("0123456789", N_CUT, "0+10");
	difference_of_cut_is("13579", N_CUT, "1+1 3+1 5+1 7+1 9+1");
}

static void leaves_that_the_other_one_has_not_differ(void **state)
{
	(void)state;
	difference_of_cut_is("", 0, "0+10");
	difference_of_cut_is("", 7, "7+3");
	difference_of_cut_is("06", 7, "0+1 6+4");
	difference_of_cut_is("5", 7, "5+1 7+3");
	difference_of_cut_is("", 2 * N_CUT, "");
	difference_of_cut_is("3", 2 * N_CUT, "3+1");
}

/* The last hundred are three leaves apart, the others one. */
static void of_very_many_leaves_the_nearest_become_one(void **state)
{
	const uint64_t n_near = 2 * RANGES_MAX, n_far = 100, n = 2 * n_near + 4 * n_far;
	cleanup(freep) uint8_t(*a)[MERKLE_HASH_SIZE] = calloc(n, sizeof(*a));
	cleanup(freep) uint8_t(*b)[MERKLE_HASH_SIZE] = calloc(n, sizeof(*b));
	cleanup(ranges_deinit) struct ranges ranges = {0};
	uint64_t bytes = n * MERKLE_LEAF_SIZE, lost = 0;
	size_t at = 0;

	(void)state;
	assert_non_null(a);
	assert_non_null(b);
	for (uint64_t i = 1; i < n; i += i < 2 * n_near ? 2 : 4)
		a[i][0] = 1;
	assert_int_equal(merkle_difference(bytes, (const void *)a, n, (const void *)b, &ranges), 0);
	assert_int_equal(ranges.n, RANGES_MAX);
	for (uint64_t i = 0; i < n; i++) {
		while (at < ranges.n &&
		       ranges.at[at].offset + ranges.at[at].size <= i * MERKLE_LEAF_SIZE)
			at++;
		lost += a[i][0] && (at == ranges.n || ranges.at[at].offset > i * MERKLE_LEAF_SIZE);
	}
	assert_int_equal(lost, 0);
	for (size_t i = RANGES_MAX - n_far; i < RANGES_MAX; i++)
		assert_int_equal(ranges.at[i].size, MERKLE_LEAF_SIZE);
	/* Each gap that had to be closed is of one leaf. */
	assert_int_equal(ranges_total(&ranges),
			 (2 * (n_near + n_far) - RANGES_MAX) * MERKLE_LEAF_SIZE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_blob_has_its_sha256),
		cmocka_unit_test(leaves_and_root_are_those_of_hashlib),
		cmocka_unit_test(as_many_leaves_as_bytes_need),
		cmocka_unit_test(what_is_cut_otherwise_has_another_root),
		cmocka_unit_test(each_leaf_is_told_once),
		cmocka_unit_test(leaves_that_differ_are_ranges),
		cmocka_unit_test(leaves_that_the_other_one_has_not_differ),
		cmocka_unit_test(of_very_many_leaves_the_nearest_become_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
