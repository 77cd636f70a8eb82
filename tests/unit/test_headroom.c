/*
 * Headroom, on this machine and on made-up ones: in a mount namespace of its own the test puts files in
 * the place of /proc/meminfo, /proc/self/cgroup and /sys/fs/cgroup.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "server/base/headroom.h"

#define SKIP 77

#define V1_MAX "9223372036854771712\n" /* no limit, in the older generation's files */

static uint64_t headroom(void)
{
	uint64_t got = UINT64_MAX;

	assert_int_equal(headroom_bytes(&got), 0);
	return got;
}

/* --- This machine --------------------------------------------------------------------------------- */

static void there_is_some_headroom_and_less_than_the_memory(void **state)
{
	uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	(void)state;
	headroom_init(0);
	assert_in_range(headroom(), 1, total);
}

static void what_is_reserved_is_not_headroom(void **state)
{
	(void)state;
	headroom_init(UINT64_MAX - 1);
	assert_int_equal(headroom(), 0);
}

/* --- Made-up machines ----------------------------------------------------------------------------- */

static void put(const char *path, const char *text)
{
	FILE *f;

	f = fopen(path, "we");
	if (!f)
		fail_msg("%s: %s", path, strerror(errno));
	assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
	assert_int_equal(fclose(f), 0);
}

/* One cgroup: its folder below /sys/fs/cgroup and the content of its files; NULL for a file it has not. */
static void put_group(const char *folder, const char *const files[][2], size_t n)
{
	char path[512];
	int size = snprintf(path, sizeof(path), "/sys/fs/cgroup%s/", folder);

	for (char *p = path + strlen("/sys/fs/cgroup/"); *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
		*p = '/';
	}
	for (size_t i = 0; i < n; i++) {
		if (!files[i][1])
			continue;
		(void)snprintf(path + size, sizeof(path) - (size_t)size, "%s", files[i][0]);
		put(path, files[i][1]);
	}
}

static void put_v2(const char *folder, const char *max, const char *current, const char *stat)
{
	const char *const files[][2] = {{"memory.max", max},
					{"memory.current", current},
					{"memory.stat", stat}};

	put_group(folder, files, ARRAY_LEN(files));
}

static void put_v1(const char *folder, const char *limit, const char *usage, const char *stat)
{
	const char *const files[][2] = {{"memory.limit_in_bytes", limit},
					{"memory.usage_in_bytes", usage},
					{"memory.stat", stat}};

	put_group(folder, files, ARRAY_LEN(files));
}

#define MEMINFO "/sys/fs/cgroup/.meminfo"
#define CGROUP "/sys/fs/cgroup/.cgroup"

/* 16 GiB of memory, 8 GiB of them available, no cgroup. */
static int set_up(void **state)
{
	(void)state;
	if (mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL) < 0)
		return -1;
	put(MEMINFO, "MemTotal:       16777216 kB\nMemFree:          100000 kB\n"
		     "MemAvailable:    8388608 kB\nBuffers:               1 kB\n");
	put(CGROUP, "");
	headroom_init(0);
	return mount(MEMINFO, "/proc/meminfo", NULL, MS_BIND, NULL) < 0 ||
	       mount(CGROUP, "/proc/self/cgroup", NULL, MS_BIND, NULL) < 0;
}

static int tear_down(void **state)
{
	(void)state;
	return umount("/proc/self/cgroup") < 0 || umount("/proc/meminfo") < 0 ||
	       umount("/sys/fs/cgroup") < 0;
}

static void without_cgroups_what_is_available_counts(void **state)
{
	(void)state;
	assert_int_equal(headroom(), 8 * GIB);
}

static void the_reserve_is_taken_off(void **state)
{
	(void)state;
	headroom_init(3 * GIB);
	assert_int_equal(headroom(), 5 * GIB);
	headroom_init(8 * GIB);
	assert_int_equal(headroom(), 0);
	headroom_init(9 * GIB);
	assert_int_equal(headroom(), 0);
}

