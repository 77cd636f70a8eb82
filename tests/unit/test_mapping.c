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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_slot_is_mapped_with_nothing_around_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
