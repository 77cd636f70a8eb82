/*
 * The stand-in for libcuda: streams, events and kernels keep the order that the real driver keeps
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/cuda/cuda_driver.h"

#define SIZE ((size_t)4 << 20)

static const char ptx[] = ".version 7.0\n.target sm_52\n.visible .entry fake_fill()";

static const struct cuda_driver *cuda;
static cu_ptr memory; /* SIZE bytes, for one test */

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

static void gate_path(char ret[4096])
{
	(void)snprintf(ret, 4096, "%s/gate", getenv("FAKE_CUDA_STATE"));
}

static void shut_gate(void)
{
	char path[4096];
	FILE *f;

	gate_path(path);
	f = fopen(path, "we");
	assert_non_null(f);
	(void)fclose(f);
}

static void open_gate(void)
{
	char path[4096];

	gate_path(path);
	(void)unlink(path);
}

/* A context of the test's own, since some tests spoil it. */
static int set_up(void **state)
{
	cu_context c;

	(void)state;
	assert_done(cuda->primary_ctx_retain(&c, 0));
	assert_done(cuda->ctx_push(c));
	assert_done(cuda->mem_alloc(&memory, SIZE));
	assert_done(cuda->memset8(memory, 0, SIZE));
	assert_done(cuda->ctx_synchronize());
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	open_gate();
	assert_done(cuda->ctx_pop(NULL));
	assert_done(cuda->primary_ctx_release(0));
	return 0;
}

static cu_stream new_stream(unsigned flags)
{
	cu_stream s = NULL;

	assert_done(cuda->stream_create(&s, flags));
	return s;
}

static void test_what_is_queued_runs_later_and_in_order(void **state)
{
	cu_stream s = new_stream(CU_STREAM_NON_BLOCKING);
	uint8_t *back;

	(void)state;
	assert_done(cuda->mem_host_alloc((void **)&back, SIZE, 0));
	shut_gate();
	assert_done(cuda->memset8_async(memory, 1, SIZE, s));
	assert_done(cuda->memset8_async(memory, 2, SIZE / 2, s));
	assert_done(cuda->memcpy_to_host_async(back, memory, SIZE, s));
	assert_result(cuda->stream_query(s), CU_NOT_READY);
	assert_int_equal(back[0], 0);
	open_gate();
	assert_done(cuda->stream_synchronize(s));
	assert_done(cuda->stream_query(s));
	assert_int_equal(back[0], 2);
	assert_int_equal(back[SIZE - 1], 1);
	assert_done(cuda->mem_host_free(back));
	assert_result(cuda->mem_host_free(back), CU_INVALID_VALUE);
	assert_done(cuda->stream_destroy(s));
	assert_result(cuda->stream_query(s), CU_INVALID_HANDLE);
}

/* A copy that a thread makes, which may wait for the stream. */
struct pageable_copy {
	cu_context context;
	cu_stream stream;
	bool is_to_host;
	uint8_t bytes[2];
	atomic_int tid;
	atomic_bool has_returned;
	cu_result of_copy, of_query; /* state of the copy, and of the stream right after it */
};

static void *pageable_copy_run(void *arg)
{
	struct pageable_copy *p = arg;

	(void)cuda->ctx_push(p->context);
	atomic_store(&p->tid, gettid());
	if (p->is_to_host)
		p->of_copy = cuda->memcpy_to_host_async(p->bytes, memory, 2, p->stream);
	else
		p->of_copy = cuda->memcpy_to_device_async(memory, p->bytes, 2, p->stream);
	p->of_query = cuda->stream_query(p->stream);
	atomic_store(&p->has_returned, true);
	return NULL;
}

static bool is_asleep(int tid)
{
	char path[64], state = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	(void)fclose(f);
	return state == 'S';
}

/* Starts the copy behind work that does not run, and lets that run once the copy waits, or has not waited. */
static void pageable_copy_meets_a_gate(struct pageable_copy *p)
{
	pthread_t thread;

	assert_done(cuda->ctx_current(&p->context));
	shut_gate();
	assert_done(cuda->memset8_async(memory, 7, SIZE, p->stream));
	assert_int_equal(pthread_create(&thread, NULL, pageable_copy_run, p), 0);
	while (!atomic_load(&p->has_returned) &&
	       !(atomic_load(&p->tid) && is_asleep(atomic_load(&p->tid))))
		(void)sched_yield();
	assert_false(atomic_load(&p->has_returned));
	open_gate();
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_done(p->of_copy);
}

static void test_a_copy_to_pageable_memory_returns_when_it_is_done(void **state)
{
	struct pageable_copy p = {.stream = new_stream(CU_STREAM_NON_BLOCKING), .is_to_host = true};

	(void)state;
	pageable_copy_meets_a_gate(&p);
	assert_done(p.of_query);
	assert_int_equal(p.bytes[0], 7);
	assert_done(cuda->stream_destroy(p.stream));
}

