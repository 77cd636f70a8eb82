/*
 * Where in the file of a library a function begins, which is where a probe is put
 */
#pragma once

#include <stdint.h>

/*
 * Of a function that has many versions (ibv_modify_qp@IBVERBS_1.0, ibv_modify_qp@@IBVERBS_1.1) it is the
 * default one, which is what a program that is linked today calls. -ENOENT: there is none;
 * -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it contradicts itself, or its end is missing.
 */
int elf_find(int fd, const char *function, uint64_t *ret_offset);
