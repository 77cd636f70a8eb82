/*
 * Look-ups for a request
 *
 * Finds the buffer that a client names, and refuses what the client may not do with it: the refusal is answered
 * and audited.
 */
#pragma once

#include <stdbool.h>

struct buffer;
struct session;

/* The device that a request names; "host" for an empty name. */
const char *lookup_device(const char *device);

/* The buffer, if the client has the ACCESS_* permission `want`. NULL: the request was answered with an error. */
struct buffer *lookup_buffer(struct session *s, const char *name, const char *device, unsigned want);

/* Audits that the session may not do that with the buffer. */
void lookup_refuse(const struct session *s, const struct buffer *b, const char *what);

/*
 * True if the client may create a buffer of that name on the device, NULL: a job, as far as reserved names go. False: the
 * request was answered with an error.
 */
bool lookup_name_allowed(struct session *s, const char *name, const char *device);
