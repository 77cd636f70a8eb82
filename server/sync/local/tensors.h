/*
 * Tables of tensors
 *
 * What engines that compute with tensors, and do not only carry bytes, are told of a layout.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * A sealed memfd of [[name, dtype, offset, size], ...] in JSON, ascending and disjoint: other names of a tensor's bytes
 * are left out.
 */
int tensors_table(const struct weightd_buffer *b, int *ret_fd, struct fault *f);

/* Zeroes what lies between the tensors of a new version, where reusable memory may have anything. */
void tensors_clear_gaps(struct weightd_writer *w);
