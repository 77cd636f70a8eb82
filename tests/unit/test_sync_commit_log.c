/* The record of a node: its content after a crash at any byte, damage, and a full disk. */
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/commit_log.h"

#define N 4 /* pieces of most records here */
#define BIG_TEXT (15 << 10)

static char folder[64];
static bool disk_fails;

/* Replaces the C library's. */
int fdatasync(int fd)
{
	errno = EIO;
	return disk_fails ? -1 : fsync(fd);
}

static void path_of(const char *name, char ret[128])
{
	snprintf(ret, 128, "%s/%s", folder, name);
}

static int set_up(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "/tmp/weightd-record-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
	static const char *const NAMES[] = {"record", "record.new"};
	char path[128];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		path_of(NAMES[i], path);
		(void)unlink(path);
	}
	return rmdir(folder);
}

static int save(struct commit_log *r, unsigned number, const char *text, bool is_all)
{
	cleanup(json_freep) json_t *piece = json_pack("{s:i, s:s}", "number", number, "text", text);

	return commit_log_save(r, piece, is_all);
}

/* -errno of commit_log_load(); else the number of pieces, which are the first ones. */
static int load(struct commit_log *r)
{
	cleanup(json_freep) json_t *pieces = NULL;
	json_t *piece;
	char why[WHY_SIZE];
	int res;
	size_t i;

	*r = (struct commit_log){.folder = folder};
	res = commit_log_load(r, &pieces, why);
	if (res < 0)
		return res;
	json_array_foreach(pieces, i, piece)
		assert_int_equal(json_integer_value(json_object_get(piece, "number")), i);
	return (int)json_array_size(pieces);
}

/* Writes N pieces; `ends` is the end of each. */
static void write_pieces(struct commit_log *r, size_t ends[N])
{
	*r = (struct commit_log){.folder = folder};
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(save(r, i, "a line\nand another", i == 0), 0);
		ends[i] = r->size;
	}
}

static size_t read_file(char *ret, size_t size)
{
	char path[128];
	uint64_t n;
	int fd;

	path_of("record", path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fd_read_all(fd, ret, size, &n), 0);
	close(fd);
	return n;
}

static void write_file(const char *data, size_t size)
{
	char path[128];
	int fd;

	path_of("record", path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, data, size), 0);
	close(fd);
}

static void test_what_was_written_is_there(void **state)
{
	struct commit_log r, again;
	size_t ends[N];

	(void)state;
	assert_int_equal(load(&r), 0);
	assert_int_equal(save(&r, 0, "", false), SAVE_ALL);
	write_pieces(&r, ends);
	assert_int_equal(load(&again), N);
	assert_int_equal(again.size, ends[N - 1]);
	assert_int_equal(again.size_max, r.size_max);
	assert_int_equal(again.n_torn, 0);
	assert_int_equal(save(&again, N, "", false), 0);
	assert_int_equal(save(&again, 0, "", true), 0);
	assert_int_equal(load(&r), 1);
}

static void test_a_record_that_ends_anywhere_has_what_is_whole(void **state)
{
	char data[1024];
	struct commit_log r;
	size_t ends[N], size;

	(void)state;
	write_pieces(&r, ends);
	size = read_file(data, sizeof(data));
	assert_int_equal(size, ends[N - 1]);
	for (size_t end = 0; end <= size; end++) {
		int n = 0;

		while (n < N && ends[n] <= end)
			n++;
		write_file(data, end);
		assert_int_equal(load(&r), n ? n : -EBADMSG);
		if (!n)
			continue;
		assert_int_equal(r.size, ends[n - 1]);
		assert_int_equal(r.n_torn, end - ends[n - 1]);
		/* No piece is written after a torn one. */
		assert_int_equal(save(&r, (unsigned)n, "", false), r.n_torn ? SAVE_ALL : 0);
		if (r.n_torn)
			assert_int_equal(save(&r, 0, "", true), 0);
		assert_int_equal(load(&r), r.n_torn ? 1 : n + 1);
	}
}

