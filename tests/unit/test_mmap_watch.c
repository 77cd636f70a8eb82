/*
 * All ways to watch mappings report the same, and report when they had no room.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bpf/probe/mmap_watch.h"

#define NAMES_MAX 32
#define NAME_SIZE 64
#define FLOOD 5000
#define ATTEMPTS 100
#define PATIENCE_MS 10000

/* The reports of one process. */
struct heard {
	pid_t pid;
	size_t n;
	char names[NAMES_MAX][NAME_SIZE];
};

static char path[] = "/tmp/weightd-arrivals-XXXXXX", *file; /* without its folders */
static int file_fd;

static void skip_for_want_of(const char *feature, const char *what)
{
	const char *required = getenv("WEIGHTD_REQUIRE");

	if (required && strstr(required, feature))
		fail_msg("it needs %s", what);
	print_message("skipped: it needs %s\n", what);
	skip();
}

static struct mmap_watch *open_kind(const struct mmap_watch_kind *kind)
{
	bool is_perf = kind == &mmap_watch_perf;
	struct mmap_watch *a = NULL;
	char why[WHY_SIZE];

	if (kind->open(&a, why) < 0)
		skip_for_want_of(is_perf ? "bpf" : "fentry", kind->hook);
	return a;
}

/* Perf reports mappings of memory without a file, too. */
static bool is_of_a_file(const char *name)
{
	return *name != '[' && strcmp(name, "anon") != 0;
}

static void hear(void *context, pid_t pid, const char *name)
{
	struct heard *h = context;

	if (pid != h->pid || !is_of_a_file(name))
		return;
	assert_true(h->n < NAMES_MAX);
	(void)snprintf(h->names[h->n++], NAME_SIZE, "%s", name);
}

