/* Memory as buffers and writers see it, of the kind that every machine has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/digest.h"
#include "libclient/version/memory.h"

#define SIZE (3 * MIB + 4096)

/* A slot of bytes that are all `value`, and what asks for it. */
static struct memory_request request(char value, enum memory_access access)
{
	struct memory_request q = {
		.location.map_size = SIZE,
		.size = SIZE,
		.access = access,
		.fd = -1,
		.device = -1,
	};
	cleanup(freep) char *bytes = malloc(SIZE);

	assert_non_null(bytes);
	memset(bytes, value, SIZE);
	assert_int_equal(fd_memfd("slot", SIZE, &q.fd), 0);
	assert_int_equal(pwrite(q.fd, bytes, SIZE, 0), SIZE);
	return q;
}

static struct memory mapped(struct memory_request *q)
{
	struct memory m = {0};
	struct sentence s;

	assert_int_equal(memory_map(&m, q, &s), 0);
	assert_true(m.is_mapped);
	assert_int_equal(m.device, -1);
	return m;
}

static char first_byte(const struct memory *m)
{
	struct sentence s;
	char byte;

	assert_int_equal(memory_read(m, 0, &byte, 1, &s), 0);
	return byte;
}

/* The status of a child that reads the memory. */
static int read_in_child(const struct memory *m)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL); /* cmocka has a handler */
		_exit(*(volatile char *)m->data);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/*
 * True when children do not inherit the mapping at `p`. Asked of the kernel, since in a child
 * another mapping may already be there; ThreadSanitizer's runtime makes some.
 */
static bool is_hidden_from_children(const void *p)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	bool is_here = false, is_hidden = false;
	unsigned long start, end;
	char line[512];

	assert_non_null(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			is_here = (uintptr_t)p >= start && (uintptr_t)p < end;
		else if (is_here && !strncmp(line, "VmFlags:", 8))
			is_hidden = strstr(line, " dc") != NULL;
	}
	(void)fclose(smaps);
	return is_hidden;
}

static void another_slot_takes_its_place_at_the_same_address(void **state)
{
	struct memory_request a = request(1, MEMORY_READ), b = request(2, MEMORY_READ);
	struct memory m = mapped(&a);
	void *data = m.data;
	struct sentence s;

	(void)state;
	assert_int_equal(memory_replace(&m, &b, &s), 0);
	assert_ptr_equal(m.data, data);
	assert_int_equal(first_byte(&m), 2);
	b.size -= 4096;
	assert_int_equal(memory_replace(&m, &b, &s), -EBADMSG);
	b.size += 4096;
	assert_int_equal(ftruncate(b.fd, SIZE - 1), 0);
	assert_int_equal(memory_replace(&m, &b, &s), -EBADMSG);
	memory_unmap(&m);
	assert_null(m.data);
	memory_unmap(&m);
	fd_close(a.fd);
	fd_close(b.fd);
}

static void what_was_given_back_is_asked_for_nothing_until_it_is_there_again(void **state)
{
	struct memory_request q = request(1, MEMORY_READ);
	struct memory m = mapped(&q);
	uint8_t hash[1][HASH_SIZE];
	void *data = m.data;
	struct sentence s;
	char byte = 0;

	(void)state;
	assert_int_equal(memory_let_go(&m, &s), 0);
	assert_int_equal(memory_let_go(&m, &s), 0);
	assert_ptr_equal(m.data, data);
	assert_int_equal(memory_read(&m, 0, &byte, 1, &s), -EADDRNOTAVAIL);
	assert_int_equal(memory_write(&m, 0, &byte, 1, &s), -EADDRNOTAVAIL);
	assert_int_equal(memory_digest(&m, SIZE, 0, 1, hash, &s), -EADDRNOTAVAIL);
	assert_int_equal(memory_protect(&m, &q, &s), -EADDRNOTAVAIL);
	assert_int_equal(memory_check(&m, &s), -EADDRNOTAVAIL);
	assert_int_equal(memory_synchronize(&m, NULL, &s), 0);
	assert_int_equal(memory_mark(&m, NULL, &s), 0);
	assert_true(memory_has_passed(&m, true));
	assert_true(WIFSIGNALED(read_in_child(&m)));
	assert_int_equal(memory_replace(&m, &q, &s), 0);
	assert_ptr_equal(m.data, data);
	assert_int_equal(first_byte(&m), 1);
	memory_unmap(&m);
	fd_close(q.fd);
}

