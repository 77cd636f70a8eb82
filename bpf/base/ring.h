/*
 * A ring of records from BPF programs
 *
 * A user can make the programs write more and more. So the loop takes some records, and serves other sources before
 * it takes more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_TURN 64 /* records: a millisecond, if one takes 15 us */

struct bpf_map;
struct ring_buffer;

struct ring {
	struct ring_buffer *buffer;
	void (*take)(void *context, const void *data, size_t size);
	void *context;
	size_t size; /* in bytes */
	size_t n_left, size_left; /* until the one that is taken now is the last */
};

/* Each record is passed to `take`, which must not close the ring. 0, or negative errno. */
int ring_open(struct ring *r, const struct bpf_map *map,
	      void (*take)(void *context, const void *data, size_t size), void *context);
/* Takes a ring that is all zero or was not opened, too. */
void ring_close(struct ring *r);

/* Readable while there is something. */
int ring_fd(const struct ring *r);

/* Takes some. Where there are more, its descriptor is readable as before. */
void ring_take(struct ring *r);
/* Takes all records that are there, and those that arrive until then. */
void ring_take_all(struct ring *r);