static void ignore(void *context, pid_t pid, const char *name)
{
	(void)context;
	(void)pid;
	(void)name;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* In any order: a process may continue on another processor, which has another ring. */
static void take(struct mmap_watch *a, struct heard *h)
{
	struct pollfd readable = {.fd = mmap_watch_fd(a), .events = POLLIN};

	assert_int_equal(poll(&readable, 1, PATIENCE_MS), 1);
	assert_true(mmap_watch_take(a, hear, h) > 0);
	qsort(h->names, h->n, NAME_SIZE, by_name);
}

static size_t count(const struct heard *h, const char *name)
{
	size_t n = 0;

	for (size_t i = 0; i < h->n; i++)
		n += !strcmp(h->names[i], name);
	return n;
}

static void map(int protection)
{
	void *at = mmap(NULL, 1, protection, MAP_PRIVATE, file_fd, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	assert_int_equal(munmap(at, 1), 0);
}

/* As a program does that loads a library, before it begins and later; and what is none. */
static void map_and_run(void)
{
	void *at = mmap(NULL, 1, PROT_READ, MAP_PRIVATE, file_fd, 0);

	map(PROT_READ | PROT_EXEC);
	(void)mprotect(at, 1, PROT_READ | PROT_EXEC);
	(void)mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	(void)execl("/bin/true", "true", NULL);
	_exit(EXIT_FAILURE);
}

static int end_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static pid_t run(void)
{
	pid_t pid = fork();

	if (pid == 0)
		map_and_run();
	assert_int_equal(end_of(pid), EXIT_SUCCESS);
	return pid;
}

static void test_programs_and_libraries_are_told(void **state)
{
	struct mmap_watch *a = open_kind(*state);
	struct heard h = {.pid = run()};

	take(a, &h);
	assert_int_equal(count(&h, file), 2);
	assert_true(count(&h, "true") > 0);
	assert_true(count(&h, "libc.so.6") > 0);
	mmap_watch_close(a);
}

static void test_each_kind_says_the_same(void **state)
{
	struct mmap_watch *fentry = open_kind(&mmap_watch_fentry),
			  *perf = open_kind(&mmap_watch_perf);
	struct heard by_perf = {.pid = run()}, by_fentry = {.pid = by_perf.pid};

	(void)state;
	take(perf, &by_perf);
	take(fentry, &by_fentry);
	assert_int_equal(by_fentry.n, by_perf.n);
	for (size_t i = 0; i < by_perf.n; i++)
		assert_string_equal(by_fentry.names[i], by_perf.names[i]);
	mmap_watch_close(fentry);
	mmap_watch_close(perf);
}

/* Perf reports the loss with its next record. */
static void test_where_there_was_no_room_is_told(void **state)
{
	struct mmap_watch *a = open_kind(*state);
	struct heard h = {.pid = getpid()};
	cpu_set_t before, one;
	int r, attempts = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	for (size_t i = 0; i < FLOOD; i++)
		map(PROT_READ | PROT_EXEC);
	r = mmap_watch_take(a, ignore, NULL);
	map(PROT_READ | PROT_EXEC);
	if (r != -ENOBUFS)
		r = mmap_watch_take(a, ignore, NULL);
	assert_int_equal(r, -ENOBUFS);
	do {
		assert_true(attempts++ < ATTEMPTS);
		map(PROT_READ | PROT_EXEC);
		h.n = 0;
	} while (mmap_watch_take(a, hear, &h) < 0);
	assert_true(count(&h, file) > 0);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	mmap_watch_close(a);
}

static void keep_two_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
	uint32_t two = CAP_TO_MASK(CAP_BPF) | CAP_TO_MASK(CAP_PERFMON);

	data[CAP_TO_INDEX(CAP_BPF)].effective = data[CAP_TO_INDEX(CAP_BPF)].permitted = two;
	if (syscall(SYS_capset, &header, data) < 0)
		_exit(EXIT_FAILURE);
}

static bool is_refused_perf(void)
{
	pid_t pid = fork();
	struct mmap_watch *a;
	char why[WHY_SIZE];

	if (pid == 0) {
		keep_two_capabilities();
		_exit(mmap_watch_perf.open(&a, why) < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
	}
	return end_of(pid) != EXIT_SUCCESS;
}

/* As the service has. The descriptors are closed with the process. */
static void open_with_two_capabilities(void)
{
	char why[N_MMAP_WATCH_KINDS][WHY_SIZE] = {};
	struct mmap_watch *a = NULL;
	int r;

	keep_two_capabilities();
	r = mmap_watch_open(&a, why);
	(void)printf("%s: %s; %s\n", r < 0 ? strerror(-r) : a->kind->hook, why[0], why[1]);
	(void)fflush(stdout);
	_exit(r == 0 && a->kind == &mmap_watch_fentry && strstr(why[0], "perf_event_paranoid=2") &&
			      !*why[1]
		      ? EXIT_SUCCESS
		      : EXIT_FAILURE);
}

static void test_who_is_refused_perf_has_the_other(void **state)
{
	pid_t pid;

	(void)state;
	mmap_watch_close(open_kind(&mmap_watch_fentry));
	if (!is_refused_perf())
		skip_for_want_of("paranoid", "a kernel that refuses perf to CAP_PERFMON");
	pid = fork();
	if (pid == 0)
		open_with_two_capabilities();
	assert_int_equal(end_of(pid), EXIT_SUCCESS);
}

static void test_who_may_have_perf_has_it(void **state)
{
	char why[N_MMAP_WATCH_KINDS][WHY_SIZE];
	struct mmap_watch *a;

	(void)state;
	mmap_watch_close(open_kind(&mmap_watch_perf));
	assert_int_equal(mmap_watch_open(&a, why), 0);
	assert_string_equal(a->kind->hook, mmap_watch_perf.hook);
	mmap_watch_close(a);
}

static void test_why_there_is_none_fits_in_a_sentence(void **state)
{
	static const char why[N_MMAP_WATCH_KINDS][WHY_SIZE] = {
		"the kernel refuses it: Permission denied; CAP_PERFMON suffices after "
		"'sysctl kernel.perf_event_paranoid=2' if that is 3",
		"the kernel has no BTF in /sys/kernel/btf/vmlinux: No such file or "
		"directory",
	};
	char all[WHY_SIZE];

	(void)state;
	mmap_watch_explain(why, all);
	assert_string_equal(strchr(all, ' ') + 1 + strlen(why[1]) + strlen("; perf/mmap: "), why[0]);
}

static int make_file(void **state)
{
	(void)state;
	file_fd = mkstemp(path);
	file = strrchr(path, '/') + 1;
	return file_fd < 0;
}

static int remove_file(void **state)
{
	(void)state;
	(void)close(file_fd);
	return unlink(path);
}

int main(void)
{
	void *perf = (void *)&mmap_watch_perf, *fentry = (void *)&mmap_watch_fentry;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(test_programs_and_libraries_are_told, perf),
		cmocka_unit_test_prestate(test_programs_and_libraries_are_told, fentry),
		cmocka_unit_test(test_each_kind_says_the_same),
		cmocka_unit_test_prestate(test_where_there_was_no_room_is_told, perf),
		cmocka_unit_test_prestate(test_where_there_was_no_room_is_told, fentry),
		cmocka_unit_test(test_who_is_refused_perf_has_the_other),
		cmocka_unit_test(test_who_may_have_perf_has_it),
		cmocka_unit_test(test_why_there_is_none_fits_in_a_sentence),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
