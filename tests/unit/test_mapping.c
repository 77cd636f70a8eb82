/*
 * Mappings of slots: where huge pages are possible, and with nothing around them.
 */
#include "ipc/base/mapping.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* Pages that nothing may touch, of which nobody knows, right behind or before [p, end). */
static bool has_rest(const char *p, const char *end)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char line[512], rights[8];
	bool found = false;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		assert_int_equal(sscanf(line, "%lx-%lx %7s", &from, &to, rights), 3);
		found |= !strcmp(rights, "---p") &&
			 (from == (unsigned long)end || to == (unsigned long)p);
	}
	(void)fclose(maps);
	return found;
}

static void a_slot_is_mapped_with_nothing_around_it(void **state)
{
	static const uint64_t sizes[] = {4096,    2 * MIB - 1,    2 * MIB,       2 * MIB + 1,
					 5 * MIB, 5 * MIB + 4095, 5 * MIB + 4096};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		uint64_t pages = (sizes[i] + 4095) & ~(uint64_t)4095;
		cleanup(fd_closep) int fd = -1;
		void *p;

		assert_int_equal(fd_memfd("mapping", sizes[i], &fd), 0);
		assert_int_equal(mapping_new(fd, sizes[i], PROT_READ | PROT_WRITE, NULL, &p), 0);
		((volatile char *)p)[sizes[i] - 1] = 1;
		if (sizes[i] >= 2 * MIB)
			assert_int_equal((uintptr_t)p % (2 * MIB), 0);
		assert_false(has_rest(p, (char *)p + pages));
		mapping_free(p, sizes[i]);
	}
}

static void a_part_has_the_place_in_huge_pages_that_it_has_in_the_file(void **state)
{
	static const uint64_t offsets[] = {0, 4096, 8192, MIB, 2 * MIB - 4096, 2 * MIB, 5 * MIB};
	static const uint64_t sizes[] = {1, 4096, 2 * MIB - 1, 2 * MIB, 3 * MIB + 5};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(offsets) * ARRAY_LEN(sizes); i++) {
		uint64_t offset = offsets[i % ARRAY_LEN(offsets)],
			 size = sizes[i / ARRAY_LEN(offsets)];
		uint64_t pages = (size + 4095) & ~(uint64_t)4095;
		cleanup(fd_closep) int fd = -1;
		void *p, *again;

		assert_int_equal(fd_memfd("mapping", offset + size, &fd), 0);
		assert_int_equal(pwrite(fd, "x", 1, (off_t)offset), 1);
		assert_int_equal(mapping_new_part(fd, offset, size, PROT_READ, NULL, &p), 0);
		assert_int_equal(*(volatile char *)p, 'x');
		if (size >= 2 * MIB)
			assert_int_equal((uintptr_t)p % (2 * MIB), offset % (2 * MIB));
		assert_false(has_rest(p, (char *)p + pages));
		assert_int_equal(mapping_new_part(fd, offset, size, PROT_READ, p, &again), 0);
		assert_ptr_equal(again, p);
		mapping_free(p, size);
	}
}

/* The kernel's own choice has another place in a huge page in 511 of 512 cases. */
static void a_slot_is_mapped_again_where_the_last_one_was_unless_that_is_there(void **state)
{
	const uint64_t size = 5 * MIB;
	cleanup(fd_closep) int fd = -1;
	void *first, *second, *again, *other;

	(void)state;
	assert_int_equal(fd_memfd("mapping", size + 4096, &fd), 0);
	assert_int_equal(mapping_new_part(fd, 4096, size, PROT_READ, NULL, &first), 0);
	mapping_free(first, size);
	assert_int_equal(mapping_new_part(fd, 4096, size, PROT_READ, NULL, &again), 0);
	assert_ptr_equal(again, first);
	assert_int_equal(mapping_new_part(fd, 4096, size, PROT_READ, NULL, &second), 0);
	assert_ptr_not_equal(second, first);
	assert_int_equal((uintptr_t)second % (2 * MIB), 4096);
	assert_false(has_rest(second, (char *)second + size));
	mapping_free(second, size);
	/* Another place in a huge page, and another size, are not where the last one ended. */
	assert_int_equal(mapping_new_part(fd, 0, 2 * MIB, PROT_READ, NULL, &other), 0);
	assert_int_equal((uintptr_t)other % (2 * MIB), 0);
	assert_true((char *)other + 2 * MIB <= (char *)second + size);
	mapping_free(other, 2 * MIB);
	mapping_free(again, size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_part_has_the_place_in_huge_pages_that_it_has_in_the_file),
		cmocka_unit_test(a_slot_is_mapped_again_where_the_last_one_was_unless_that_is_there),
		cmocka_unit_test(a_slot_is_mapped_with_nothing_around_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
