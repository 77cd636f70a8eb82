/* Directories of models: entries that stay inside, protection, locks, and what killed holders leave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/directory/model_place.h"
#include "libclient/directory/tree.h"

struct scene {
	char top[64]; /* a folder of this test's own, $XDG_RUNTIME_DIR */
	struct sentence sentence;
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	(void)strcpy(s->top, "/tmp/weightd-unit-XXXXXX");
	assert_non_null(mkdtemp(s->top));
	assert_int_equal(setenv("XDG_RUNTIME_DIR", s->top, 1), 0);
	*state = s;
	return 0;
}

static int open_folder(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static int tear_down(void **state)
{
	struct scene *s = *state;
	cleanup(fd_closep) int fd = open_folder(s->top);

	assert_int_equal(tree_clear(fd), 0);
	assert_int_equal(rmdir(s->top), 0);
	free(s);
	return 0;
}

static char *below(const struct scene *s, const char *name)
{
	char *path;

	assert_true(asprintf(&path, "%s/%s", s->top, name) > 0);
	return path;
}

static bool exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

static void paths_that_leave_the_directory_are_refused(void **state)
{
	static const char *const bad[] = {"",   "/",    "/a",     "a/",   "a//b", ".",
					  "..", "../a", "a/../b", "a/..", "./a",  "a/."};
	static const char *const good[] = {"a", "a/b", "...", "a/...", ".a", "..a/b", "a.b"};
	char long_name[300], deep[200];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(tree_takes(bad[i]));
	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_true(tree_takes(good[i]));
	memset(long_name, 'a', sizeof(long_name));
	long_name[256] = '\0';
	assert_false(tree_takes(long_name));
	long_name[255] = '\0';
	assert_true(tree_takes(long_name));
	for (size_t i = 0; i + 1 < sizeof(deep); i++)
		deep[i] = i % 2 ? '/' : 'a';
	deep[199] = '\0';
	assert_false(tree_takes(deep));
}

static void links_in_the_way_are_not_followed(void **state)
{
	const struct scene *s = *state;
	cleanup(freep) char *inside = below(s, "inside"), *outside = below(s, "outside");
	cleanup(freep) char *file = below(s, "outside/b");
	cleanup(fd_closep) int fd = -1;

	assert_int_equal(mkdir(inside, 0700), 0);
	assert_int_equal(mkdir(outside, 0700), 0);
	fd = open_folder(inside);
	assert_int_equal(symlinkat("../outside", fd, "a"), 0);
	assert_int_equal(tree_add_file(fd, "a/b", "x", 1), -ENOTDIR);
	assert_int_equal(tree_add_link(fd, "a/b", "x"), -ENOTDIR);
	assert_int_equal(tree_add_file(fd, "a", "x", 1), -EEXIST);
	assert_false(exists(file));
	assert_int_equal(tree_clear(fd), 0);
	assert_true(exists(outside)); /* the link was removed, and not its target */
}

static void taken_paths_are_refused(void **state)
{
	const struct scene *s = *state;
	cleanup(fd_closep) int fd = open_folder(s->top);

	assert_int_equal(tree_add_file(fd, "a/b", "x", 1), 0);
	assert_int_equal(tree_add_file(fd, "a/b", "x", 1), -EEXIST);
	assert_int_equal(tree_add_link(fd, "a/b", "x"), -EEXIST);
	assert_int_equal(tree_add_file(fd, "a", "x", 1), -EEXIST);
	assert_int_equal(tree_add_file(fd, "a/b/c", "x", 1), -ENOTDIR);
}

/* Immutable also for root, on the file systems that tests run on. */
static void protected_trees_cannot_be_changed(void **state)
{
	const struct scene *s = *state;
	cleanup(fd_closep) int fd = open_folder(s->top);
	char text[8] = "";
	cleanup(fd_closep) int file = -1;

	assert_int_equal(tree_add_file(fd, "a/b", "before", 6), 0);
	assert_int_equal(tree_add_link(fd, "w", "/proc/1/fd/900"), 0);
	assert_false(tree_is_protected(fd));
	assert_true(tree_is_unfinished(fd));
	assert_int_equal(tree_protect(fd, 0555), 0);
	tree_seal(fd);
	assert_true(tree_is_protected(fd));

	assert_int_equal(openat(fd, "new", O_CREAT | O_WRONLY, 0600), -1);
	assert_int_equal(openat(fd, "a/new", O_CREAT | O_WRONLY, 0600), -1);
	assert_int_equal(openat(fd, "a/b", O_WRONLY), -1);
	assert_int_equal(unlinkat(fd, "w", 0), -1);
	assert_int_equal(renameat(fd, "a/b", fd, "w"), -1);
	file = openat(fd, "a/b", O_RDONLY);
	assert_int_equal(read(file, text, sizeof(text)), 6);
	assert_string_equal(text, "before");

	assert_int_equal(tree_clear(fd), 0);
	assert_true(tree_is_empty(fd));
}

static void private_directories_are_locked_and_removed(void **state)
{
	struct scene *s = *state;
	struct model_place p;
	struct stat st;
	cleanup(fd_closep) int other = -1;
	cleanup(freep) char *path = NULL;

	assert_int_equal(model_place_init(&p, NULL, &s->sentence), 0);
	assert_int_equal(strncmp(p.path, s->top, strlen(s->top)), 0);
	assert_int_equal(stat(p.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	other = open_folder(p.path);
	assert_int_equal(flock(other, LOCK_SH | LOCK_NB), -1);
	path = strdup(p.path);
	model_place_deinit(&p);
	assert_false(exists(path));
}

/* A child that is killed with a directory, which it has filled and protected if `finished`. */
static void leave_directory(struct scene *s, const char *path, bool finished)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct model_place p;
		bool made = model_place_init(&p, path, &s->sentence) == 0 &&
			    tree_add_link(p.fd, "w", "/proc/1/fd/900") == 0 &&
			    tree_add_file(p.fd, "d/f", "x", 1) == 0 &&
			    (!finished || model_place_finish(&p, 0500) == 0);

		_exit(made ? 0 : 1); /* model_place_deinit() is not called */
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static unsigned count_entries(const char *folder)
{
	DIR *dir = opendir(folder);
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n - 2;
}

static void leftovers_are_removed_by_the_next_one(void **state)
{
	struct scene *s = *state;
	struct model_place living, p;

	assert_int_equal(model_place_init(&living, NULL, &s->sentence), 0);
	leave_directory(s, NULL, true);
	leave_directory(s, NULL, false);
	assert_int_equal(count_entries(s->top), 2); /* the second one has removed the first */
	assert_int_equal(model_place_init(&p, NULL, &s->sentence), 0);
	assert_int_equal(count_entries(s->top), 2);
	assert_true(exists(living.path) && exists(p.path));
	model_place_deinit(&p);
	model_place_deinit(&living);
	assert_int_equal(count_entries(s->top), 0);
}

/* A directory that a user may have under the name that holders choose. */
static int make_own(const struct scene *s, const char *name, const char *target)
{
	cleanup(freep) char *path = below(s, name);
	int fd;

	assert_int_equal(mkdir(path, 0700), 0);
	fd = open_folder(path);
	assert_int_equal(tree_add_file(fd, "notes", "x", 1), 0);
	if (target)
		assert_int_equal(tree_add_link(fd, "w", target), 0);
	return fd;
}

static void directories_of_the_user_stay(void **state)
{
	struct scene *s = *state;
	cleanup(fd_closep) int plain = make_own(s, "weightd-model-backup", NULL);
	cleanup(fd_closep) int hidden = make_own(s, ".weightd-model-backup", NULL);
	cleanup(fd_closep) int linked = make_own(s, "weightd-model-linked", "/proc/1/fd/900");
	cleanup(fd_closep) int other = make_own(s, ".weightd-model-linked", "/tmp");
	cleanup(fd_closep) int read_only = make_own(s, "weightd-model-frozen", NULL);
	cleanup(freep) char *empty = below(s, "weightd-model-abcdef");
	struct model_place p;

	assert_int_equal(tree_protect(read_only, 0555), 0);
	assert_int_equal(mkdir(empty, 0700), 0);
	assert_int_equal(model_place_init(&p, NULL, &s->sentence), 0);
	model_place_deinit(&p);
	assert_int_equal(count_entries(s->top), 6);
	assert_false(tree_is_empty(plain) || tree_is_empty(hidden) || tree_is_empty(linked) ||
		     tree_is_empty(other) || tree_is_empty(read_only));
}

static void a_program_sees_the_name_of_a_finished_directory(void **state)
{
	struct scene *s = *state;
	cleanup(freep) char *hidden = NULL;
	struct model_place p;
	struct stat st;

	assert_int_equal(model_place_init(&p, NULL, &s->sentence), 0);
	hidden = strdup(p.path);
	assert_non_null(strstr(hidden, "/.weightd-model-"));
	assert_int_equal(tree_add_link(p.fd, "w", "/proc/1/fd/900"), 0);
	assert_int_equal(model_place_finish(&p, 0555), 0);
	assert_false(exists(hidden));
	assert_non_null(strstr(p.path, "/weightd-model-"));
	assert_int_equal(stat(p.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0555);
	assert_int_equal(count_entries(s->top), 1);
	model_place_deinit(&p);
	assert_int_equal(count_entries(s->top), 0);
}

static void given_directories_must_be_empty(void **state)
{
	struct scene *s = *state;
	cleanup(freep) char *path = below(s, "given"), *file = below(s, "given/file");
	cleanup(fd_closep) int fd = -1;
	struct model_place p, second;
	struct stat st;

	assert_int_equal(mkdir(path, 0750), 0);
	assert_int_equal(model_place_init(&p, path, &s->sentence), 0);
	assert_int_equal(tree_add_file(p.fd, "f", "x", 1), 0);
	assert_int_equal(tree_protect(p.fd, 0500), 0);
	assert_int_equal(model_place_init(&second, path, &s->sentence), -EBUSY);
	model_place_deinit(&p);
	assert_int_equal(stat(path, &st), 0); /* it was there before */
	assert_int_equal(st.st_mode & 07777, 0750);
	assert_int_equal(count_entries(path), 0);

	fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(model_place_init(&p, path, &s->sentence), -ENOTEMPTY);
	assert_true(exists(file));
	assert_non_null(strstr(s->sentence.text, "is not empty"));
}

static void leftovers_at_a_given_path_are_taken_over(void **state)
{
	struct scene *s = *state;
	cleanup(freep) char *path = below(s, "given");
	struct model_place p;

	leave_directory(s, path, true);
	assert_int_equal(model_place_init(&p, path, &s->sentence), 0);
	assert_true(tree_is_empty(p.fd));
	model_place_deinit(&p);

	assert_int_equal(rmdir(path), 0);
	leave_directory(s, path, false); /* unfinished: it may be a directory of a user */
	assert_int_equal(model_place_init(&p, path, &s->sentence), -ENOTEMPTY);
}

static void missing_directories_are_made_and_removed(void **state)
{
	struct scene *s = *state;
	cleanup(freep) char *path = below(s, "new"), *impossible = below(s, "none/new");
	struct model_place p;

	assert_int_equal(model_place_init(&p, path, &s->sentence), 0);
	assert_string_equal(p.path, path);
	model_place_deinit(&p);
	assert_false(exists(path));
	assert_int_equal(model_place_init(&p, impossible, &s->sentence), -ENOENT);
	assert_non_null(strstr(s->sentence.text, "none/new"));
}

/* The current directory would be taken for it, if that is empty. */
static void an_empty_path_is_refused(void **state)
{
	struct scene *s = *state;
	struct model_place p;

	assert_int_equal(chdir(s->top), 0);
	assert_int_equal(model_place_init(&p, "", &s->sentence), -ENOENT);
	assert_string_equal(s->sentence.text, "'' is no path of a directory");
	assert_int_equal(chdir("/"), 0);
}

static void a_relative_path_needs_a_current_directory(void **state)
{
	struct scene *s = *state;
	cleanup(freep) char *gone = below(s, "gone");
	struct model_place p;

	assert_int_equal(mkdir(gone, 0700), 0);
	assert_int_equal(chdir(gone), 0);
	assert_int_equal(rmdir(gone), 0);
	assert_int_equal(model_place_init(&p, "new", &s->sentence), -ENOENT);
	assert_string_equal(s->sentence.text,
			    "the current directory cannot be found: No such file or directory");
	assert_int_equal(chdir("/"), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(paths_that_leave_the_directory_are_refused),
		TEST(links_in_the_way_are_not_followed),
		TEST(taken_paths_are_refused),
		TEST(protected_trees_cannot_be_changed),
		TEST(private_directories_are_locked_and_removed),
		TEST(leftovers_are_removed_by_the_next_one),
		TEST(directories_of_the_user_stay),
		TEST(a_program_sees_the_name_of_a_finished_directory),
		TEST(given_directories_must_be_empty),
		TEST(leftovers_at_a_given_path_are_taken_over),
		TEST(missing_directories_are_made_and_removed),
		TEST(an_empty_path_is_refused),
		TEST(a_relative_path_needs_a_current_directory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
