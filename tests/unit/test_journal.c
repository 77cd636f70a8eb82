/*
 * The queue of the journal: lines that wait for a journal which does not read hold up no caller, arrive in order once it reads,
 * and those without room are counted.
 */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/libsystemd.h"
#include "server/base/journal.h"
#include "server/base/log.h"

#define N_LINES 10000u
#define FIELDS_SIZE 1024

const struct libsystemd *__wrap_libsystemd_open(const char **ret_why);

static sem_t may_read, was_sent;
static _Atomic int result; /* of the journal */
static _Atomic unsigned n_read, n_out_of_order;
static _Atomic unsigned long n_overflown; /* as the journal was told */
static int log_fd;

static unsigned long value(const struct iovec *fields, int n, const char *name)
{
	size_t length = strlen(name);

	for (int i = 0; i < n; i++)
		if (fields[i].iov_len > length && !memcmp(fields[i].iov_base, name, length))
			return strtoul((const char *)fields[i].iov_base + length, NULL, 10);
	return 0;
}

/* The journal: it receives one line for each post. */
static int receive(const struct iovec *fields, int n)
{
	unsigned long number = value(fields, n, "NUMBER="),
		      lines = value(fields, n, "WEIGHTD_LINES=");

	while (sem_wait(&may_read) < 0)
		;
	if (result == 0 && number > 0 && number != ++n_read)
		n_out_of_order++;
	n_overflown += lines;
	(void)sem_post(&was_sent);
	return result;
}

static const struct libsystemd library = {.journal_sendv = receive};

const struct libsystemd *__wrap_libsystemd_open(const char **ret_why)
{
	(void)ret_why;
	return &library;
}

static bool send_line(unsigned number)
{
	char buf[FIELDS_SIZE], text[64];
	size_t n = 0;

	(void)snprintf(text, sizeof(text), "line %u of a length that varies: %.*s", number,
		       (int)(number % 16), "0123456789abcdef");
	n = journal_append(buf, sizeof(buf), n, "MESSAGE", text);
	n = journal_append_number(buf, sizeof(buf), n, "PRIORITY", LOG_LEVEL_WARNING);
	n = journal_append_number(buf, sizeof(buf), n, "NUMBER", number);
	return journal_send(buf, n);
}

static void wait_until_sent(void)
{
	while (sem_wait(&was_sent) < 0)
		;
}

static size_t read_log(char *buf, size_t size)
{
	ssize_t n = pread(log_fd, buf, size - 1, 0);

	assert_true(n >= 0);
	buf[n] = '\0';
	return (size_t)n;
}

static void a_stuck_journal_holds_up_nobody_and_learns_what_it_missed(void **state)
{
	unsigned n_queued = 0;

	(void)state;
	for (unsigned i = 1; i <= N_LINES; i++) /* the test ends only if none of these waits */
		n_queued += send_line(n_queued + 1);
	assert_in_range(n_queued, JOURNAL_QUEUE_SIZE / 128, JOURNAL_QUEUE_SIZE / 32);
	assert_int_equal(n_read, 0);
	for (unsigned i = 0; i < n_queued + 1; i++) /* one more for the number of the others */
		(void)sem_post(&may_read);
	for (unsigned i = 0; i < n_queued + 1; i++)
		wait_until_sent();
	assert_int_equal(n_read, n_queued);
	assert_int_equal(n_out_of_order, 0);
	assert_int_equal(n_overflown, N_LINES - n_queued);
}

/* Far more than the queue has room for at once. */
static void lines_arrive_in_order_through_all_of_the_ring(void **state)
{
	unsigned before = n_read;

	(void)state;
	for (unsigned i = 1; i <= N_LINES; i++) {
		(void)sem_post(&may_read);
		assert_true(send_line(before + i));
		if (i % 64 == 0)
			for (unsigned sent = 0; sent < 64; sent++)
				wait_until_sent();
	}
	for (unsigned sent = 0; sent < N_LINES % 64; sent++)
		wait_until_sent();
	assert_int_equal(n_read, before + N_LINES);
	assert_int_equal(n_out_of_order, 0);
}

static void a_line_that_the_journal_refuses_is_a_plain_one(void **state)
{
	char text[4096];

	(void)state;
	result = -ECONNREFUSED;
	(void)sem_post(&may_read);
	assert_true(send_line(7));
	wait_until_sent();
	journal_flush(); /* behind it */
	(void)read_log(text, sizeof(text));
	assert_non_null(strstr(text, "<4>line 7 of a length that varies: 0123456\n"));
	result = 0;
}

static void a_flush_waits_for_what_is_queued_and_not_for_a_stuck_journal(void **state)
{
	unsigned before = n_read;

	(void)state;
	(void)sem_post(&may_read);
	assert_true(send_line(before + 1));
	journal_flush();
	assert_int_equal(n_read, before + 1);
	wait_until_sent();

	assert_true(send_line(before + 2));
	journal_flush(); /* returns though nothing is read */
	assert_int_equal(n_read, before + 1);
	(void)sem_post(&may_read);
	wait_until_sent();
	assert_int_equal(n_read, before + 2);
}

/* stderr becomes a file which $JOURNAL_STREAM names. */
static int set_up(void **state)
{
	char stream[64];
	struct stat st;

	(void)state;
	log_fd = memfd_create("log", MFD_CLOEXEC);
	if (log_fd < 0 || fstat(log_fd, &st) < 0 || dup2(log_fd, STDERR_FILENO) < 0)
		return -1;
	(void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		       (unsigned long long)st.st_ino);
	(void)setenv("JOURNAL_STREAM", stream, 1);
	(void)sem_init(&may_read, 0, 0);
	(void)sem_init(&was_sent, 0, 0);
	log_init(LOG_LEVEL_INFO);
	journal_init();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stuck_journal_holds_up_nobody_and_learns_what_it_missed),
		cmocka_unit_test(lines_arrive_in_order_through_all_of_the_ring),
		cmocka_unit_test(a_line_that_the_journal_refuses_is_a_plain_one),
		cmocka_unit_test(a_flush_waits_for_what_is_queued_and_not_for_a_stuck_journal),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
