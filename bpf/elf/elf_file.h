/*
 * The file of a library or a program, which translates addresses into offsets
 *
 * The file may belong to any user: it is read and never mapped, as truncating it would kill a process that reads its
 * mapping, and each number in it is compared with its size before use.
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
/* Finds the offset of an address, in a segment that has these flags (PF_X). -EBADMSG: in none. */
int elf_file_offset(const struct elf_file *elf, uint64_t address, uint32_t flags, uint64_t *ret);
