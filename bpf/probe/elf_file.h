/*
 * The file of a library or a program, and where in it lies what is at an address
 *
 * The file is anybody's: it is read and never mapped, as one that is cut meanwhile would kill who looks at its
 * mapping, and nothing that it says is believed before it was compared with its size.
 */
#pragma once

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

struct table {
	void *bytes;
	uint64_t n; /* entries */
};

struct image {
	int fd; /* the caller's */
	uint64_t size;
	Elf64_Ehdr head;
	struct table sections, segments;
};

/* To be deinitialised in any case. -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it contradicts itself, or its end is missing. */
int image_init(struct image *image, int fd);
void image_deinit(struct image *image);

/* `n` entries of that size; the caller frees its bytes, in any case. -EBADMSG: not all of it is there. */
int image_read(const struct image *image, uint64_t offset, uint64_t n, size_t entry_size,
	       struct table *ret);
/* The first of that type, NULL for none. */
const Elf64_Shdr *image_section(const struct image *image, uint32_t type);
/* Where in the file that address is, in a segment that has these flags (PF_X). -EBADMSG: in none. */
int image_offset(const struct image *image, uint64_t address, uint32_t flags, uint64_t *ret);
