/* Descriptors: what the kernel allows with those that these functions make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define UNTOUCHED (-77)

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void check_cloexec(int fd)
{
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
}

static int memfd(uint64_t size)
{
	int fd = -1;

	assert_int_equal(fd_memfd("test", size, &fd), 0);
	return fd;
}

static void closing_keeps_errno_and_returns_none(void **state)
{
	int fd = memfd(0);

	(void)state;
	errno = ENOENT;
	assert_int_equal(fd_close(fd), -1);
	assert_int_equal(errno, ENOENT);
	assert_false(is_open(fd));
	errno = ENOENT;
	assert_int_equal(fd_close(fd), -1); /* EBADF, to nobody's knowledge */
	assert_int_equal(errno, ENOENT);
	errno = ENOENT;
	assert_int_equal(fd_close(-1), -1);
	assert_int_equal(errno, ENOENT);
}

static void a_memfd_is_a_hole_of_its_size_that_can_be_sealed(void **state)
{
	cleanup(fd_closep) int fd = memfd(3 * MIB + 1);
	uint64_t size = 0;

	(void)state;
	check_cloexec(fd);
	assert_int_equal(fd_size(fd, &size), 0);
	assert_int_equal(size, 3 * MIB + 1);
	assert_false(fd_is_written(fd, size));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
}

static void a_memfd_cannot_be_executed(void **state)
{
	cleanup(fd_closep) int fd = memfd(0);
	struct stat st;

	(void)state;
	assert_int_equal(fstat(fd, &st), 0);
	if (st.st_mode & 0111) {
		print_message("needs MFD_NOEXEC_SEAL, Linux 6.3\n");
		skip();
	}
	assert_int_equal(fchmod(fd, 0700), -1);
	assert_int_equal(errno, EPERM);
}

static void a_memfd_past_what_a_file_can_be_is_refused(void **state)
{
	int fd = UNTOUCHED;

	(void)state;
	assert_int_equal(fd_memfd("test", (uint64_t)INT64_MAX + 1, &fd), -EFBIG);
	assert_int_equal(fd_memfd("test", UINT64_MAX, &fd), -EFBIG);
	assert_int_equal(fd, UNTOUCHED);
}

static void a_memfd_without_free_descriptors_is_refused(void **state)
{
	struct rlimit old, none;
	int fd = UNTOUCHED, r;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	none = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	r = fd_memfd("test", 0, &fd);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_int_equal(r, -EMFILE);
	assert_int_equal(fd, UNTOUCHED);
}

static void all_that_there_is_is_read_and_no_more_than_there_is_room_for(void **state)
{
	char text[16] = "";
	uint64_t size = 7;
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(fd_write_all(fds[1], "one", 3), 0);
	assert_int_equal(fd_write_all(fds[1], "more", 4), 0);
	assert_int_equal(fd_read_all(fds[0], text, 5, &size), 0);
	assert_int_equal(size, 5);
	assert_string_equal(text, "onemo");
	assert_int_equal(close(fds[1]), 0);
	assert_int_equal(fd_read_all(fds[0], text, sizeof(text), &size), 0);
	assert_int_equal(size, 2);
	assert_memory_equal(text, "re", 2);
	assert_int_equal(close(fds[0]), 0);
	assert_int_equal(fd_read_all(fds[0], text, sizeof(text), &size), -EBADF);
	assert_int_equal(size, 2);
}

static void a_sealed_copy_has_the_bytes_and_nobody_can_change_them(void **state)
{
	static const char text[] = "weights";
	cleanup(fd_closep) int fd = -1;
	char got[sizeof(text) + 1];

	(void)state;
	assert_int_equal(fd_sealed_copy("test", text, sizeof(text), &fd), 0);
	check_cloexec(fd);
	assert_int_equal(pread(fd, got, sizeof(got), 0), sizeof(text));
	assert_memory_equal(got, text, sizeof(text));
	assert_true(fd_is_sealed(fd));
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EBADF);
	assert_ptr_equal(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
}

