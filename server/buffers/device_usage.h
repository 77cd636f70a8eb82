/*
 * Bytes on a device
 *
 * What the slots of buffers take there, and whose they are.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct buffer;
struct server;

/*
 * The bytes that its slots take on its device, but for those whose release has begun; the part of
 * them that `uid` is charged for.
 */
uint64_t buffer_bytes(const struct buffer *b);
uint64_t buffer_charged_bytes(const struct buffer *b, uid_t uid);

/* What slots take on a device, but for those that are on their way out. */
uint64_t buffers_bytes(const struct server *server, const char *device);

/* What those take, or did, until it is known that it is free. */
uint64_t buffers_bytes_being_freed(const struct server *server, const char *device);
