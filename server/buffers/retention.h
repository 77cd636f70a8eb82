/*
 * Retention
 *
 * Which versions a buffer keeps, and which it ends: beyond the `keep` newest, when memory is short, or because the
 * owner drops them, or the whole buffer.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct buffer;
struct server;
struct version;

/* True for a version that only its place in the list holds. */
bool buffer_only_keeps(const struct buffer *b, const struct version *v);

/* Ends versions beyond `keep`; the caller saves. True when there were some. */
bool buffer_end_old(struct buffer *b);

/* Likewise, saves, and frees them. */
void buffer_trim(struct buffer *b);

/* Takes an old version out. */
void buffer_drop_version(struct buffer *b, struct version *v, enum wire_end why);

/* Takes the name away. Readers keep the versions that they read. */
void buffer_drop(struct buffer *b);

/*
 * Frees the oldest version of all on the device that is only kept, to make room; NULL: on any. False: there is
 * none, or all of them together would not make up for the `missing` bytes.
 */
bool buffers_evict(struct server *server, const char *device, uint64_t missing);

/* Bytes that buffers_evict() could free. */
uint64_t buffers_kept_bytes(const struct server *server, const char *device);