static void a_sealed_copy_opened_for_writing_still_refuses(void **state)
{
	cleanup(fd_closep) int fd = -1;
	cleanup(fd_closep) int writable = -1;
	char path[40];

	(void)state;
	assert_int_equal(fd_sealed_copy("test", "weights", 7, &fd), 0);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	writable = open(path, O_RDWR | O_CLOEXEC);
	assert_true(writable >= 0);
	assert_int_equal(pwrite(writable, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(writable, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(writable, 100), -1);
	assert_int_equal(errno, EPERM);
}

static void a_sealed_copy_of_megabytes_is_whole(void **state)
{
	const size_t n = 5 * MIB + 17;
	cleanup(freep) char *data = malloc(n);
	cleanup(freep) char *got = malloc(n);
	cleanup(fd_closep) int fd = -1;
	uint64_t size;

	(void)state;
	assert_non_null(data);
	assert_non_null(got);
	for (size_t i = 0; i < n; i++)
		data[i] = (char)(i * 7919 >> 5);
	assert_int_equal(fd_sealed_copy("test", data, n, &fd), 0);
	assert_int_equal(fd_size(fd, &size), 0);
	assert_int_equal(size, n);
	assert_true(fd_is_written(fd, n));
	assert_int_equal(pread(fd, got, n, 0), n);
	assert_memory_equal(got, data, n);
}

static void an_empty_sealed_copy_is_possible(void **state)
{
	cleanup(fd_closep) int fd = -1;
	uint64_t size = 1;

	(void)state;
	assert_int_equal(fd_sealed_copy("test", NULL, 0, &fd), 0);
	assert_int_equal(fd_size(fd, &size), 0);
	assert_int_equal(size, 0);
	assert_true(fd_is_sealed(fd));
}

static void sealed_means_no_write_no_shrink_and_no_growth(void **state)
{
	static const int one_short[] = {
		0,
		F_SEAL_SHRINK | F_SEAL_GROW,
		F_SEAL_WRITE | F_SEAL_GROW,
		F_SEAL_WRITE | F_SEAL_SHRINK,
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(one_short); i++) {
		cleanup(fd_closep) int fd = memfd(0);

		assert_int_equal(fcntl(fd, F_ADD_SEALS, one_short[i]), 0);
		assert_false(fd_is_sealed(fd));
		assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
				 0);
		assert_true(fd_is_sealed(fd));
	}
}

static void only_memfds_are_sealed(void **state)
{
	cleanup(fd_closep) int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup(fd_closep) int device = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int fds[2];

	(void)state;
	assert_false(fd_is_sealed(directory));
	assert_false(fd_is_sealed(device));
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_false(fd_is_sealed(fds[0]));
	fd_close(fds[0]);
	fd_close(fds[1]);
	assert_false(fd_is_sealed(fds[0]));
}

static void a_descriptor_reopened_readonly_cannot_write(void **state)
{
	cleanup(fd_closep) int fd = memfd(4096);
	cleanup(fd_closep) int reader = -1;

	(void)state;
	assert_int_equal(fd_reopen_readonly(fd, &reader), 0);
	check_cloexec(reader);
	assert_int_equal(fcntl(reader, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0),
			 MAP_FAILED);
	assert_int_equal(errno, EACCES);
}

static void reopening_none_is_refused(void **state)
{
	int reader = UNTOUCHED;

	(void)state;
	assert_int_equal(fd_reopen_readonly(-1, &reader), -ENOENT);
	assert_int_equal(reader, UNTOUCHED);
}

static void a_hole_anywhere_is_not_written(void **state)
{
	static const off_t places[] = {0, 4096, MIB - 4096};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		cleanup(fd_closep) int fd = memfd(MIB);

		assert_false(fd_is_written(fd, MIB));
		assert_int_equal(fallocate(fd, 0, 0, MIB), 0);
		assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					   places[i], 4096),
				 0);
		assert_false(fd_is_written(fd, MIB));
	}
}

static void blocks_behind_the_end_do_not_make_up_for_a_hole(void **state)
{
	cleanup(fd_closep) int fd = memfd(8192);

	(void)state;
	assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, MIB), 0);
	assert_int_equal(pwrite(fd, "x", 1, 4096), 1);
	assert_false(fd_is_written(fd, 8192));
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	assert_true(fd_is_written(fd, 8192));
}

static void a_lease_on_the_file_is_not_waited_for(void **state)
{
	cleanup(fd_closep) int fd = memfd(4096);
	cleanup(fd_closep) int holder = -1;
	int reader = UNTOUCHED;

	(void)state;
	(void)signal(SIGIO, SIG_IGN); /* tells the holder that somebody wants in */
	assert_int_equal(fd_reopen_readonly(fd, &holder), 0);
	assert_int_equal(fcntl(holder, F_SETLEASE, F_WRLCK), 0);
	assert_int_equal(fd_reopen_readonly(fd, &reader), -EAGAIN);
	assert_int_equal(reader, UNTOUCHED);
	assert_int_equal(fcntl(holder, F_SETLEASE, F_UNLCK), 0);
	assert_int_equal(fd_reopen_readonly(fd, &reader), 0);
	fd_close(reader);
}

static void only_files_have_a_size(void **state)
{
	cleanup(fd_closep) int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup(fd_closep) int device = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uint64_t size = 77;
	int fds[2];

	(void)state;
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(fd_size(directory, &size), -EBADF);
	assert_int_equal(fd_size(device, &size), -EBADF);
	assert_int_equal(fd_size(fds[0], &size), -EBADF);
	fd_close(fds[0]);
	fd_close(fds[1]);
	assert_int_equal(fd_size(fds[0], &size), -EBADF);
	assert_int_equal(size, 77);
}

static void what_is_taken_is_not_closed(void **state)
{
	int given;

	(void)state;
	{
		cleanup(fd_closep) int fd = memfd(0);

		given = take_fd(fd);
		assert_int_equal(fd, -1);
	}
	assert_true(is_open(given));
	{
		cleanup(fd_closep) int fd = given;

		assert_true(is_open(fd));
	}
	assert_false(is_open(given));
}

