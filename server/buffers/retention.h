/*
 * Retention
 *
 * Which versions a buffer keeps, and which it ends: beyond the `keep` newest, or because the owner drops them, or the
 * whole buffer.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct buffer;
struct server;
struct version;

/* Ends versions beyond `keep`; the caller saves. True when there were some. */
bool buffer_end_old(struct buffer *b);

/* Likewise, saves, and frees them. */
void buffer_trim(struct buffer *b);

/* Takes an old version out. */
void buffer_drop_version(struct buffer *b, struct version *v, enum wire_end why);

/* Takes the name away. Readers keep the versions that they read. */
void buffer_drop(struct buffer *b);
