/*
 * The offset of a function in the file of a library, where a probe is placed
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ELF_SYMBOL_NONE UINT64_MAX

/*
 * A function with many versions (ibv_modify_qp@IBVERBS_1.0, ibv_modify_qp@@IBVERBS_1.1) is found by its default one,
 * which a program that is linked today calls. -ENOENT: there is none; -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it
 * contradicts itself, or its end is missing.
 */
int elf_symbol_find(int fd, const char *function, uint64_t *ret_offset);
/* The same of many, with one look at the file: those that there are not are ELF_SYMBOL_NONE. */
int elf_symbol_find_all(int fd, const char *const functions[], size_t n, uint64_t ret_offsets[]);
