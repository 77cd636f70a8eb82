/*
 * The stand-in for libcuda: memory, as strict as the real driver is
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/cuda/cuda_driver.h"

#define MIB ((size_t)1 << 20)
#define SIZE (4 * MIB)

static const struct cuda_driver *cuda;
static const struct cu_allocation shareable = {
	.type = CU_ALLOCATION_PINNED,
	.handle_types = CU_HANDLE_POSIX_FD,
	.location = {CU_LOCATION_DEVICE, 0},
};

/* Both sides, by name. */
#define assert_result(call, wanted)                                                                \
	do {                                                                                       \
		cu_result got_ = (call);                                                           \
		char why_[CUDA_WHY_SIZE];                                                          \
                                                                                                   \
		cuda_driver_explain(cuda, got_, why_);                                             \
		if (got_ != (wanted))                                                              \
			fail_msg(#call ": %d (%s), not %d", got_, why_, (wanted));                 \
	} while (0)

#define assert_done(call) assert_result(call, CU_OK)

static int set_up(void **state)
{
	cu_context c;

	(void)state;
	assert_done(cuda->primary_ctx_retain(&c, 0));
	assert_done(cuda->ctx_push(c));
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	assert_done(cuda->ctx_pop(NULL));
	assert_done(cuda->primary_ctx_release(0));
	return 0;
}

static cu_handle create(size_t size)
{
	cu_handle h = 0;

	assert_done(cuda->mem_create(&h, size, &shareable, 0));
	return h;
}

/* Mapped and accessible; the mapping alone holds the memory. */
static cu_ptr map(cu_handle h, size_t size, int access)
{
	struct cu_access a = {{CU_LOCATION_DEVICE, 0}, access};
	cu_ptr p = 0;

	assert_done(cuda->mem_reserve(&p, size, 0, 0, 0));
	assert_done(cuda->mem_map(p, size, 0, h, 0));
	assert_done(cuda->mem_set_access(p, size, &a, 1));
	assert_done(cuda->mem_release(h));
	return p;
}

static void unmap(cu_ptr p, size_t size)
{
	assert_done(cuda->mem_unmap(p, size));
	assert_done(cuda->mem_unreserve(p, size));
}

static size_t free_memory(void)
{
	size_t free = 0, total = 0;

	assert_done(cuda->mem_info(&free, &total));
	return free;
}

static void test_bytes_written_are_read_back(void **state)
{
	cu_ptr p = map(create(SIZE), SIZE, CU_ACCESS_READWRITE);
	char back[8] = "";

	(void)state;
	assert_done(cuda->memcpy_to_device(p + 5, "weights", 8));
	assert_done(cuda->memcpy_to_host(back, p + 5, 8));
	assert_string_equal(back, "weights");
	assert_done(cuda->memset8(p, 7, SIZE));
	assert_done(cuda->memcpy_to_host(back, p + SIZE - 8, 8));
	assert_int_equal(back[7], 7);
	unmap(p, SIZE);
}

static void test_fresh_memory_is_not_zero(void **state)
{
	cu_ptr p = map(create(SIZE), SIZE, CU_ACCESS_READ);
	uint8_t back = 0;

	(void)state;
	assert_done(cuda->memcpy_to_host(&back, p + SIZE - 1, 1));
	assert_int_not_equal(back, 0);
	unmap(p, SIZE);
}

static void test_without_access_nothing_is_copied(void **state)
{
	struct cu_access read = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READ};
	cu_handle h = create(SIZE);
	uint8_t byte = 1;
	cu_ptr p = 0;

	(void)state;
	assert_done(cuda->mem_reserve(&p, SIZE, 0, 0, 0));
	assert_result(cuda->memcpy_to_host(&byte, p, 1), CU_INVALID_VALUE);
	assert_done(cuda->mem_map(p, SIZE, 0, h, 0));
	assert_result(cuda->memcpy_to_host(&byte, p, 1), CU_INVALID_VALUE);
	assert_done(cuda->mem_set_access(p, SIZE, &read, 1));
	assert_done(cuda->memcpy_to_host(&byte, p, 1));
	assert_result(cuda->memcpy_to_device(p, &byte, 1), CU_INVALID_VALUE);
	assert_done(cuda->mem_release(h));
	unmap(p, SIZE);
}