static void test_a_copy_from_pageable_memory_waits_for_the_stream(void **state)
{
	struct pageable_copy p = {.stream = new_stream(CU_STREAM_NON_BLOCKING), .bytes = {8, 8}};
	uint8_t back;

	(void)state;
	pageable_copy_meets_a_gate(&p);
	p.bytes[0] = 9; /* the old value is on its way already */
	assert_done(cuda->stream_synchronize(p.stream));
	assert_done(cuda->memcpy_to_host(&back, memory, 1));
	assert_int_equal(back, 8);
	assert_done(cuda->stream_destroy(p.stream));
}

static void test_a_copy_from_pinned_memory_reads_it_when_it_runs(void **state)
{
	cu_stream s = new_stream(CU_STREAM_NON_BLOCKING);
	uint8_t *pinned, back;

	(void)state;
	assert_done(cuda->mem_host_alloc((void **)&pinned, 4096, 0));
	pinned[4095] = 8;
	shut_gate();
	assert_done(cuda->memcpy_to_device_async(memory, pinned + 4095, 1, s));
	pinned[4095] = 9;
	open_gate();
	assert_done(cuda->stream_synchronize(s));
	assert_done(cuda->memcpy_to_host(&back, memory, 1));
	assert_int_equal(back, 9);
	assert_done(cuda->mem_host_free(pinned));
	assert_done(cuda->stream_destroy(s));
}

static void test_the_default_stream_waits_for_the_others_and_they_for_it(void **state)
{
	cu_stream s = new_stream(0);
	uint8_t byte = 0;

	(void)state;
	assert_done(cuda->memset8_async(memory, 1, SIZE, s));
	assert_done(cuda->memset8_async(memory, 2, SIZE, NULL));
	assert_done(cuda->memset8_async(memory, 3, 1, s));
	assert_done(cuda->memcpy_to_host(&byte, memory, 1));
	assert_int_equal(byte, 3);
	assert_done(cuda->memcpy_to_host(&byte, memory + 1, 1));
	assert_int_equal(byte, 2);
	assert_done(cuda->stream_destroy(s));
}

static void test_an_event_passes_with_its_stream(void **state)
{
	cu_stream first = new_stream(CU_STREAM_NON_BLOCKING);
	cu_stream second = new_stream(CU_STREAM_NON_BLOCKING);
	cu_event before, after;
	float ms = -1;

	(void)state;
	assert_done(cuda->event_create(&before, 0));
	assert_done(cuda->event_create(&after, 0));
	assert_done(cuda->event_query(after)); /* nothing was recorded */
	assert_done(cuda->event_record(before, first));
	assert_done(cuda->stream_synchronize(first));
	shut_gate();
	assert_done(cuda->memset8_async(memory, 1, SIZE, first));
	assert_done(cuda->event_record(after, first));
	assert_done(cuda->stream_wait_event(second, after, 0));
	assert_result(cuda->event_query(after), CU_NOT_READY);
	assert_result(cuda->event_elapsed(&ms, before, after), CU_NOT_READY);
	assert_result(cuda->stream_query(second), CU_NOT_READY);
	open_gate();
	assert_done(cuda->stream_synchronize(second));
	assert_done(cuda->event_query(after));
	assert_done(cuda->event_elapsed(&ms, before, after));
	assert_true(ms >= 0);
	assert_done(cuda->event_destroy(before));
	assert_done(cuda->event_destroy(after));
	assert_done(cuda->stream_destroy(first));
	assert_done(cuda->stream_destroy(second));
}

static cu_function load_fill(void)
{
	cu_function f = NULL;
	cu_module m = NULL;

	assert_done(cuda->module_load(&m, ptx));
	assert_done(cuda->module_function(&f, m, "fake_fill"));
	return f;
}

static cu_result fill(cu_function f, cu_ptr p, uint64_t size, uint8_t value)
{
	void *parameters[] = {&p, &size, &value};

	return cuda->launch(f, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
}

static void test_a_kernel_runs_with_the_values_it_was_launched_with(void **state)
{
	cu_function f = load_fill();
	uint8_t byte = 0;

	(void)state;
	assert_done(fill(f, memory, SIZE, 9));
	assert_done(cuda->memcpy_to_host(&byte, memory + SIZE - 1, 1));
	assert_int_equal(byte, 9);
}

static void test_modules_are_looked_at(void **state)
{
	cu_function f;
	cu_module m;

	(void)state;
	assert_result(cuda->module_load(&m, "nothing"), 218); /* CUDA_ERROR_INVALID_PTX */
	assert_result(cuda->module_load(&m, ".version 9.0\n.target sm_190\n"), 209);
	assert_done(cuda->module_load(&m, ptx));
	assert_result(cuda->module_function(&f, m, "another"), 500); /* CUDA_ERROR_NOT_FOUND */
	assert_done(cuda->module_unload(m));
}

/* A fat binary of one image, in which the stand-in looks for names only. */
struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size;
	struct {
		uint16_t kind, version;
		uint32_t header_size;
		uint64_t size;
		uint32_t compressed_size, unused;
		uint16_t minor, major;
		uint32_t capability, more[8];
	} image;
	char elf[16];
};

