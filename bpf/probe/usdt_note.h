/*
 * The probes that a program's own notes tell of (USDT)
 */
#pragma once

#include <stdint.h>

#define USDT_NOTE_TEXT_SIZE 64

struct usdt_note {
	char name[USDT_NOTE_TEXT_SIZE];
	char arguments[2 * USDT_NOTE_TEXT_SIZE]; /* "8@%rdi 8@%rsi"; "": it has none */
	uint64_t offset; /* within the file, of what is probed */
	uint64_t counter; /* likewise, of the uint16_t which says that somebody looks; 0: there is none */
};

/*
 * Those of the provider, in the file's order; those whose texts are longer than that are left out. How many, of
 * which the first `n` are written; -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it contradicts itself, or its end is
 * missing.
 */
int usdt_note_find(int fd, const char *provider, struct usdt_note notes[], unsigned n);
