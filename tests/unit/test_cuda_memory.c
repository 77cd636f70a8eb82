/* GPU memory as buffers and writers see it, from several threads too; on a fake GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/cuda/cuda_driver.h"
#include "ipc/digest.h"
#include "libclient/version/memory.h"

#define SIZE (3 * MIB + 4096)
#define MAP_SIZE (4 * MIB)
#define N_THREADS 4
#define N_ROUNDS 8

static const struct cuda_driver *cuda;

/* Memory as a server would send it: a descriptor, which alone keeps it. */
static struct memory_request request(enum memory_access access)
{
	const struct cu_allocation shareable = {
		.type = CU_ALLOCATION_PINNED,
		.handle_types = CU_HANDLE_POSIX_FD,
		.location = {CU_LOCATION_DEVICE, 0},
	};
	struct memory_request q = {
		.location = {.memory = WIRE_MEMORY_CUDA, .map_size = MAP_SIZE},
		.size = SIZE,
		.access = access,
		.fd = -1,
		.device = -1,
		.stream = WEIGHTD_ALL_STREAMS,
	};
	struct cu_uuid uuid;
	cu_handle handle;

	assert_int_equal(cuda->device_uuid(&uuid, 0), CU_OK);
	memcpy(q.location.uuid, uuid.bytes, sizeof(uuid.bytes));
	assert_int_equal(cuda->mem_create(&handle, MAP_SIZE, &shareable, 0), CU_OK);
	assert_int_equal(cuda->mem_export(&q.fd, handle, CU_HANDLE_POSIX_FD, 0), CU_OK);
	assert_int_equal(cuda->mem_release(handle), CU_OK);
	return q;
}

static void check(int r, const struct sentence *s)
{
	if (r < 0)
		fail_msg("%d: %s", r, s->text);
}

static struct memory filled(const struct memory_request *q, const void *bytes)
{
	struct memory m = {0};
	struct sentence s;

	check(memory_map(&m, q, &s), &s);
	check(memory_write(&m, 0, bytes, SIZE, &s), &s);
	return m;
}

static char *some_bytes(unsigned seed)
{
	char *bytes = malloc(SIZE);

	assert_non_null(bytes);
	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (char)(i * seed >> 8);
	return bytes;
}

static void assert_holds(const struct memory *m, const char *bytes)
{
	cleanup(freep) char *found = malloc(SIZE);
	struct sentence s;

	assert_non_null(found);
	check(memory_read(m, 0, found, SIZE, &s), &s);
	assert_memory_equal(found, bytes, SIZE);
}

static void it_is_swapped_given_back_and_taken_again_at_one_address(void **state)
{
	struct memory_request a = request(MEMORY_WRITE), b = request(MEMORY_WRITE);
	cleanup(freep) char *old = some_bytes(3), *new = some_bytes(7);
	struct memory m = filled(&a, old), other = filled(&b, new);
	void *data = m.data;
	struct sentence s;

	(void)state;
	memory_unmap(&other);
	a.access = b.access = MEMORY_READ;
	check(memory_protect(&m, &a, &s), &s);
	assert_int_equal(memory_write(&m, 0, new, 1, &s), -EACCES);
	assert_holds(&m, old);
	check(memory_replace(&m, &b, &s), &s);
	assert_holds(&m, new);
	check(memory_let_go(&m, &s), &s);
	assert_int_equal(memory_read(&m, 0, new, 1, &s), -EADDRNOTAVAIL);
	check(memory_replace(&m, &a, &s), &s);
	assert_holds(&m, old);
	b.location.map_size *= 2;
	assert_int_equal(memory_replace(&m, &b, &s), -EBADMSG);
	assert_ptr_equal(m.data, data);
	check(memory_mark(&m, NULL, &s), &s);
	assert_true(memory_has_passed(&m, true));
	memory_unmap(&m);
	fd_close(a.fd);
	fd_close(b.fd);
}

/* Also for a stream without waiters, such as the digester's. */
static void what_is_written_is_there_when_the_call_returns(void **state)
{
	struct memory_request q = request(MEMORY_WRITE);
	struct sentence s;

	(void)state;
	for (unsigned round = 1; round <= N_ROUNDS; round++) {
		cleanup(freep) char *bytes = some_bytes(round);
		uint8_t found[HASH_SIZE], wanted[HASH_SIZE];
		struct memory m = filled(&q, bytes);

		check(memory_digest(&m, SIZE, 3, 1, &found, &s), &s);
		digest_leaf(bytes, SIZE, 3, wanted);
		assert_memory_equal(found, wanted, HASH_SIZE);
		memory_unmap(&m);
	}
	fd_close(q.fd);
}

