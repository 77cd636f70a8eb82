/*
 * Files without room: since when they may have been in use. None of them can be opened; the list of mappings is a
 * stub.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "bpf/probe/probed_file.h"

static const struct library library;
static struct probed_files files;

const struct library *library_named(const char *name)
{
	(void)name;
	return &library;
}

uint16_t site_number(const struct library *of, size_t i)
{
	(void)of;
	return (uint16_t)i;
}

int mappings_look(const struct mappings *mappings, pid_t pid,
		  void (*fn)(void *context, const struct mapping *m), void *context)
{
	(void)mappings;
	(void)pid;
	(void)fn;
	(void)context;
	return 0;
}

static void ignore(void *context, const struct probed_file *file)
{
	(void)context;
	(void)file;
}

static bool add(unsigned number, uint64_t since_ns)
{
	struct mapping m = {.tgid = 1, .inode = number, .ino = number};

	(void)snprintf(m.path, sizeof(m.path), "/no/such/%u", number);
	return probed_files_add(&files, &m, since_ns);
}

static uint64_t since_of(unsigned number)
{
	const struct probed_file *file;

	list_for_each(file, &files.all, link)
		if (file->inode == number)
			return file->since_ns;
	return 0;
}

/* Number 1 and what follows. */
static int fill(void **state)
{
	(void)state;
	probed_files_init(&files, NULL, NULL, ignore, NULL);
	for (unsigned i = 1; i <= PROBED_FILES_PER_USER_MAX; i++)
		assert_true(add(i, 1000));
	return 0;
}

static int empty(void **state)
{
	(void)state;
	probed_files_deinit(&files);
	return 0;
}

static void test_what_was_refused_may_be_in_use_since_then(void **state)
{
	(void)state;
	assert_false(add(100, 3000));
	assert_false(add(101, 2000));
	assert_false(add(102, 4000));
	probed_files_begin_sweep(&files);
	assert_true(add(100, 5000));
	probed_files_end_sweep(&files);
	assert_int_equal(since_of(100), 2000);
	assert_true(add(103, 6000)); /* no file was refused */
	assert_int_equal(since_of(103), 6000);
}

static void test_what_is_refused_in_a_sweep_is_not_forgotten(void **state)
{
	(void)state;
	probed_files_begin_sweep(&files);
	for (unsigned i = 2; i <= PROBED_FILES_PER_USER_MAX + 1; i++)
		assert_true(add(i, 7000)); /* as another process has it mapped meanwhile */
	assert_false(add(1, 7000));
	probed_files_end_sweep(&files);
	assert_int_equal(since_of(2), 1000);
	probed_files_begin_sweep(&files);
	assert_true(add(1, 8000));
	probed_files_end_sweep(&files);
	assert_int_equal(since_of(1), 1000);
}

static void test_what_was_in_use_from_the_beginning_is_so_since_it_was_refused(void **state)
{
	(void)state;
	assert_false(add(100, 0));
	assert_true(files.refused_since_ns > 0);
	probed_files_begin_sweep(&files);
	assert_true(add(100, UINT64_MAX));
	probed_files_end_sweep(&files);
	assert_true(since_of(100) > 0 && since_of(100) < UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_what_was_refused_may_be_in_use_since_then,
						fill, empty),
		cmocka_unit_test_setup_teardown(test_what_is_refused_in_a_sweep_is_not_forgotten,
						fill, empty),
		cmocka_unit_test_setup_teardown(
			test_what_was_in_use_from_the_beginning_is_so_since_it_was_refused, fill,
			empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
