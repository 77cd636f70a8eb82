/*
 * Mappings
 *
 * Maps slots at addresses that allow huge pages, which the kernel does not always choose by itself: at other
 * addresses it maps a huge page in small ones, each with a fault.
 */
#pragma once

#include <stdint.h>

/* Maps a small file whole, shared and read-only; -errno of mmap. */
int mapping_new_plain(int fd, uint64_t size, void **ret);

/* Maps a slot whole, shared; -errno of mmap. `at` NULL: anywhere; else over what is mapped there. */
int mapping_new(int fd, uint64_t size, int prot, void *at, void **ret);
/* Likewise, the `size` bytes from `offset` on, a multiple of the page size. */
int mapping_new_part(int fd, uint64_t offset, uint64_t size, int prot, void *at, void **ret);
void mapping_free(void *p, uint64_t size);
