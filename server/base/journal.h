/*
 * The journal
 *
 * Lines with fields, if stderr is the journal's, by sd_journal_sendv(). That waits without a limit while the journal does not
 * read (systemd 252: in its 12th call), so that a thread of its own calls it: a stopped journal stops no client of weightd.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_QUEUE_SIZE (256 * 1024) /* bytes of lines that wait for the thread */

/* To be called once, after log_init(): starts the thread, which opens libsystemd, if stderr is the journal's. */
void journal_init(void);

/* Waits until the thread has sent all, for 1 s at most. The thread is never joined: it may wait for the journal. */
void journal_flush(void);

/*
 * Appends a line to the `n` bytes in `buf` and returns how many there are then. NULL: no line. A
 * value that does not fit is cut, one that is not the message at 255 bytes. Control characters are
 * replaced, so that a value cannot become a field of its own.
 */
size_t journal_append(char *buf, size_t size, size_t n, const char *field, const char *value);
size_t journal_append_number(char *buf, size_t size, size_t n, const char *field, uint64_t value);

/* Control characters become question marks. */
void journal_blank(char *s);

/*
 * Queues a line for the journal, the fields of which journal_append() wrote, MESSAGE and PRIORITY among them. Never blocks; one
 * thread may call it. False: stderr is not the journal's, or the queue is full. Then the caller logs it like any other line.
 * Lines that the queue had no room for are counted; once the journal reads again, it receives their number.
 */
bool journal_send(const char *fields, size_t size);