static void writable_memory_is_hidden_from_children_until_it_is_read_only(void **state)
{
	struct memory_request q = request(1, MEMORY_WRITE);
	struct memory m = mapped(&q);
	void *data = m.data;
	struct sentence s;

	(void)state;
	assert_true(is_hidden_from_children(data));
	assert_int_equal(memory_write(&m, 0, "\3", 1, &s), 0);
	q.access = MEMORY_READ;
	assert_int_equal(memory_protect(&m, &q, &s), 0);
	assert_ptr_equal(m.data, data);
	assert_int_equal(memory_write(&m, 0, "\4", 1, &s), -EACCES);
	assert_false(is_hidden_from_children(data));
	assert_int_equal(WEXITSTATUS(read_in_child(&m)), 3);
	q.access = MEMORY_WRITE;
	assert_int_equal(memory_protect(&m, &q, &s), 0);
	assert_int_equal(memory_write(&m, 0, "\4", 1, &s), 0);
	assert_int_equal(first_byte(&m), 4);
	memory_unmap(&m);
	fd_close(q.fd);
}

static void nothing_beyond_the_bytes_is_read_written_or_digested(void **state)
{
	static const struct {
		uint64_t offset, n;
	} outside[] = {{SIZE, 1}, {SIZE - 1, 2}, {0, SIZE + 1}, {1, UINT64_MAX}, {UINT64_MAX, 1}};
	struct memory_request q = request(1, MEMORY_WRITE);
	struct memory m = mapped(&q);
	uint8_t hashes[4][HASH_SIZE], hash[HASH_SIZE];
	struct sentence s;
	char byte;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(outside); i++) {
		assert_int_equal(memory_read(&m, outside[i].offset, &byte, outside[i].n, &s),
				 -ERANGE);
		assert_int_equal(memory_write(&m, outside[i].offset, &byte, outside[i].n, &s),
				 -ERANGE);
	}
	assert_int_equal(memory_read(&m, SIZE, &byte, 0, &s), 0);
	assert_int_equal(memory_digest(&m, SIZE, 1, 4, hashes, &s), -ERANGE);
	assert_int_equal(memory_digest(&m, SIZE, UINT64_MAX, 2, hashes, &s), -ERANGE);
	assert_int_equal(memory_digest(&m, SIZE + 1, 0, 1, hashes, &s), -ERANGE);
	assert_int_equal(memory_digest(&m, SIZE, 1, 3, hashes, &s), 0);
	for (uint64_t i = 1; i < 4; i++) {
		digest_leaf(m.data, SIZE, i, hash);
		assert_memory_equal(hashes[i - 1], hash, HASH_SIZE);
	}
	memory_unmap(&m);
	fd_close(q.fd);
}

static void a_kind_that_nobody_knows_is_refused(void **state)
{
	struct memory_request q = request(1, MEMORY_READ);
	struct memory m = {0};
	struct sentence s;

	(void)state;
	q.location.memory = WIRE_MEMORY_END;
	assert_int_equal(memory_map(&m, &q, &s), -EOPNOTSUPP);
	assert_null(m.kind);
	fd_close(q.fd);
}

/* A file of zeros with `size` bytes of data that are all `value`, from `offset` on. */
static struct memory_request file_request(char value, uint64_t offset, uint64_t size)
{
	struct memory_request q = {
		.location.map_size = offset + size,
		.offset = offset,
		.size = size,
		.fd = -1,
		.device = -1,
	};
	cleanup(freep) char *bytes = malloc(size + 1);

	assert_non_null(bytes);
	memset(bytes, value, size + 1);
	assert_int_equal(fd_memfd("slot", offset + size, &q.fd), 0);
	assert_int_equal(pwrite(q.fd, bytes, size, (off_t)offset), size);
	return q;
}

