/*
 * Pauses of readers, for an update
 *
 * An exclusive buffer is written in place: its readers pause, and resume afterwards. A sealed
 * buffer that does not fit twice is replaced: its readers let go, its version is freed, and the
 * next one gets the room. Readers see the request in the head page and answer with WIRE_PAUSE or
 * WIRE_DETACH. After the timeout the writer's policy decides about the others: the update fails, or
 * it evicts or kills them.
 *
 * After a restart, readers of the earlier weightd may not have renewed their leases yet. The kernel
 * shows whether there can be any; then the update waits until they have had time to return.
 */
#pragma once

struct writer;

/* The ends of a pause: what writer_create does next. */
struct reader_pause_ops {
	void (*go_on)(struct writer *w); /* the readers have made room */
	void (*give_up)(struct writer *w, int error, const char *why); /* ... or have not, in time */
};

/* Asks the readers of the writer's buffer. Ends in one of `ops`, perhaps at once. */
void reader_pause_start(struct writer *w, const struct reader_pause_ops *ops);
