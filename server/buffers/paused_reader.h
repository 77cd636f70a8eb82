/*
 * Paused readers
 *
 * A reader of a buffer that is to be updated makes room: of an exclusive buffer, which is written
 * in place, it pauses; of a sealed one that does not fit twice, it detaches. Its session then waits
 * here until it may resume.
 */
#pragma once

#include <stdbool.h>

struct buffer;
struct lease;
struct session;
struct wire_pause;

/* Answers a session's pause of a lease that it has, now or later. */
void paused_reader_new(struct session *s, struct lease *lease, const struct wire_pause *pause);

/* The session ends: it does not wait any more. */
void paused_reader_forget(struct session *s);

/*
 * Answers the readers of the buffer that have paused, and the sessions that wait for a version: each in a
 * turn of its user.
 */
void paused_readers_resume(struct buffer *b);

/*
 * True for a reader that has not made room yet for the buffer's writer. In place a reader pauses; else it lets
 * go. The session of the writer is no reader: it can do neither while it waits.
 */
bool paused_reader_is_missing(const struct buffer *b, const struct lease *l);
unsigned paused_readers_n_missing(const struct buffer *b);

/*
 * A reader paused, or its lease or its version ended, or the buffer was removed: the writer that waits for
 * readers looks again in the loop's next round.
 */
void paused_readers_changed(struct buffer *b);
