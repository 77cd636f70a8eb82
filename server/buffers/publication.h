/*
 * Publication
 *
 * Changes of the current version: a new one, an older one, or the same memory with the next number.
 */
#pragma once

struct buffer;
struct version;

/* Makes `v`, filled in by the caller but for buffer and number, the newest version and the current one. */
void buffer_publish(struct buffer *b, struct version *v);

/* Makes a version that is there the current one. */
void buffer_rollback(struct buffer *b, struct version *v);

/* Gives the next number to the current version, after its memory was written in place. */
void buffer_rewrite(struct buffer *b, struct version *v);
