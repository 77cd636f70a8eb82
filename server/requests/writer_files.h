/*
 * Files of a version in the making
 *
 * A client's WIRE_SET_FILES: replaces the files that the writer has, and answers once the store has them.
 */
#pragma once

struct writer;

/* Takes nothing. The session's request is answered, now or later. */
void writer_set_files(struct writer *w, int fd);
