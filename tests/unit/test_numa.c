/* Sets of NUMA nodes, as the kernel writes them, and policies of memory that this machine has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/numa.h"

static void a_list_has_numbers_and_ranges(void **state)
{
	static const struct {
		const char *list;
		unsigned n, first, last; /* nodes of the set */
	} good[] = {{"", 0, 0, 0},          {"0", 1, 0, 0},
		    {"7", 1, 7, 7},         {"0-1023", 1024, 0, 1023},
		    {"0,2-3,64", 4, 0, 64}, {"3,3,1", 2, 1, 3}};
	static const char *const bad[] = {"-1",
					  "1-",
					  "2-1",
					  "0,",
					  ",0",
					  "a",
					  "0a",
					  "0-2-3",
					  "1024",
					  "0 1",
					  " 0",
					  "0\n",
					  "+1",
					  "0,,1",
					  "0x1",
					  "0-99999999999999999999",
					  "99999999999999999999",
					  "!0"};
	struct numa_nodes nodes;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		memset(&nodes, 0xff, sizeof(nodes));
		assert_true(numa_nodes_parse(good[i].list, &nodes));
		assert_int_equal(numa_nodes_count(&nodes), good[i].n);
		assert_int_equal(numa_nodes_has(&nodes, good[i].first), good[i].n > 0);
		assert_int_equal(numa_nodes_has(&nodes, good[i].last), good[i].n > 0);
	}
	assert_false(numa_nodes_has(&nodes, NUMA_NODES_MAX));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		if (numa_nodes_parse(bad[i], &nodes))
			fail_msg("'%s' is a list", bad[i]);
}

static void a_set_is_written_as_a_list_that_is_cut_where_it_is_long(void **state)
{
	static const char *const lists[] = {"", "0", "0-1", "0,2-3,64", "1023", "0-1023"};
	char buf[NUMA_TEXT_MAX];
	struct numa_nodes nodes;

	(void)state;
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		assert_true(numa_nodes_parse(lists[i], &nodes));
		assert_string_equal(numa_nodes_format(buf, &nodes), lists[i]);
	}
	memset(&nodes, 0x55, sizeof(nodes));
	assert_string_equal(numa_nodes_format(buf, &nodes) + strlen(buf) - 3, "...");
	assert_in_range(strlen(buf), NUMA_TEXT_MAX / 2, NUMA_TEXT_MAX - 1);
	memset(&nodes, 0, sizeof(nodes));
	for (unsigned i = 512; i < NUMA_NODES_MAX; i++)
		nodes.bits[i / 64] |= (uint64_t)(i % 8 < 6) << i % 64;
	assert_string_equal(numa_nodes_format(buf, &nodes) + strlen(buf) - 3, "...");
}

/* Every process that has the file finds its policy, also for pages behind the first. */
static void a_policy_is_the_files(void **state)
{
	static const enum numa_mode modes[] = {NUMA_BIND, NUMA_PREFERRED, NUMA_INTERLEAVE};
	const size_t size = 3 * (size_t)sysconf(_SC_PAGESIZE);
	struct numa_policy policy, found;
	struct numa_nodes allowed;
	int fd, other;

	(void)state;
	if (numa_nodes_allowed(&allowed) < 0)
		skip(); /* a kernel without, or a filter of system calls */
	assert_int_equal(fd_memfd("test", size, &fd), 0);
	assert_int_equal(fd_reopen_readonly(fd, &other), 0);
	assert_int_equal(numa_file_policy(other).mode, NUMA_DEFAULT);
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		policy = (struct numa_policy){.mode = modes[i], .nodes = allowed};
		assert_int_equal(numa_set_file_policy(fd, size, &policy), 0);
		found = numa_file_policy(other);
		assert_int_equal(found.mode, modes[i]);
		assert_memory_equal(&found.nodes, &allowed, sizeof(allowed));
	}
	for (unsigned i = 0; i < NUMA_NODES_MAX / 64; i++)
		policy.nodes.bits[i] = ~allowed.bits[i];
	assert_int_equal(numa_set_file_policy(fd, size, &policy), -EINVAL);
	(void)fd_close(fd);
	(void)fd_close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_list_has_numbers_and_ranges),
		cmocka_unit_test(a_set_is_written_as_a_list_that_is_cut_where_it_is_long),
		cmocka_unit_test(a_policy_is_the_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
