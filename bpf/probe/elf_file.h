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

struct elf_table {
	void *bytes;
	uint64_t n; /* entries */
};

struct elf_file {
	int fd; /* the caller's */
	uint64_t size;
	Elf64_Ehdr head;
	struct elf_table sections, segments;
};

/* To be deinitialised in any case. -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it contradicts itself, or its end is missing. */
int elf_file_init(struct elf_file *elf, int fd);
void elf_file_deinit(struct elf_file *elf);

/* `n` entries of that size; the caller frees its bytes, in any case. -EBADMSG: not all of it is there. */
int elf_file_read(const struct elf_file *elf, uint64_t offset, uint64_t n, size_t entry_size,
		  struct elf_table *ret);
/* The first of that type, NULL for none. */
const Elf64_Shdr *elf_file_section(const struct elf_file *elf, uint32_t type);
/* Where in the file that address is, in a segment that has these flags (PF_X). -EBADMSG: in none. */
int elf_file_offset(const struct elf_file *elf, uint64_t address, uint32_t flags, uint64_t *ret);
