/* The window on layouts: what of them is resident, as the kernel counts it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/memory/layout_window.h"

#define SIZE (160 * MIB - 4096) /* the last block is a part */
#define PAGE 4096u

static struct layout_window window;
static int owners[2];

/* Resident pages of shared memory of this process, in bytes. */
static uint64_t resident(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	uint64_t kib = 0;
	bool found = false;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f) && !found)
		found = sscanf(line, "RssShmem: %" SCNu64, &kib) == 1;
	(void)fclose(f);
	assert_true(found);
	return kib * KIB;
}

/* Each page has its number in it. */
static int image_fd(void)
{
	char *bytes;
	int fd = -1;

	assert_int_equal(fd_memfd("window", SIZE, &fd), 0);
	bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(bytes, MAP_FAILED);
	for (uint64_t at = 0; at < SIZE; at += PAGE)
		memcpy(bytes + at, &at, sizeof(at));
	assert_int_equal(munmap(bytes, SIZE), 0);
	return fd;
}

static void read_page(uint64_t at)
{
	uint64_t found;

	(void)layout_window_touch(&window, window.image + at, sizeof(found));
	memcpy(&found, window.image + at, sizeof(found));
	assert_int_equal(found, at);
}

static void no_more_than_the_window_is_resident(void **state)
{
	cleanup(fd_closep) int fd = image_fd();
	uint64_t before, most = 0;

	(void)state;
	before = resident();
	assert_int_equal(layout_window_map(&window, &owners[0], fd, SIZE), 1);
	for (uint64_t at = 0; at < SIZE; at += PAGE) {
		read_page(at);
		most = at % MIB == 0 && resident() > most ? resident() : most;
	}
	for (uint64_t i = 0; i < SIZE / PAGE; i++) {
		read_page(i * 7919 % (SIZE / PAGE) * PAGE);
		most = i % 64 == 0 && resident() > most ? resident() : most;
	}
	layout_window_unmap(&window, &owners[0]);
	assert_in_range(most, before + LAYOUT_WINDOW_SIZE - LAYOUT_BLOCK_SIZE,
			before + LAYOUT_WINDOW_SIZE);
	assert_int_equal(resident(), before);
}

static void bytes_on_both_sides_of_a_blocks_end_are_both_there(void **state)
{
	cleanup(fd_closep) int fd = image_fd();
	uint64_t end;

	(void)state;
	assert_int_equal(layout_window_map(&window, &owners[0], fd, SIZE), 1);
	end = LAYOUT_BLOCK_SIZE - (uintptr_t)window.image % LAYOUT_BLOCK_SIZE;
	assert_true(layout_window_touch(&window, window.image + end - 1, 2));
	assert_false(layout_window_touch(&window, window.image + end - 1, 1));
	assert_false(layout_window_touch(&window, window.image + end, 1));
	assert_true(layout_window_touch(&window, window.image + SIZE - 1, 1));
	layout_window_unmap(&window, &owners[0]);
}

static void a_copy_makes_nothing_resident(void **state)
{
	cleanup(fd_closep) int fd = image_fd();
	uint64_t before = resident();
	char beyond[2];

	(void)state;
	assert_int_equal(layout_window_map(&window, &owners[0], fd, SIZE), 1);
	for (uint64_t i = 0; i < SIZE / PAGE; i++) {
		uint64_t at = i * 7919 % (SIZE / PAGE) * PAGE, found = 0;

		assert_true(layout_window_copy(&window, window.image + at, sizeof(found), &found));
		assert_int_equal(found, at);
	}
	assert_int_equal(resident(), before);
	assert_false(layout_window_copy(&window, window.image + SIZE - 1, sizeof(beyond), beyond));
	layout_window_unmap(&window, &owners[0]);
}

static void one_layout_is_mapped_at_a_time(void **state)
{
	cleanup(fd_closep) int first = image_fd();
	cleanup(fd_closep) int second = image_fd();
	uint64_t before = resident();

	(void)state;
	assert_int_equal(layout_window_map(&window, &owners[0], first, SIZE), 1);
	read_page(0);
	assert_int_equal(layout_window_map(&window, &owners[0], first, SIZE), 0);
	assert_int_equal(layout_window_map(&window, &owners[1], second, SIZE), 1);
	assert_int_equal(resident(), before);
	read_page(PAGE);
	layout_window_unmap(&window,
			    &owners[0]); /* was unmapped before, and does nothing to the other */
	read_page(PAGE);
	assert_int_equal(layout_window_map(&window, &owners[0], first, SIZE), 1);
	read_page(0);
	layout_window_unmap(&window, &owners[0]);
	layout_window_unmap(&window, &owners[0]);
	assert_int_equal(resident(), before);
}

static void what_cannot_be_mapped_leaves_nothing_mapped(void **state)
{
	cleanup(fd_closep) int fd = image_fd();

	(void)state;
	assert_int_equal(layout_window_map(&window, &owners[0], fd, SIZE), 1);
	assert_int_equal(layout_window_map(&window, &owners[1], -1, SIZE), -EBADF);
	assert_null(window.owner);
	assert_int_equal(layout_window_map(&window, &owners[0], fd, SIZE), 1);
	layout_window_unmap(&window, &owners[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_more_than_the_window_is_resident),
		cmocka_unit_test(bytes_on_both_sides_of_a_blocks_end_are_both_there),
		cmocka_unit_test(a_copy_makes_nothing_resident),
		cmocka_unit_test(one_layout_is_mapped_at_a_time),
		cmocka_unit_test(what_cannot_be_mapped_leaves_nothing_mapped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
