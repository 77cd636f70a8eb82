/*
 * The queue is a ring of bytes between one thread that logs and the one that sends, without a lock: the former must not wait
 * for the latter, also where the kernel has taken the processor from it.
 */
#include "server/base/journal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "ipc/base/libsystemd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"

#define VALUE_MAX 255 /* limit for a field other than the message, so that all fit */
#define FIELDS_MAX 32
#define FLUSH_MS 1000
/* Never changes; weightd.catalog explains it. */
#define OVERFLOW_ID "a5937d7677324139b55bd6e0561cc5ac"

enum record_kind {
	RECORD_LINE,
	RECORD_FLUSH, /* journal_flush() waits for it */
	RECORD_GAP, /* at the end of the ring: the next record did not fit there */
};

/* The head of a record, before its bytes. Records begin at multiples of its size. */
struct record {
	uint32_t kind;
	uint32_t size; /* of the bytes */
};

static struct {
	bool works; /* the thread runs; set before it, by the thread that logs */
	_Atomic bool is_refused; /* set by the thread that sends: it has no library */
	sem_t n_records; /* that wait */
	_Atomic size_t head,
		tail; /* bytes put in and taken out, ever; head is written by the thread that logs, tail by the other */
	_Atomic uint64_t n_overflown; /* lines without room since the journal received their number */
	int flushed_fd;
	_Alignas(struct record) char bytes[JOURNAL_QUEUE_SIZE];
} queue;

/* --- Lines -------------------------------------------------------------------------------------- */

void journal_blank(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			*s = '?';
}

size_t journal_append(char *buf, size_t size, size_t n, const char *field, const char *value)
{
	size_t room = size - n;
	int limit = strcmp(field, "MESSAGE") ? VALUE_MAX : (int)size, more;

	if (!value || room < 2)
		return n;
	more = snprintf(buf + n, room - 1, "%s=%.*s", field, limit, value);
	if (more < 0)
		return n;
	more = (size_t)more < room - 1 ? more : (int)room - 2;
	journal_blank(buf + n);
	n += (size_t)more;
	buf[n++] = '\n';
	buf[n] = '\0';
	return n;
}

size_t journal_append_number(char *buf, size_t size, size_t n, const char *field, uint64_t value)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, value);
	return journal_append(buf, size, n, field, text);
}

/* --- The thread that sends ---------------------------------------------------------------------- */

static int split(const char *fields, size_t size, struct iovec ret[FIELDS_MAX])
{
	int n = 0;

	while (size > 0 && n < FIELDS_MAX) {
		const char *end = memchr(fields, '\n', size);
		size_t length = end ? (size_t)(end - fields) : size;

		ret[n++] = (struct iovec){.iov_base = (void *)fields, .iov_len = length};
		size -= length + (end != NULL);
		fields += length + (end != NULL);
	}
	return n;
}

/* The field's value and, in `ret_size`, its size. */
static const char *find(const struct iovec *fields, int n, const char *name, int *ret_size)
{
	size_t length = strlen(name);

	for (int i = 0; i < n; i++) {
		const char *field = fields[i].iov_base;

		if (fields[i].iov_len > length && field[length] == '=' &&
		    !memcmp(field, name, length)) {
			*ret_size = (int)(fields[i].iov_len - length - 1);
			return field + length + 1;
		}
	}
	*ret_size = 0;
	return "";
}

static void log_plain(const struct iovec *fields, int n)
{
	int size, ignored;
	const char *message = find(fields, n, "MESSAGE", &size);
	const char *level = find(fields, n, "PRIORITY", &ignored);

	log_line((enum log_level)atoi(level), "%.*s", size, message);
}

static void send_fields(const struct libsystemd *systemd, const char *text, size_t size)
{
	struct iovec fields[FIELDS_MAX];
	int n = split(text, size, fields);

	if (!systemd || systemd->journal_sendv(fields, n) < 0)
		log_plain(fields, n);
}

static void send_overflow(const struct libsystemd *systemd, uint64_t n_lines)
{
	char buf[512], message[128];
	size_t n = 0;

	(void)snprintf(message, sizeof(message),
		       "the journal was stuck: %" PRIu64
		       " lines were logged without fields, or lost",
		       n_lines);
	n = journal_append(buf, sizeof(buf), n, "MESSAGE", message);
	n = journal_append(buf, sizeof(buf), n, "MESSAGE_ID", OVERFLOW_ID);
	n = journal_append_number(buf, sizeof(buf), n, "PRIORITY", LOG_LEVEL_WARNING);
	n = journal_append_number(buf, sizeof(buf), n, "WEIGHTD_LINES", n_lines);
	send_fields(systemd, buf, n);
}

