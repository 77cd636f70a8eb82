/*
 * A ring in which programs of BPF tell what they see
 *
 * Users who make them tell more and more would be taken from without an end: the loop takes some, and serves others before
 * it takes more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_TURN 64 /* records: a millisecond, of those that take 15 us each to be told */

struct bpf_map;
struct ring_buffer;

struct ring {
	struct ring_buffer *buffer;
	void (*take)(void *context, const void *data, size_t size);
	void *context;
	size_t size; /* in bytes */
	size_t n_left, size_left; /* until the one that is taken now is the last */
};

/* Each record goes to `take`, which may not close it. 0, or negative errno. */
int ring_open(struct ring *r, const struct bpf_map *map,
	      void (*take)(void *context, const void *data, size_t size), void *context);
/* Also one that is all zero, or was not opened. */
void ring_close(struct ring *r);

/* Readable while there is something. */
int ring_fd(const struct ring *r);

/* Takes some. Where there are more, its descriptor is readable as before. */
void ring_take(struct ring *r);
/* Takes all that are there, and those alone that come until then. */
void ring_take_all(struct ring *r);
