/*
 * Bytes on a device
 *
 * Sums over the slots of buffers, by device and by user.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct buffer;
struct server;

/*
 * The bytes that its slots take on its device, except those that are being freed; the part of them
 * that `uid` is charged for.
 */
uint64_t buffer_bytes(const struct buffer *b);
uint64_t buffer_charged_bytes(const struct buffer *b, uid_t uid);

/* The bytes that slots take on a device, except those that are being freed. */
uint64_t buffers_bytes(const struct server *server, const char *device);

/* The bytes of slots that are being freed, until they are free. */
uint64_t buffers_bytes_being_freed(const struct server *server, const char *device);
