/*
 * Publication by a writer
 *
 * Seals what the client has filled, on a worker, and makes it a version in one commit.
 */
#pragma once

#include <stdint.h>

struct version;
struct wire_publish;
struct writer;

/* Answers the session's publish, now or later. */
void writer_publish(struct writer *w, const struct wire_publish *publish);
/* Likewise, in the memory of a version that the session has a lease on; `digest` is WIRE_HASH_SIZE bytes. */
void writer_publish_shared(struct writer *w, const struct version *v, const uint8_t *digest);
