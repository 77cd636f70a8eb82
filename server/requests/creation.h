/*
 * Creates
 *
 * A client's WIRE_CREATE or WIRE_CREATE_IMAGE, up to the writer: permissions, options, the buffer if it
 * does not exist, and creates that were sent before a restart.
 */
#pragma once

#include <stdint.h>

struct session;
struct wire_create;

/* Answers the session's request, now or later. `data_offset` is that of an image, or 0. */
void creation_start(struct session *s, const struct wire_create *create, uint64_t data_offset,
		    int layout_fd);