static void test_a_fat_binary_is_for_the_gpus_that_it_names(void **state)
{
	static const uint32_t others[] = {80, 91, 100};
	struct fatbin fatbin = {
		.magic = 0xba55ed50,
		.version = 1,
		.header_size = offsetof(struct fatbin, image),
		.size = sizeof(fatbin.image) + sizeof(fatbin.elf),
		.image = {2, 0x101, sizeof(fatbin.image), sizeof(fatbin.elf), .capability = 90},
		.elf = "fake_fill",
	};
	cu_function f;
	cu_module m;

	(void)state;
	assert_done(cuda->module_load(&m, &fatbin));
	assert_done(cuda->module_function(&f, m, "fake_fill"));
	assert_result(cuda->module_function(&f, m, "gpu_fill"), 500); /* CUDA_ERROR_NOT_FOUND */
	assert_done(cuda->module_unload(m));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		fatbin.image.capability = others[i];
		assert_result(cuda->module_load(&m, &fatbin), 209); /* CUDA_ERROR_NO_BINARY_FOR_GPU */
	}
	fatbin.image.capability = 80;
	assert_int_equal(setenv("FAKE_CUDA_ATTRIBUTES", "75=8,76=9", 1), 0);
	assert_done(cuda->module_load(&m, &fatbin));
	assert_int_equal(unsetenv("FAKE_CUDA_ATTRIBUTES"), 0);
	fatbin.image.size++;
	assert_result(cuda->module_load(&m, &fatbin), 200); /* CUDA_ERROR_INVALID_IMAGE */
}

static void test_a_driver_without_its_compiler_refuses_ptx(void **state)
{
	cu_module m;

	(void)state;
	assert_int_equal(setenv("FAKE_CUDA_NO_JIT", "1", 1), 0);
	assert_result(cuda->module_load(&m, ptx), 221); /* CUDA_ERROR_JIT_COMPILER_NOT_FOUND */
	assert_int_equal(unsetenv("FAKE_CUDA_NO_JIT"), 0);
}

static void test_a_kernel_that_goes_astray_spoils_the_context(void **state)
{
	cu_function f = load_fill();
	size_t n;

	(void)state;
	assert_done(fill(f, memory + SIZE - 1, 2, 9));
	assert_result(cuda->ctx_synchronize(), 700); /* CUDA_ERROR_ILLEGAL_ADDRESS */
	assert_result(cuda->mem_info(&n, &n), 700);
}

static void test_memory_unmapped_under_a_queued_copy_spoils_the_context(void **state)
{
	struct cu_allocation like = {
		.type = CU_ALLOCATION_PINNED,
		.location = {CU_LOCATION_DEVICE, 0},
	};
	struct cu_access all = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READWRITE};
	cu_handle h;
	cu_ptr p;

	(void)state;
	assert_done(cuda->mem_create(&h, SIZE, &like, 0));
	assert_done(cuda->mem_reserve(&p, SIZE, 0, 0, 0));
	assert_done(cuda->mem_map(p, SIZE, 0, h, 0));
	assert_done(cuda->mem_release(h));
	assert_done(cuda->mem_set_access(p, SIZE, &all, 1));
	shut_gate();
	assert_done(cuda->memset8_async(p, 1, SIZE, NULL));
	assert_done(cuda->mem_unmap(p, SIZE));
	assert_done(cuda->mem_unreserve(p, SIZE));
	open_gate();
	assert_result(cuda->stream_synchronize(NULL), 700); /* CUDA_ERROR_ILLEGAL_ADDRESS */
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_what_is_queued_runs_later_and_in_order),
		TEST(test_a_copy_to_pageable_memory_returns_when_it_is_done),
		TEST(test_a_copy_from_pageable_memory_waits_for_the_stream),
		TEST(test_a_copy_from_pinned_memory_reads_it_when_it_runs),
		TEST(test_the_default_stream_waits_for_the_others_and_they_for_it),
		TEST(test_an_event_passes_with_its_stream),
		TEST(test_a_kernel_runs_with_the_values_it_was_launched_with),
		TEST(test_modules_are_looked_at),
		TEST(test_a_fat_binary_is_for_the_gpus_that_it_names),
		TEST(test_a_driver_without_its_compiler_refuses_ptx),
		TEST(test_a_kernel_that_goes_astray_spoils_the_context),
		TEST(test_memory_unmapped_under_a_queued_copy_spoils_the_context),
	};
	char why[CUDA_WHY_SIZE];

	if (cuda_driver_open(&cuda, why) < 0) {
		printf("%s (make fakes)\n", why);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
