/*
 * Commits of a buffer
 *
 * A buffer stands in its manifest, which survives weightd, and in its head page, which readers map. Both are
 * written here, the manifest first.
 */
#pragma once

#include "ipc/head.h"

struct buffer;

/* The state that readers see: also HEAD_UPDATING while they are asked to pause, which is not committed. */
enum head_state buffer_shown_state(const struct buffer *b);

/* Commits what the buffer is to its manifest. */
void buffer_save(struct buffer *b);

/* Copies the state in the manifest to the head page, and wakes its waiters. */
void buffer_flip(struct buffer *b);