static void the_reserve_is_a_sixteenth_and_512_mib_at_most(void **state)
{
	(void)state;
	headroom_init(HEADROOM_RESERVE_DEFAULT);
	assert_int_equal(headroom(), 8 * GIB - 512 * MIB);
	put(MEMINFO, "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n");
	headroom_init(HEADROOM_RESERVE_DEFAULT);
	assert_int_equal(headroom(), 512 * MIB - 64 * MIB);
}

static void a_cgroup_with_little_memory_keeps_a_small_reserve(void **state)
{
	(void)state;
	put(CGROUP, "0::/a/b\n4:memory:/c\n");
	put_v2("/a/b", "max\n", "0\n", "");
	put_v2("/a", "1600000\n", "0\n", "");
	put_v1("/memory/c", V1_MAX, "0\n", "");
	headroom_init(HEADROOM_RESERVE_DEFAULT);
	assert_int_equal(headroom(), 1500000);
	put_v2("/a", "max\n", "0\n", "");
	headroom_init(HEADROOM_RESERVE_DEFAULT);
	assert_int_equal(headroom(), 8 * GIB - 512 * MIB);
}

static void what_is_not_told_to_be_available_is_not(void **state)
{
	(void)state;
	put(MEMINFO, "MemTotal:       1048576 kB\nMemFree:    524288 kB\n");
	assert_int_equal(headroom(), 0);
}

static void a_cgroup_of_either_generation_limits(void **state)
{
	(void)state;
	put(CGROUP, "0::/a\n");
	put_v2("/a", "1073741824\n", "73741824\n", "anon 1\n");
	assert_int_equal(headroom(), 1000000000);
	put(CGROUP, "5:devices:/b\n4:memory:/b\n1:name=systemd:/c\n");
	put_v1("/memory/b", "2073741824\n", "73741824\n", "cache 1\n");
	assert_int_equal(headroom(), 2000000000);
	put(CGROUP, "3:cpu,memory:/b\n");
	assert_int_equal(headroom(), 2000000000);
}

static void in_a_mixed_hierarchy_the_least_counts(void **state)
{
	(void)state;
	put(CGROUP, "4:memory:/a\n0::/a\n");
	put_v1("/memory/a", "2000000000\n", "0\n", "");
	put_v2("/unified/a", "1000000000\n", "0\n", "");
	assert_int_equal(headroom(), 1000000000);
	put_v2("/unified/a", "3000000000\n", "0\n", "");
	assert_int_equal(headroom(), 2000000000);
}

static void every_ancestor_limits(void **state)
{
	static const char *const least[] = {"/a/b/c", "/a/b", "/a", ""};

	(void)state;
	put(CGROUP, "0::/a/b/c\n");
	for (size_t i = 0; i < ARRAY_LEN(least); i++) {
		put_v2("/a/b/c", "4000000000\n", "0\n", "");
		put_v2("/a/b", "4000000001\n", "0\n", "");
		put_v2("/a", "4000000002\n", "0\n", "");
		put_v2("", "4000000003\n", "0\n", "");
		put_v2(least[i], "70\n", "1\n", "");
		assert_int_equal(headroom(), 69);
	}
}

static void max_is_no_limit(void **state)
{
	(void)state;
	put(CGROUP, "0::/a/b\n4:memory:/a\n");
	put_v2("/a", "max\n", "73741824\n", "");
	put_v2("/a/b", "max\n", "73741824\n", "");
	put_v1("/memory/a", V1_MAX, "73741824\n", "");
	assert_int_equal(headroom(), 8 * GIB);
}

static void page_cache_of_the_cgroup_can_be_dropped(void **state)
{
	(void)state;
	put(CGROUP, "0::/a\n");
	put_v2("/a", "1000\n", "900\n",
	       "anon 500\nfile 300\nslab_inactive_file 7\ninactive_file 200\nactive_file 100\n");
	assert_int_equal(headroom(), 400);
	put(CGROUP, "4:memory:/b\n");
	put_v1("/memory/b", "1000\n", "900\n",
	       "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 200\n");
	assert_int_equal(headroom(), 600);
}

