/*
 * Tables of tensors
 *
 * The part of a layout that engines need to compute with tensors, and not only carry bytes.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Writes [[name, dtype, offset, size], ...] as JSON to a sealed memfd, ascending and disjoint:
 * other names of a tensor's bytes are left out.
 */
int tensors_table(const struct weightd_buffer *b, int *ret_fd, struct fault *f);

/*
 * Zeroes the gaps between the tensors of a new version: reused memory may contain anything. Returns
 * as weightd_writer_write() does.
 */
int tensors_clear_gaps(struct weightd_writer *w);
