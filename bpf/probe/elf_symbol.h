/*
 * Where in the file of a library a function begins, which is where a probe is put
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ELF_SYMBOL_NONE UINT64_MAX

/*
 * Of a function that has many versions (ibv_modify_qp@IBVERBS_1.0, ibv_modify_qp@@IBVERBS_1.1) it is the
 * default one, which is what a program that is linked today calls. -ENOENT: there is none;
 * -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it contradicts itself, or its end is missing.
 */
int elf_symbol_find(int fd, const char *function, uint64_t *ret_offset);
/* The same of many, with one look at the file: those that there are not are ELF_SYMBOL_NONE. */
int elf_symbol_find_all(int fd, const char *const functions[], size_t n, uint64_t ret_offsets[]);