static void test_a_copy_past_the_end_is_refused(void **state)
{
	cu_ptr p = map(create(SIZE), SIZE, CU_ACCESS_READWRITE);
	uint8_t bytes[2];

	(void)state;
	assert_result(cuda->memcpy_to_host(bytes, p + SIZE - 1, 2), CU_INVALID_VALUE);
	unmap(p, SIZE);
}

static void test_sizes_and_addresses_are_multiples_of_the_granularity(void **state)
{
	cu_handle h;
	cu_ptr p;

	(void)state;
	assert_result(cuda->mem_create(&h, SIZE + 4096, &shareable, 0), CU_INVALID_VALUE);
	assert_result(cuda->mem_reserve(&p, SIZE + 4096, 0, 0, 0), CU_INVALID_VALUE);
	assert_done(cuda->mem_reserve(&p, SIZE, 64 * MIB, 0, 0));
	assert_int_equal(p % (64 * MIB), 0);
	assert_done(cuda->mem_unreserve(p, SIZE));
}

static void test_mapping_twice_or_in_part_unmapping_is_refused(void **state)
{
	cu_handle h = create(SIZE);
	cu_ptr p = 0;

	(void)state;
	assert_done(cuda->mem_reserve(&p, SIZE, 0, 0, 0));
	assert_done(cuda->mem_map(p, SIZE, 0, h, 0));
	assert_result(cuda->mem_map(p, SIZE, 0, h, 0), CU_INVALID_VALUE);
	assert_result(cuda->mem_unmap(p, SIZE / 2), CU_INVALID_VALUE);
	assert_result(cuda->mem_unreserve(p, SIZE), CU_INVALID_VALUE);
	assert_done(cuda->mem_unmap(p, SIZE));
	assert_result(cuda->mem_unmap(p, SIZE), CU_INVALID_VALUE);
	assert_result(cuda->mem_unreserve(p, SIZE / 2), CU_INVALID_VALUE);
	assert_done(cuda->mem_unreserve(p, SIZE));
	assert_done(cuda->mem_release(h));
	assert_result(cuda->mem_release(h), CU_INVALID_VALUE);
}

static void test_memory_lives_until_the_last_of_handle_mapping_and_descriptor(void **state)
{
	size_t before = free_memory();
	cu_handle h = create(SIZE);
	int fd = -1;
	cu_ptr p;

	(void)state;
	assert_done(cuda->mem_export(&fd, h, CU_HANDLE_POSIX_FD, 0));
	p = map(h, SIZE, CU_ACCESS_READWRITE);
	assert_int_equal(free_memory(), before - SIZE);
	assert_done(cuda->memset8(p, 3, SIZE));
	assert_done(cuda->ctx_synchronize());
	unmap(p, SIZE);
	assert_int_equal(free_memory(), before - SIZE);
	fd = fd_close(fd);
	assert_int_equal(free_memory(), before);
}

static void test_a_descriptor_leads_to_the_same_bytes_again_and_again(void **state)
{
	cu_ptr first = map(create(SIZE), SIZE, CU_ACCESS_READWRITE), second;
	cu_handle h = create(SIZE);
	uint8_t byte = 0;
	int fd = -1;

	(void)state;
	unmap(first, SIZE);
	assert_done(cuda->mem_export(&fd, h, CU_HANDLE_POSIX_FD, 0));
	first = map(h, SIZE, CU_ACCESS_READWRITE);
	for (uint8_t i = 1; i < 3; i++) {
		assert_done(cuda->mem_import(&h, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD));
		second = map(h, SIZE, CU_ACCESS_READ);
		assert_done(cuda->memset8(first, i, SIZE));
		assert_done(cuda->memcpy_to_host(&byte, second + SIZE - 1, 1));
		assert_int_equal(byte, i);
		unmap(second, SIZE);
	}
	unmap(first, SIZE);
	(void)fd_close(fd);
}

static void test_what_is_no_handle_is_not_imported(void **state)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	cu_handle h;

	(void)state;
	assert_result(cuda->mem_import(&h, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD),
		      CU_INVALID_VALUE);
	(void)fd_close(fd);
	assert_result(cuda->mem_import(&h, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD),
		      CU_INVALID_VALUE);
}

