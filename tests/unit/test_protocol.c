/*
 * The protocol between weightd and weightd-cuda: the size, the descriptors and the bounds of each
 * packet.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "server/cuda/protocol.h"

static struct allocator_request request(uint32_t op)
{
	return (struct allocator_request){.protocol = ALLOCATOR_PROTOCOL, .op = op, .serial = 7};
}

static struct allocator_reply reply(uint32_t op, int32_t error)
{
	return (struct allocator_reply){
		.protocol = ALLOCATOR_PROTOCOL, .op = op, .serial = 7, .error = error};
}

static void each_request_is_taken(void **state)
{
	(void)state;
	for (uint32_t op = ALLOCATOR_DEVICE; op < ALLOCATOR_OP_END; op++) {
		struct allocator_request q = request(op);

		assert_true(allocator_request_ok(&q, sizeof(q), 0));
		assert_false(allocator_request_ok(&q, sizeof(q), 1));
		assert_false(allocator_request_ok(&q, sizeof(q) - 1, 0));
	}
}

static void a_request_of_another_release_is_refused(void **state)
{
	struct allocator_request q = request(ALLOCATOR_FREE);

	(void)state;
	q.protocol++;
	assert_false(allocator_request_ok(&q, sizeof(q), 0));
	q = request(0);
	assert_false(allocator_request_ok(&q, sizeof(q), 0));
	q = request(ALLOCATOR_OP_END);
	assert_false(allocator_request_ok(&q, sizeof(q), 0));
}

static void memory_and_only_memory_comes_with_a_descriptor(void **state)
{
	(void)state;
	for (uint32_t op = ALLOCATOR_DEVICE; op < ALLOCATOR_OP_END; op++) {
		struct allocator_reply done = reply(op, 0), failed = reply(op, -ENOMEM);
		bool has_memory = op == ALLOCATOR_ALLOCATE || op == ALLOCATOR_HOLD;

		assert_int_equal(allocator_reply_ok(&done, sizeof(done), 1), has_memory);
		assert_int_equal(allocator_reply_ok(&done, sizeof(done), 0), !has_memory);
		assert_false(allocator_reply_ok(&done, sizeof(done), 2));
		assert_true(allocator_reply_ok(&failed, sizeof(failed), 0));
		assert_false(allocator_reply_ok(&failed, sizeof(failed), 1));
	}
}

static void a_text_without_an_end_is_refused(void **state)
{
	struct allocator_reply a = reply(ALLOCATOR_DEVICE, 0);
	const struct {
		char *text;
		size_t size;
	} texts[] = {
		{a.name, sizeof(a.name)},
		{a.why, sizeof(a.why)},
		{a.device.device, sizeof(a.device.device)},
		{a.device.name, sizeof(a.device.name)},
		{a.device.why, sizeof(a.device.why)},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		memset(texts[i].text, 'x', texts[i].size);
		assert_false(allocator_reply_ok(&a, sizeof(a), 0));
		texts[i].text[texts[i].size - 1] = '\0';
		assert_true(allocator_reply_ok(&a, sizeof(a), 0));
	}
	a.error = 1;
	assert_false(allocator_reply_ok(&a, sizeof(a), 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_request_is_taken),
		cmocka_unit_test(a_request_of_another_release_is_refused),
		cmocka_unit_test(memory_and_only_memory_comes_with_a_descriptor),
		cmocka_unit_test(a_text_without_an_end_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
