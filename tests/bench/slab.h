/*
 * Shared memory as a plain program gets it from the kernel, without a server: what weightd is measured
 * against.
 */
#pragma once

#include <stdint.h>

#define SLAB_PAGE ((uint64_t)4096)
#define SLAB_HUGE ((uint64_t)2 << 20)

/* A mapped memfd of `size` bytes that has no pages yet, aligned to huge pages. Fails the program. */
void *slab_new(uint64_t size);
void slab_free(void *slab, uint64_t size);

/*
 * Makes a huge page of each whole 2 MiB of the range, and 4K pages of the rest; returns the bytes in
 * huge pages. Any thread, each its own range.
 */
uint64_t slab_provide(void *at, uint64_t size);