static void check_file(const struct memory *m, char value, uint64_t offset, uint64_t size)
{
	struct sentence s;
	char byte;

	assert_int_equal(m->offset, offset);
	assert_int_equal((uintptr_t)m->data % 4096, offset % 4096);
	if (size >= 2 * MIB)
		assert_int_equal((uintptr_t)m->data % (2 * MIB), offset % (2 * MIB));
	assert_int_equal(memory_read(m, size, &byte, 1, &s), -ERANGE);
	if (size == 0)
		return;
	assert_int_equal(first_byte(m), value);
	assert_int_equal(memory_read(m, size - 1, &byte, 1, &s), 0);
	assert_int_equal(byte, value);
}

static void a_file_is_mapped_from_its_data_on(void **state)
{
	static const uint64_t offsets[] = {10, 97, 4095, 4096, 8192, 2 * MIB, 2 * MIB + 4097};
	static const uint64_t sizes[] = {0, 1, 4096, 100001, 2 * MIB, 5 * MIB + 3};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(offsets) * ARRAY_LEN(sizes); i++) {
		uint64_t offset = offsets[i % ARRAY_LEN(offsets)],
			 size = sizes[i / ARRAY_LEN(offsets)];
		struct memory_request a = file_request(1, offset, size);
		struct memory_request b = file_request(2, offset, size);
		struct memory m = mapped(&a);
		void *data = m.data;
		struct sentence s;

		check_file(&m, 1, offset, size);
		assert_int_equal(memory_replace(&m, &b, &s), 0);
		assert_ptr_equal(m.data, data);
		check_file(&m, 2, offset, size);
		assert_int_equal(memory_let_go(&m, &s), 0);
		assert_int_equal(memory_replace(&m, &a, &s), 0);
		assert_ptr_equal(m.data, data);
		check_file(&m, 1, offset, size);
		assert_int_equal(ftruncate(b.fd, (off_t)(offset + size - 1)), 0);
		assert_int_equal(memory_replace(&m, &b, &s), -EBADMSG);
		memory_unmap(&m);
		fd_close(a.fd);
		fd_close(b.fd);
	}
}

static void data_are_replaced_only_by_those_at_the_same_place_in_a_page(void **state)
{
	static const struct {
		uint64_t before, after;
		bool ok;
	} cases[] = {{8192, 4096, true}, {8192, 12288, true}, {97, 4193, true}, {4193, 97, true},
		     {8192, 97, false},  {97, 98, false},     {0, 4096, false}, {4096, 0, false}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct memory_request a = file_request(1, cases[i].before, 5000);
		struct memory_request b = file_request(2, cases[i].after, 5000);
		struct memory m = mapped(&a);
		struct sentence s;

		assert_int_equal(memory_is_congruent(&m, cases[i].after), cases[i].ok);
		assert_int_equal(memory_replace(&m, &b, &s), cases[i].ok ? 0 : -EBADMSG);
		check_file(&m, cases[i].ok ? 2 : 1, cases[i].ok ? cases[i].after : cases[i].before,
			   5000);
		memory_unmap(&m);
		fd_close(a.fd);
		fd_close(b.fd);
	}
}

static void no_page_of_a_file_that_is_written_reaches_a_child(void **state)
{
	struct memory_request q = file_request(1, 97, 10000);
	struct memory m;
	struct sentence s;

	(void)state;
	q.access = MEMORY_WRITE;
	m = mapped(&q);
	assert_true(is_hidden_from_children((char *)m.data - 97));
	assert_true(is_hidden_from_children((char *)m.data + 9999));
	q.access = MEMORY_READ;
	assert_int_equal(memory_protect(&m, &q, &s), 0);
	assert_false(is_hidden_from_children((char *)m.data - 97));
	memory_unmap(&m);
	fd_close(q.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_mapped_from_its_data_on),
		cmocka_unit_test(data_are_replaced_only_by_those_at_the_same_place_in_a_page),
		cmocka_unit_test(no_page_of_a_file_that_is_written_reaches_a_child),
		cmocka_unit_test(another_slot_takes_its_place_at_the_same_address),
		cmocka_unit_test(what_was_given_back_is_asked_for_nothing_until_it_is_there_again),
		cmocka_unit_test(writable_memory_is_hidden_from_children_until_it_is_read_only),
		cmocka_unit_test(nothing_beyond_the_bytes_is_read_written_or_digested),
		cmocka_unit_test(a_kind_that_nobody_knows_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
