/*
 * Creation of a version
 *
 * From a client's WIRE_CREATE to the descriptors that it fills: checks the layout, finds out what can be free,
 * has the readers pause where the version replaces theirs, provides the memory, and puts it into the store.
 */
#pragma once

#include <stdint.h>

struct buffer;
struct session;
struct wire_request;
struct writer;

/*
 * Starts a writer for `buffer` and answers the session's create `m`, now or later. Takes nothing.
 * `data_offset` is that of an image; 0: a flat version is made.
 */
void writer_create_start(struct session *session, struct buffer *buffer,
			 const struct wire_request *m, uint64_t data_offset, int layout_fd);

/* Provides the first `until` bytes of a version created early, and answers the session's request, now or later. */
void writer_provide_more(struct writer *w, uint64_t until);

/* Answers the create of a writer that was adopted: its client never got the first answer. */
void writer_create_answer(struct writer *w);