static void test_more_than_there_is_is_out_of_memory(void **state)
{
	cu_handle h;

	(void)state;
	assert_result(cuda->mem_create(&h, (size_t)1 << 40, &shareable, 0), CU_OUT_OF_MEMORY);
	assert_result(cuda->mem_create(&h, free_memory() + 2 * MIB, &shareable, 0),
		      CU_OUT_OF_MEMORY);
}

static void test_without_a_context_there_is_no_copy(void **state)
{
	cu_context c;
	size_t n;
	cu_ptr p;

	(void)state;
	assert_done(cuda->ctx_pop(&c));
	assert_result(cuda->mem_info(&n, &n), CU_INVALID_CONTEXT);
	assert_result(cuda->mem_alloc(&p, 1), CU_INVALID_CONTEXT);
	assert_result(cuda->memset8(4096, 0, 1), CU_INVALID_CONTEXT);
	assert_result(cuda->ctx_synchronize(), CU_INVALID_CONTEXT);
	assert_result(cuda->ctx_pop(&c), CU_INVALID_CONTEXT);
	assert_done(cuda->ctx_push(c));
}

static void test_linear_memory_is_freed_once(void **state)
{
	size_t before = free_memory();
	struct cu_ipc_handle handle;
	cu_ptr p = 0, q;

	(void)state;
	assert_done(cuda->mem_alloc(&p, SIZE));
	assert_int_equal(free_memory(), before - SIZE);
	assert_done(cuda->memset8(p, 1, SIZE));
	assert_done(cuda->ipc_get(&handle, p));
	assert_result(cuda->ipc_open(&q, handle, CU_IPC_LAZY_PEER_ACCESS), CU_INVALID_CONTEXT);
	assert_done(cuda->mem_free(p));
	assert_result(cuda->mem_free(p), CU_INVALID_VALUE);
	assert_int_equal(free_memory(), before);
}

static void test_a_child_cannot_use_its_parents_driver(void **state)
{
	int status, n;
	pid_t child = fork();

	(void)state;
	if (child == 0)
		_exit(cuda->device_count(&n));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 3); /* CUDA_ERROR_NOT_INITIALIZED */
}

static void write_failure(const char *text)
{
	char path[4096];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/fail", getenv("FAKE_CUDA_STATE"));
	f = fopen(path, "we");
	assert_non_null(f);
	(void)fputs(text, f);
	(void)fclose(f);
}

static void test_calls_fail_where_the_script_says_so(void **state)
{
	cu_ptr p = map(create(SIZE), SIZE, CU_ACCESS_READWRITE);

	(void)state;
	write_failure("cuMemsetD8 999 1 2\ncuMemCreate 2\n");
	assert_done(cuda->memset8(p, 0, SIZE));
	assert_result(cuda->memset8(p, 0, SIZE), 999);
	assert_result(cuda->memset8(p, 0, SIZE), 999);
	assert_done(cuda->memset8(p, 0, SIZE));
	assert_done(cuda->ctx_synchronize());
	for (int i = 0; i < 3; i++) {
		cu_handle h;

		assert_result(cuda->mem_create(&h, SIZE, &shareable, 0), CU_OUT_OF_MEMORY);
	}
	write_failure("");
	unmap(p, SIZE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_written_are_read_back),
		cmocka_unit_test(test_fresh_memory_is_not_zero),
		cmocka_unit_test(test_without_access_nothing_is_copied),
		cmocka_unit_test(test_a_copy_past_the_end_is_refused),
		cmocka_unit_test(test_sizes_and_addresses_are_multiples_of_the_granularity),
		cmocka_unit_test(test_mapping_twice_or_in_part_unmapping_is_refused),
		cmocka_unit_test(test_memory_lives_until_the_last_of_handle_mapping_and_descriptor),
		cmocka_unit_test(test_a_descriptor_leads_to_the_same_bytes_again_and_again),
		cmocka_unit_test(test_what_is_no_handle_is_not_imported),
		cmocka_unit_test(test_more_than_there_is_is_out_of_memory),
		cmocka_unit_test(test_without_a_context_there_is_no_copy),
		cmocka_unit_test(test_linear_memory_is_freed_once),
		cmocka_unit_test(test_a_child_cannot_use_its_parents_driver),
		cmocka_unit_test(test_calls_fail_where_the_script_says_so),
	};
	char why[CUDA_WHY_SIZE];

	if (cuda_driver_open(&cuda, why) < 0) {
		printf("%s (make fakes)\n", why);
		return 77;
	}
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
