/*
 * Publication by a writer
 *
 * Seals what the client has filled, on a worker, and makes it a version in one commit.
 */
#pragma once

struct wire_publish;
struct writer;

/* Answers the session's publish, now or later. */
void writer_publish(struct writer *w, const struct wire_publish *publish);