/* A memfd as host memory is: known by a read-only descriptor, `ret_writer` the only one that can write. */
static int probe_of(int *ret_writer)
{
	int fd = memfd(4096), probe = -1;

	assert_int_equal(fd_reopen_writable(fd, ret_writer), 0);
	assert_int_equal(fd_reopen_readonly(fd, &probe), 0);
	(void)fd_close(fd);
	return probe;
}

static mode_t mode_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_mode & 0777;
}

static void a_descriptor_reopened_writable_writes_and_leaves_the_file_unwritable(void **state)
{
	cleanup(fd_closep) int writer = -1, probe = probe_of(&writer);

	(void)state;
	check_cloexec(writer);
	assert_int_equal(pwrite(writer, "x", 1, 0), 1);
	assert_int_equal(mode_of(probe), 0400);
}

static void the_only_one_who_has_it_open_is_told_so(void **state)
{
	cleanup(fd_closep) int writer = -1, probe = probe_of(&writer);
	cleanup(fd_closep) int reader = -1;

	(void)state;
	assert_int_equal(fd_is_open_elsewhere(probe), 1);
	assert_int_equal(fd_is_open_for_writing(probe), 1);
	writer = fd_close(writer);
	assert_int_equal(fd_is_open_elsewhere(probe), 0);
	assert_int_equal(fd_is_open_for_writing(probe), 0);
	assert_int_equal(fd_reopen_readonly(probe, &reader), 0);
	assert_int_equal(fd_is_open_elsewhere(probe), 1);
	assert_int_equal(fd_is_open_for_writing(probe), 0);
	reader = fd_close(reader);
	assert_int_equal(fd_is_open_elsewhere(probe), 0); /* and no lease is left of the asking */
}

static void a_mapping_has_it_open_too(void **state)
{
	static const int prots[] = {PROT_READ, PROT_READ | PROT_WRITE};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(prots); i++) {
		cleanup(fd_closep) int writer = -1, probe = probe_of(&writer);
		void *p = mmap(NULL, 4096, prots[i], MAP_SHARED, writer, 0);

		assert_true(p != MAP_FAILED);
		writer = fd_close(writer);
		assert_int_equal(fd_is_open_elsewhere(probe), 1);
		assert_int_equal(fd_is_open_for_writing(probe),
				 1); /* the descriptor could, whatever the mapping */
		assert_int_equal(munmap(p, 4096), 0);
		assert_int_equal(fd_is_open_elsewhere(probe), 0);
	}
}

/* Why host memory is opened anew before anybody gets it. */
static void the_kernel_does_not_count_what_memfd_create_returns(void **state)
{
	cleanup(fd_closep) int fd = memfd(4096), probe = -1;

	(void)state;
	assert_int_equal(fd_reopen_readonly(fd, &probe), 0);
	assert_int_equal(fd_is_open_elsewhere(probe), 0);
	assert_int_equal(fd_is_open_for_writing(probe), 0);
}

static void what_is_no_file_cannot_tell(void **state)
{
	int ends[2];

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_true(fd_is_open_elsewhere(ends[0]) < 0);
	(void)fd_close(ends[0]);
	(void)fd_close(ends[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(closing_keeps_errno_and_returns_none),
		cmocka_unit_test(a_memfd_is_a_hole_of_its_size_that_can_be_sealed),
		cmocka_unit_test(a_memfd_cannot_be_executed),
		cmocka_unit_test(a_memfd_past_what_a_file_can_be_is_refused),
		cmocka_unit_test(a_memfd_without_free_descriptors_is_refused),
		cmocka_unit_test(all_that_there_is_is_read_and_no_more_than_there_is_room_for),
		cmocka_unit_test(a_sealed_copy_has_the_bytes_and_nobody_can_change_them),
		cmocka_unit_test(a_sealed_copy_opened_for_writing_still_refuses),
		cmocka_unit_test(a_sealed_copy_of_megabytes_is_whole),
		cmocka_unit_test(an_empty_sealed_copy_is_possible),
		cmocka_unit_test(sealed_means_no_write_no_shrink_and_no_growth),
		cmocka_unit_test(only_memfds_are_sealed),
		cmocka_unit_test(a_descriptor_reopened_readonly_cannot_write),
		cmocka_unit_test(reopening_none_is_refused),
		cmocka_unit_test(a_hole_anywhere_is_not_written),
		cmocka_unit_test(blocks_behind_the_end_do_not_make_up_for_a_hole),
		cmocka_unit_test(a_lease_on_the_file_is_not_waited_for),
		cmocka_unit_test(only_files_have_a_size),
		cmocka_unit_test(what_is_taken_is_not_closed),
		cmocka_unit_test(
			a_descriptor_reopened_writable_writes_and_leaves_the_file_unwritable),
		cmocka_unit_test(the_only_one_who_has_it_open_is_told_so),
		cmocka_unit_test(a_mapping_has_it_open_too),
		cmocka_unit_test(the_kernel_does_not_count_what_memfd_create_returns),
		cmocka_unit_test(what_is_no_file_cannot_tell),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