static size_t record_whole(size_t size)
{
	return (sizeof(struct record) + size + sizeof(struct record) - 1) &
	       ~(sizeof(struct record) - 1);
}

static struct record *record_at(size_t position)
{
	return (struct record *)&queue.bytes[position % sizeof(queue.bytes)];
}

/* The first record, which is there. It stays in the queue until pop(). */
static const struct record *first(void)
{
	return record_at(atomic_load_explicit(&queue.tail, memory_order_relaxed));
}

static void pop(const struct record *record)
{
	(void)atomic_fetch_add_explicit(&queue.tail, record_whole(record->size),
					memory_order_release);
}

/* Waits for it. */
static const struct record *next_record(void)
{
	const struct record *record;

	while (sem_wait(&queue.n_records) < 0) /* EINTR */
		;
	record = first();
	if (record->kind != RECORD_GAP)
		return record;
	pop(record);
	return first();
}

static void *journal_main(void *arg)
{
	const char *why;
	const struct libsystemd *systemd = libsystemd_open(&why);
	uint64_t n_overflown;

	(void)arg;
	if (!systemd) {
		log_warning("lines in the journal have no fields: %s", why);
		atomic_store(&queue.is_refused, true);
	}
	for (;;) {
		const struct record *record = next_record();

		if (record->kind == RECORD_LINE)
			send_fields(systemd, (const char *)(record + 1), record->size);
		else
			(void)eventfd_write(queue.flushed_fd, 1);
		pop(record);
		n_overflown = atomic_exchange(&queue.n_overflown, 0);
		if (n_overflown > 0)
			send_overflow(systemd, n_overflown);
	}
	return NULL;
}

/* --- The thread that logs ----------------------------------------------------------------------- */

static int start_thread(void)
{
	sigset_t all, old;
	pthread_t thread;
	int r;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, NULL, journal_main, NULL);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		(void)pthread_detach(thread);
	return -r;
}

void journal_init(void)
{
	int r;

	if (!log_is_journal() || queue.works)
		return;
	queue.flushed_fd = eventfd(0, EFD_CLOEXEC);
	r = queue.flushed_fd < 0 || sem_init(&queue.n_records, 0, 0) < 0 ? -errno : start_thread();
	if (r < 0)
		log_warning("lines in the journal have no fields: cannot start a thread: %s",
			    strerror(-r));
	queue.works = r == 0;
}

/* False: there is no room. */
static bool put(enum record_kind kind, const char *bytes, size_t size)
{
	size_t head = atomic_load_explicit(&queue.head, memory_order_relaxed);
	size_t used = head - atomic_load_explicit(&queue.tail, memory_order_acquire);
	size_t to_end = sizeof(queue.bytes) - head % sizeof(queue.bytes);
	size_t whole = record_whole(size), gap = to_end < whole ? to_end : 0;

	if (whole > sizeof(queue.bytes) - used || gap > sizeof(queue.bytes) - used - whole)
		return false;
	if (gap > 0)
		*record_at(head) = (struct record){RECORD_GAP,
						   (uint32_t)(gap - sizeof(struct record))};
	*record_at(head + gap) = (struct record){kind, (uint32_t)size};
	memcpy(record_at(head + gap) + 1, bytes, size);
	atomic_store_explicit(&queue.head, head + gap + whole, memory_order_release);
	(void)sem_post(&queue.n_records); /* fails at 2^31 records, which do not fit */
	return true;
}

bool journal_send(const char *fields, size_t size)
{
	if (!queue.works || atomic_load(&queue.is_refused))
		return false;
	if (put(RECORD_LINE, fields, size))
		return true;
	(void)atomic_fetch_add(&queue.n_overflown, 1);
	return false;
}

void journal_flush(void)
{
	struct pollfd flushed = {.fd = queue.flushed_fd, .events = POLLIN};
	eventfd_t n;

	if (queue.works && put(RECORD_FLUSH, "", 0) && poll(&flushed, 1, FLUSH_MS) > 0)
		(void)eventfd_read(queue.flushed_fd, &n); /* it is there */
}
