/* Faults in mapped memory: what is said of them, and what becomes of the process. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/fd.h"
#include "libclient/version/guard.h"

#define SIZE 65536
#define MANY 5000 /* more than the table has */

struct scene {
	struct guarded guarded;
	struct memory memory;
	struct layout layout;
	void *image;
	uint64_t version;
	int fd;
};

/* The standard error of a child, and how it ended. */
struct end {
	char said[1024];
	int status;
};

static int scene_init(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct weightd_layout *l;
	uint64_t size;
	const struct memory_request q = {
		.location.memory = WIRE_MEMORY_HOST,
		.size = SIZE,
		.access = MEMORY_READ,
		.fd = s->fd = memfd_create("guard", MFD_CLOEXEC),
		.device = -1,
	};
	struct sentence ignored;

	assert_int_equal(ftruncate(s->fd, SIZE), 0);
	assert_int_equal(weightd_layout_new(0, &l), 0);
	assert_int_equal(weightd_layout_add(l, "a\033b", WEIGHTD_U8, 1, (uint64_t[]){100},
					    WEIGHTD_PARAM, NULL),
			 0);
	assert_int_equal(weightd_layout_tie(l, "tied", 0, NULL), 0);
	assert_int_equal(weightd_layout_add(l, "last", WEIGHTD_F32, 1, (uint64_t[]){4},
					    WEIGHTD_PARAM, NULL),
			 0);
	assert_int_equal(weightd_layout_image(l, &s->image, &size), 0);
	weightd_layout_free(l);
	assert_int_equal(layout_open(s->image, size, &s->layout), 0);
	assert_int_equal(memory_map(&s->memory, &q, &ignored), 0);
	s->version = 7;
	guard_add(&s->guarded, "m", &s->version, &s->layout, &s->memory);
	*state = s;
	return 0;
}

static int scene_deinit(void **state)
{
	struct scene *s = *state;

	guard_remove(&s->guarded);
	memory_unmap(&s->memory);
	(void)fd_close(s->fd);
	free(s->image);
	free(s);
	return 0;
}

static struct end end_of(void (*act)(struct scene *s), struct scene *s)
{
	struct end end = {0};
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL); /* cmocka has a handler */
		(void)dup2(fds[1], STDERR_FILENO);
		act(s);
		_exit(99);
	}
	(void)close(fds[1]);
	for (size_t at = 0; at < sizeof(end.said) - 1;) {
		ssize_t n = read(fds[0], end.said + at, sizeof(end.said) - 1 - at);

		assert_return_code(n, 0);
		if (n == 0)
			break;
		at += (size_t)n;
	}
	(void)close(fds[0]);
	assert_int_equal(waitpid(pid, &end.status, 0), pid);
	return end;
}

static bool is_segfault(int status)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void poke(const struct scene *s, size_t at)
{
	*(volatile char *)((char *)s->memory.data + at) = 1;
}

static void write_into_the_last(struct scene *s)
{
	assert_int_equal(weightd_guard(), 0);
	assert_int_equal(weightd_guard(), 0);
	poke(s, 256 + 5);
}

static void a_write_is_named_and_ends_the_process_as_before(void **state)
{
	struct end end = end_of(write_into_the_last, *state);

	assert_string_equal(
		end.said,
		"weightd: SIGSEGV at byte 5 of 'last', buffer 'm' version 7, which is published, and "
		"cannot be changed: write to a copy, or to the next version\n");
	assert_true(is_segfault(end.status));
}

static void write_into_the_first(struct scene *s)
{
	(void)weightd_guard();
	poke(s, 0);
}

static void write_behind_the_first(struct scene *s)
{
	(void)weightd_guard();
	poke(s, 100);
}

static void names_do_not_disturb_a_terminal(void **state)
{
	struct end end = end_of(write_into_the_first, *state);

	assert_non_null(strstr(end.said, "byte 0 of 'a\\x1bb', buffer"));
	end = end_of(write_behind_the_first, *state);
	assert_non_null(strstr(end.said, "at a byte between the tensors, buffer 'm'"));
	assert_true(is_segfault(end.status));
}

static void read_what_was_given_back(struct scene *s)
{
	struct sentence ignored;

	(void)weightd_guard();
	assert_int_equal(memory_let_go(&s->memory, &ignored), 0);
	_exit(*(volatile char *)s->memory.data);
}

static void memory_that_was_given_back_is_called_so(void **state)
{
	struct end end = end_of(read_what_was_given_back, *state);

	assert_non_null(strstr(end.said, "'m' version 7, whose memory was released"));
	assert_true(is_segfault(end.status));
}

