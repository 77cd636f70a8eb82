/*
 * Page cache: how much of a file is in memory
 */
#pragma once

#include <stdint.h>

/*
 * Bytes of [offset, offset + size) that are in the page cache, in whole pages, at most `size`. Without cachestat(2), which
 * is of Linux 6.5 and wants an owner or a writer of the file, all or nothing, by the byte in the middle.
 */
uint64_t cached_bytes(int fd, uint64_t offset, uint64_t size);

/* Removes clean pages of [offset, offset + size) from the page cache; size 0: to the end. */
void cached_drop(int fd, uint64_t offset, uint64_t size);