/* A loaded piece is never different, and only the last one may be missing. */
static void test_damage_is_not_taken_for_what_was_written(void **state)
{
	char data[1024];
	struct commit_log r;
	size_t ends[N], size;

	(void)state;
	write_pieces(&r, ends);
	size = read_file(data, sizeof(data));
	for (size_t i = 0; i < size; i++) {
		bool is_in_last = i >= ends[N - 2] - 1;

		data[i] ^= 1;
		write_file(data, size);
		data[i] ^= 1;
		if (!is_in_last)
			assert_int_equal(load(&r), -EBADMSG);
		else
			assert_int_equal(load(&r), i < ends[N - 2] ? N - 2 : N - 1);
	}
}

/* The kernel kills it in the middle of a write, at `size` bytes of the file. */
static void die_in_a_save(struct commit_log r, size_t size, unsigned number, bool is_all)
{
	struct rlimit limit = {.rlim_cur = size, .rlim_max = size};
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		(void)signal(SIGXFSZ, SIG_DFL);
		(void)setrlimit(RLIMIT_FSIZE, &limit);
		(void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
		_exit(save(&r, number, "", is_all) == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGXFSZ : WEXITSTATUS(status) == 0);
}

static void test_a_death_in_the_middle_of_a_write_costs_only_what_it_wrote(void **state)
{
	struct commit_log r, after;
	size_t ends[N], size;

	(void)state;
	write_pieces(&r, ends);
	assert_int_equal(save(&r, N, "", false), 0);
	size = r.size - ends[N - 1];
	for (size_t end = 0; end <= size; end++) {
		write_pieces(&r, ends);
		die_in_a_save(r, ends[N - 1] + end, N, false);
		assert_int_equal(load(&after), end < size ? N : N + 1);
		assert_int_equal(after.n_torn, end < size ? end : 0);
	}
}

static void test_a_death_while_all_is_written_anew_leaves_what_was_there(void **state)
{
	struct commit_log r, after;
	size_t ends[N], size;

	(void)state;
	r = (struct commit_log){.folder = folder};
	assert_int_equal(save(&r, 0, "", true), 0);
	size = r.size;
	for (size_t end = 0; end <= size; end++) {
		write_pieces(&r, ends);
		die_in_a_save(r, end, 0, true);
		assert_int_equal(load(&after), end < size ? N : 1);
		assert_int_equal(after.n_torn, 0);
	}
}

/* The same as a full disk: a partial write is undone, and repeated as soon as there is room. */
static void test_what_cannot_be_written_leaves_nothing(void **state)
{
	struct rlimit limit, before;
	struct commit_log r, after;
	size_t ends[N];

	(void)state;
	write_pieces(&r, ends);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	(void)signal(SIGXFSZ, SIG_IGN);
	for (size_t more = 0; more < 40; more++) {
		limit = (struct rlimit){.rlim_cur = ends[N - 1] + more, .rlim_max = before.rlim_max};
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
		assert_int_equal(save(&r, N, "", false), -EFBIG);
		limit.rlim_cur = more;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
		after = r;
		assert_int_equal(save(&after, 0, "", true), -EFBIG);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		assert_int_equal(load(&after), N);
		assert_int_equal(after.n_torn, 0);
	}
	(void)signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(save(&r, N, "", false), 0);
	assert_int_equal(load(&after), N + 1);
}

/* The kernel drops the data that it failed to write, and reports the error once. */
static void test_after_a_failure_of_the_disk_another_file_is_written(void **state)
{
	struct commit_log r, after;
	size_t ends[N];

	(void)state;
	write_pieces(&r, ends);
	disk_fails = true;
	assert_int_equal(save(&r, N, "", false), -EIO);
	disk_fails = false;
	assert_int_equal(load(&after), N);
	assert_int_equal(save(&r, N, "", false), SAVE_ALL);
	assert_int_equal(save(&r, 0, "", true), 0);
	assert_int_equal(save(&r, 1, "", false), 0);
	assert_int_equal(load(&after), 2);
}

/* Otherwise all bytes of a version would arrive, and could not be committed. */
static void test_where_all_has_to_be_written_there_has_to_be_room_for_all(void **state)
{
	char *text = calloc(1, 5 * BIG_TEXT + 1), data[8 * BIG_TEXT], why[WHY_SIZE];
	struct commit_log r = {.folder = folder};
	struct rlimit limit, before;
	size_t size;

	(void)state;
	assert_non_null(text);
	memset(text, 'x', 5 * BIG_TEXT);
	assert_int_equal(save(&r, 0, text, true), 0);
	assert_int_equal(save(&r, 1, "", false), 0);
	size = read_file(data, sizeof(data));
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	(void)signal(SIGXFSZ, SIG_IGN);
	limit = (struct rlimit){.rlim_cur = size, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(commit_log_may_save(&r, why), 0); /* another piece is small */
	limit.rlim_cur = size / 2;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(save(&r, 0, text, true), -EFBIG);
	assert_int_equal(commit_log_may_save(&r, why), -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	write_file(data, size - 1);
	assert_int_equal(load(&r), 1);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(commit_log_may_save(&r, why), -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	(void)signal(SIGXFSZ, SIG_DFL);
	free(text);
}

/* The limit is twice the size of all, and at least the minimum of small records. */
static void test_a_record_that_grew_is_written_anew(void **state)
{
	char *text = calloc(1, BIG_TEXT + 1);
	struct commit_log r = {.folder = folder}, again;
	unsigned n = 1;

	(void)state;
	assert_non_null(text);
	memset(text, 'x', BIG_TEXT);
	assert_int_equal(save(&r, 0, "", true), 0);
	while (save(&r, n, text, false) == 0)
		n++;
	assert_int_equal(n, 5); /* 64 KiB */
	assert_int_equal(load(&again), 5);
	assert_int_equal(save(&again, n, text, false), SAVE_ALL);
	text = realloc(text, 5 * BIG_TEXT + 1);
	assert_non_null(text);
	memset(text, 'x', 5 * BIG_TEXT);
	text[5 * BIG_TEXT] = '\0';
	assert_int_equal(save(&r, 0, text, true), 0);
	text[BIG_TEXT] = '\0';
	for (n = 1; save(&r, n, text, false) == 0;)
		n++;
	assert_int_equal(n, 5); /* as much again */
	free(text);
}

static void test_a_record_that_somebody_took_away_or_changed_is_written_anew(void **state)
{
	char path[128], other[128], data[1024];
	struct commit_log r;
	size_t ends[N], size;

	(void)state;
	path_of("record", path);
	path_of("record.new", other);
	write_pieces(&r, ends);
	size = read_file(data, sizeof(data));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(save(&r, N, "", false), SAVE_ALL);
	write_file(data, size - 1);
	assert_int_equal(save(&r, N, "", false), SAVE_ALL);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(symlink("record.new", path), 0);
	assert_int_equal(save(&r, N, "", false), SAVE_ALL);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(save(&r, N, "", false), SAVE_ALL);
	assert_int_equal(save(&r, 0, "", true), 0);
	assert_int_equal(load(&r), 1);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_what_was_written_is_there),
		TEST(test_a_record_that_ends_anywhere_has_what_is_whole),
		TEST(test_damage_is_not_taken_for_what_was_written),
		TEST(test_a_death_in_the_middle_of_a_write_costs_only_what_it_wrote),
		TEST(test_a_death_while_all_is_written_anew_leaves_what_was_there),
		TEST(test_what_cannot_be_written_leaves_nothing),
		TEST(test_after_a_failure_of_the_disk_another_file_is_written),
		TEST(test_where_all_has_to_be_written_there_has_to_be_room_for_all),
		TEST(test_a_record_that_grew_is_written_anew),
		TEST(test_a_record_that_somebody_took_away_or_changed_is_written_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
