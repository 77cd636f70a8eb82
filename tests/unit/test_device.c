/* Spellings of devices: those that are read, those that are refused, and the one that is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>

#include "ipc/base/num.h"
#include "ipc/device.h"

#define UUID "8e2a4d5c-0001-4203-8405-06a7b8c9d0ef"

static const uint8_t uuid[WIRE_UUID_SIZE] = {0x8e, 0x2a, 0x4d, 0x5c, 0x00, 0x01, 0x42, 0x03,
					     0x84, 0x05, 0x06, 0xa7, 0xb8, 0xc9, 0xd0, 0xef};

static void test_knows_host_memory(void **state)
{
	struct device d = {.is_cuda = true};

	(void)state;
	assert_int_equal(device_parse("host", &d), 0);
	assert_false(d.is_cuda);
}

static void test_knows_ordinals(void **state)
{
	struct device d;

	(void)state;
	assert_int_equal(device_parse("cuda", &d), 0);
	assert_int_equal(d.ordinal, 0);
	assert_int_equal(device_parse("cuda:17", &d), 0);
	assert_true(d.is_cuda);
	assert_int_equal(d.ordinal, 17);
}

static void test_knows_uuids_of_gpus_and_of_their_parts(void **state)
{
	struct device d;

	(void)state;
	assert_int_equal(device_parse("cuda:GPU-" UUID, &d), 0);
	assert_int_equal(d.ordinal, -1);
	assert_false(d.is_mig);
	assert_memory_equal(d.uuid, uuid, sizeof(uuid));
	assert_int_equal(device_parse("cuda:MIG-8E2A4D5C-0001-4203-8405-06A7B8C9D0EF", &d), 0);
	assert_true(d.is_mig);
	assert_memory_equal(d.uuid, uuid, sizeof(uuid));
}

static void test_refuses_what_is_none(void **state)
{
	static const char *const wrong[] = {
		"",
		"hosts",
		"cuda:",
		"cuda:-1",
		"cuda:1x",
		"cuda:99999",
		"cuda 0",
		"cuda:GPU-",
		"cuda:GPU-8",
		"cuda:gpu-" UUID,
		"cuda:GPU-" UUID "0",
		"cuda:GPU-8e2a4d5c00001-4203-8405-06a7b8c9d0ef",
	};
	struct device d;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		assert_int_equal(device_parse(wrong[i], &d), -EINVAL);
}

static void test_writes_what_it_reads(void **state)
{
	char name[WIRE_DEVICE_SIZE];

	(void)state;
	device_format(uuid, false, name);
	assert_string_equal(name, "cuda:GPU-" UUID);
	device_format(uuid, true, name);
	assert_string_equal(name, "cuda:MIG-" UUID);
}

static void test_only_one_spelling_is_canonical(void **state)
{
	(void)state;
	assert_true(device_is_canonical("host"));
	assert_true(device_is_canonical("cuda:GPU-" UUID));
	assert_false(device_is_canonical("cuda:0"));
	assert_false(device_is_canonical("cuda"));
	assert_false(device_is_canonical("cuda:GPU-8E2A4D5C-0001-4203-8405-06A7B8C9D0EF"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_knows_host_memory),
		cmocka_unit_test(test_knows_ordinals),
		cmocka_unit_test(test_knows_uuids_of_gpus_and_of_their_parts),
		cmocka_unit_test(test_refuses_what_is_none),
		cmocka_unit_test(test_writes_what_it_reads),
		cmocka_unit_test(test_only_one_spelling_is_canonical),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
