/*
 * Memory of a manifest
 *
 * A memfd that weightd and its successor map. It cannot shrink, so that reading it cannot fault, and other users cannot
 * open it.
 */
#pragma once

#include <stdint.h>

/* Zeroed memory, mapped to be written. The caller owns mapping and descriptor. */
int manifest_memory_new(const char *name, uint64_t size, void **ret, int *ret_fd);
/* Maps that of a predecessor. -EBADF: another size, or it can change. The caller unmaps it. */
int manifest_memory_open(int fd, uint64_t size, void **ret);
/* Unmaps it. NULL is fine. */
void manifest_memory_free(void *m, uint64_t size);
