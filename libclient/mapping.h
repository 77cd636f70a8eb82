/*
 * Mappings of slots
 *
 * At addresses that allow huge pages, also where the kernel would not choose such an address by itself.
 */
#pragma once

#include <stdint.h>

/* Maps the file whole, shared; -errno of mmap. `at` NULL: anywhere; else over what is mapped there. */
int mapping_new(int fd, uint64_t size, int prot, void *at, void **ret);
void mapping_free(void *p, uint64_t size);
