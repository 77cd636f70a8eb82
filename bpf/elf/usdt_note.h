/*
 * USDT probes, which a program lists in its own notes
 */
#pragma once

#include <stdint.h>

#define USDT_NOTE_TEXT_SIZE 64

struct usdt_note {
	char name[USDT_NOTE_TEXT_SIZE];
	char arguments[2 * USDT_NOTE_TEXT_SIZE]; /* "8@%rdi 8@%rsi"; "": it has none */
	uint64_t offset; /* within the file, of what is probed */
	uint64_t counter; /* the same of the uint16_t that counts its observers; 0: there is none */
};

/*
 * Finds the probes of the provider, in the file's order, without those with too long texts. Returns how many there
 * are, and writes the first `n`; -ENOEXEC: not a 64-bit ELF file; -EBADMSG: it contradicts itself, or its end is
 * missing.
 */
int usdt_note_find(int fd, const char *provider, struct usdt_note notes[], unsigned n);
