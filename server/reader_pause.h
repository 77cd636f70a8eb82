/*
 * Pauses of readers, for an update
 *
 * Of an exclusive buffer, which is written in place: its readers pause, and go on afterwards. Of a sealed one
 * that does not fit twice: its readers let go, the version is freed, and the next one gets its room. Readers
 * learn of it from the head page and answer with WIRE_PAUSE or WIRE_DETACH; who has not when the time is up
 * is waited for in vain, evicted or killed, as the writer has asked.
 *
 * After a restart readers may be at work whose leases are not here yet. The kernel tells whether there can
 * be any, and if so an update waits until they have had their time to come back.
 */
#pragma once

#include <stdint.h>

struct buffer;
struct lease;
struct session;
struct wire_pause;
struct writer;

/* Asks the readers of the writer's buffer. Ends in writer_go_on() or writer_give_up(), perhaps at once. */
void reader_pause_start(struct writer *w);

/* A reader paused, or its lease or its version ended: perhaps it was the last. Or the buffer was removed. */
void reader_pause_check(struct buffer *b);

/* Readers that have not made room for the buffer's writer yet. */
unsigned reader_pause_n_missing(const struct buffer *b);

/* Answers a session's pause, now or later. */
void reader_pause_answer(struct session *s, const struct wire_pause *pause);

/* The session ends: it does not wait any more. */
void reader_pause_forget(struct session *s);

/* Readers may go on: answers who has paused, and who waits for the version. */
void reader_pause_end(struct buffer *b);