static void a_cgroup_with_more_cache_than_use_is_empty(void **state)
{
	(void)state;
	put(CGROUP, "0::/a\n");
	put_v2("/a", "1000\n", "900\n", "inactive_file 901\n");
	assert_int_equal(headroom(), 1000);
}

static void a_cgroup_over_its_limit_has_none(void **state)
{
	(void)state;
	put(CGROUP, "0::/a\n");
	put_v2("/a", "1000\n", "1001\n", "");
	assert_int_equal(headroom(), 0);
	put_v2("/a", "0\n", "0\n", "");
	assert_int_equal(headroom(), 0);
}

static void without_statistics_all_of_the_use_counts(void **state)
{
	(void)state;
	put(CGROUP, "0::/a\n");
	put_v2("/a", "1000\n", "900\n", NULL);
	assert_int_equal(headroom(), 100);
}

static void what_cannot_be_read_does_not_limit(void **state)
{
	(void)state;
	put(CGROUP, "0::/only/on/the/host\n4:memory\nnonsense\n::\n\n");
	assert_int_equal(headroom(), 8 * GIB);
	put_v2("/only/on/the", "1000\n", NULL, "");
	assert_int_equal(headroom(), 8 * GIB);
	put_v2("/only/on/the", "\n", "1\n", "");
	assert_int_equal(headroom(), 8 * GIB);
	put_v2("", "1000\n", "1\n", ""); /* the root of a container */
	assert_int_equal(headroom(), 999);
}

static void a_cgroup_with_a_path_that_is_too_long_does_not_limit(void **state)
{
	char text[6000] = "0::/";

	(void)state;
	memset(text + strlen(text), 'a', sizeof(text) - strlen(text) - 1);
	put(CGROUP, text);
	assert_int_equal(headroom(), 8 * GIB);
}

static void without_meminfo_there_is_no_answer(void **state)
{
	uint64_t got = 77;
	int r;

	(void)state;
	assert_int_equal(mount("none", "/proc", "tmpfs", 0, NULL), 0);
	r = headroom_bytes(&got);
	assert_int_equal(umount("/proc"), 0);
	assert_int_equal(r, -ENOENT);
	assert_int_equal(got, 77);
}

#define FAKED(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest here[] = {
		cmocka_unit_test(there_is_some_headroom_and_less_than_the_memory),
		cmocka_unit_test(what_is_reserved_is_not_headroom),
	};
	const struct CMUnitTest elsewhere[] = {
		FAKED(without_cgroups_what_is_available_counts),
		FAKED(the_reserve_is_taken_off),
		FAKED(the_reserve_is_a_sixteenth_and_512_mib_at_most),
		FAKED(a_cgroup_with_little_memory_keeps_a_small_reserve),
		FAKED(what_is_not_told_to_be_available_is_not),
		FAKED(a_cgroup_of_either_generation_limits),
		FAKED(in_a_mixed_hierarchy_the_least_counts),
		FAKED(every_ancestor_limits),
		FAKED(max_is_no_limit),
		FAKED(page_cache_of_the_cgroup_can_be_dropped),
		FAKED(a_cgroup_with_more_cache_than_use_is_empty),
		FAKED(a_cgroup_over_its_limit_has_none),
		FAKED(without_statistics_all_of_the_use_counts),
		FAKED(what_cannot_be_read_does_not_limit),
		FAKED(a_cgroup_with_a_path_that_is_too_long_does_not_limit),
		FAKED(without_meminfo_there_is_no_answer),
	};
	int r = cmocka_run_group_tests(here, NULL, NULL);

	if (r)
		return r;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) < 0) {
		printf("needs root, for a mount namespace with another /proc/meminfo\n");
		return SKIP;
	}
	return cmocka_run_group_tests(elsewhere, NULL, NULL);
}