/* Sets a state of the stand-in: "gate", "capture". */
static void set_state(const char *name, bool on)
{
	char path[4096];

	(void)snprintf(path, sizeof(path), "%s/%s", getenv("FAKE_CUDA_STATE"), name);
	if (on)
		(void)fd_close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	else
		(void)unlink(path);
}

static void a_mark_is_looked_at_while_another_thread_captures_a_graph(void **state)
{
	struct memory_request q = request(MEMORY_WRITE);
	struct memory m = {0};
	struct sentence s;
	bool has_passed;
	cu_context c;

	(void)state;
	check(memory_map(&m, &q, &s), &s);
	assert_int_equal(cuda->primary_ctx_retain(&c, 0), CU_OK);
	assert_int_equal(cuda->ctx_push(c), CU_OK);
	set_state("gate", true);
	assert_int_equal(cuda->memset8_async((cu_ptr)(uintptr_t)m.data, 1, SIZE, NULL), CU_OK);
	check(memory_mark(&m, NULL, &s), &s);
	set_state("capture", true);
	has_passed = memory_has_passed(&m, false);
	set_state("gate", false);
	assert_false(has_passed);
	assert_true(memory_has_passed(&m, true));
	assert_true(memory_has_passed(&m, false));
	set_state("capture", false);
	memory_unmap(&m);
	assert_int_equal(cuda->ctx_pop(&c), CU_OK);
	assert_int_equal(cuda->primary_ctx_release(0), CU_OK);
	fd_close(q.fd);
}

struct shared {
	const struct memory *memory;
	const char *bytes;
	const char *_Atomic wrong; /* set by any thread; NULL: nothing */
};

/* In each thread, which has no context of its own. */
static void *read_and_digest(void *userdata)
{
	struct shared *shared = userdata;
	uint8_t found[4][HASH_SIZE], wanted[HASH_SIZE];
	cu_context current = NULL;
	struct sentence s;
	char byte;

	for (int round = 0; round < N_ROUNDS; round++) {
		if (memory_digest(shared->memory, SIZE, 0, 4, found, &s) < 0 ||
		    memory_read(shared->memory, SIZE - 1, &byte, 1, &s) < 0 ||
		    memory_synchronize(shared->memory, WEIGHTD_ALL_STREAMS, &s) < 0)
			shared->wrong = "a call failed";
		for (uint64_t i = 0; i < 4; i++) {
			digest_leaf(shared->bytes, SIZE, i, wanted);
			if (memcmp(found[i], wanted, HASH_SIZE) != 0)
				shared->wrong = "a digest is wrong";
		}
		if (byte != shared->bytes[SIZE - 1])
			shared->wrong = "a byte is wrong";
		if (cuda->ctx_current(&current) != CU_OK || current)
			shared->wrong = "a context was left behind";
	}
	return NULL;
}

static void several_threads_read_and_digest_it_at_once(void **state)
{
	struct memory_request q = request(MEMORY_WRITE);
	cleanup(freep) char *bytes = some_bytes(5);
	struct memory m = filled(&q, bytes);
	struct shared shared = {&m, bytes, NULL};
	pthread_t threads[N_THREADS];

	(void)state;
	for (int i = 0; i < N_THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_and_digest, &shared), 0);
	for (int i = 0; i < N_THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	if (shared.wrong)
		fail_msg("%s", shared.wrong);
	memory_unmap(&m);
	fd_close(q.fd);
}

static void what_is_not_the_memory_that_was_promised_is_refused(void **state)
{
	struct memory_request q = request(MEMORY_READ);
	struct memory m = {0};
	struct sentence s;

	(void)state;
	q.location.uuid[0] ^= 1;
	assert_int_equal(memory_map(&m, &q, &s), -ENODEV);
	q.location.uuid[0] ^= 1;
	q.location.map_size = SIZE / 2;
	assert_int_equal(memory_map(&m, &q, &s), -EBADMSG);
	q.location.map_size = MAP_SIZE;
	q.fd = fd_close(q.fd);
	assert_int_equal(memory_map(&m, &q, &s), -EINVAL);
	assert_null(m.kind);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_swapped_given_back_and_taken_again_at_one_address),
		cmocka_unit_test(what_is_written_is_there_when_the_call_returns),
		cmocka_unit_test(a_mark_is_looked_at_while_another_thread_captures_a_graph),
		cmocka_unit_test(several_threads_read_and_digest_it_at_once),
		cmocka_unit_test(what_is_not_the_memory_that_was_promised_is_refused),
	};
	char why[CUDA_WHY_SIZE];

	if (cuda_driver_open(&cuda, why) < 0) {
		printf("%s (make fakes)\n", why);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