static void raise_it(struct scene *s)
{
	(void)s;
	(void)weightd_guard();
	(void)raise(SIGSEGV);
}

static void write_after_it_is_gone(struct scene *s)
{
	(void)weightd_guard();
	guard_remove(&s->guarded);
	poke(s, 0);
}

static void ignore_it(struct scene *s)
{
	(void)s;
	(void)signal(SIGSEGV, SIG_IGN);
	(void)weightd_guard();
	(void)raise(SIGSEGV);
}

static void other_faults_pass_without_a_word(void **state)
{
	void (*const acts[])(struct scene *) = {raise_it, write_after_it_is_gone};

	for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		struct end end = end_of(acts[i], *state);

		assert_string_equal(end.said, "");
		assert_true(is_segfault(end.status));
	}
	assert_int_equal(WEXITSTATUS(end_of(ignore_it, *state).status), 99);
}

static void handle(int signo)
{
	static const char text[] = "handled";

	(void)signo;
	_exit(write(STDERR_FILENO, text, sizeof(text) - 1) == sizeof(text) - 1 ? 42 : 43);
}

static void handle_with_its_address(int signo, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_addr)
		handle(signo);
}

static void write_with_a_handler(struct scene *s)
{
	(void)signal(SIGSEGV, handle);
	write_into_the_last(s);
}

static void write_with_a_handler_of_addresses(struct scene *s)
{
	const struct sigaction action = {.sa_sigaction = handle_with_its_address,
					 .sa_flags = SA_SIGINFO};

	(void)sigaction(SIGSEGV, &action, NULL);
	write_into_the_last(s);
}

static void fault_elsewhere_with_a_handler(struct scene *s)
{
	(void)signal(SIGSEGV, handle);
	write_after_it_is_gone(s);
}

static void the_earlier_handler_is_called(void **state)
{
	struct end end = end_of(write_with_a_handler, *state);

	assert_non_null(strstr(end.said, "next version\nhandled"));
	assert_int_equal(WEXITSTATUS(end.status), 42);
	end = end_of(write_with_a_handler_of_addresses, *state);
	assert_non_null(strstr(end.said, "next version\nhandled"));
	assert_int_equal(WEXITSTATUS(end.status), 42);
	end = end_of(fault_elsewhere_with_a_handler, *state);
	assert_string_equal(end.said, "handled");
	assert_int_equal(WEXITSTATUS(end.status), 42);
}

static struct sigaction its_before;

/* As CPython's faulthandler does: puts back what it found and raises the signal again. */
static void hand_back(int signo)
{
	(void)sigaction(SIGSEGV, &its_before, NULL);
	(void)raise(signo);
}

static void install_hand_back(void)
{
	const struct sigaction action = {.sa_handler = hand_back, .sa_flags = SA_NODEFER};

	(void)sigaction(SIGSEGV, &action, &its_before);
}

static void write_between_handlers(struct scene *s)
{
	(void)weightd_guard();
	install_hand_back();
	write_into_the_last(s);
}

static void fault_between_handlers(struct scene *s)
{
	(void)weightd_guard();
	install_hand_back();
	write_after_it_is_gone(s);
}

static void a_handler_that_had_it_after_and_before_us_is_no_circle(void **state)
{
	struct end end = end_of(write_between_handlers, *state);

	assert_non_null(strstr(end.said, "byte 5 of 'last'"));
	assert_true(is_segfault(end.status));
	end = end_of(fault_between_handlers, *state);
	assert_string_equal(end.said, "");
	assert_true(is_segfault(end.status));
}

static void a_table_that_is_full_leaves_others_out(void **state)
{
	struct guarded *many = calloc(MANY, sizeof(*many));
	struct scene *s = *state;
	unsigned n_named = 0;

	for (unsigned i = 0; i < MANY; i++) {
		guard_add(&many[i], "n", &s->version, &s->layout, &s->memory);
		n_named += many[i].slot != 0;
	}
	assert_int_equal(n_named, 4095);
	for (unsigned i = 0; i < MANY; i++)
		guard_remove(&many[i]);
	guard_add(&many[0], "n", &s->version, &s->layout, &s->memory);
	assert_int_not_equal(many[0].slot, 0);
	guard_remove(&many[0]);
	free(many);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scene_init, scene_deinit)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_write_is_named_and_ends_the_process_as_before),
		TEST(names_do_not_disturb_a_terminal),
		TEST(memory_that_was_given_back_is_called_so),
		TEST(other_faults_pass_without_a_word),
		TEST(the_earlier_handler_is_called),
		TEST(a_handler_that_had_it_after_and_before_us_is_no_circle),
		TEST(a_table_that_is_full_leaves_others_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
