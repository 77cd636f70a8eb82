/*
 * The journal
 *
 * Sends lines with fields to the journal's own socket, if stderr is the journal's, in its native
 * protocol, which is documented (https://systemd.io/JOURNAL_NATIVE_PROTOCOL) and is one datagram of
 * FIELD=value lines. Not through libsystemd: sd_journal_send() waits when the socket is full, so a
 * stopped journal would stop every client of weightd.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* To be called once, after log_init(). */
void journal_init(void);

/*
 * Appends a line to the `n` bytes in `buf` and returns how many there are then. NULL: no line. A
 * value that does not fit is cut, one that is not the message at 255 bytes. Control characters are
 * replaced, so that a value cannot become a field of its own.
 */
size_t journal_append(char *buf, size_t size, size_t n, const char *field, const char *value);
size_t journal_append_number(char *buf, size_t size, size_t n, const char *field, uint64_t value);

/* Control characters become question marks. */
void journal_blank(char *s);

/* Never blocks. False: stderr is not the journal's, or it did not take it: to be logged like any other line. */
bool journal_send(const char *fields, size_t size);
