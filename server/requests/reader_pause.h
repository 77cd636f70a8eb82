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

struct writer;

/* The ends of a pause. */
struct reader_pause_ops {
	void (*go_on)(struct writer *w); /* the readers have made room */
	void (*give_up)(struct writer *w, int error, const char *why); /* ... or have not, in time */
};

/* Asks the readers of the writer's buffer. Ends in one of `ops`, perhaps at once. */
void reader_pause_start(struct writer *w, const struct reader_pause_ops *ops);
