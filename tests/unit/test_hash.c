/* The hash is SipHash-2-4: with the key and the texts of its paper, what these have there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bpf/hash.h"

static const struct hash_key key = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
static const uint64_t words[] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};

static void test_it_is_that_of_the_paper(void **state)
{
	(void)state;
	assert_int_equal(hash_words(&key, words, 0), 0x726fdb47dd0e0e31);
	assert_int_equal(hash_words(&key, words, 1), 0x93f5f5799a932462);
	assert_int_equal(hash_words(&key, words, 2), 0x3f2acc7f57c29bdb);
}

static void test_no_two_keys_are_the_same(void **state)
{
	struct hash_key one, other;

	(void)state;
	hash_key_init(&one);
	hash_key_init(&other);
	assert_memory_not_equal(&one, &other, sizeof(one));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_is_that_of_the_paper),
		cmocka_unit_test(test_no_two_keys_are_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
