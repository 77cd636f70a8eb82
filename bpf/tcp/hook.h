/*
 * Hooks: places in the kernel where BPF programs are attached
 */
#pragma once

#include <stdint.h>

#include "bpf/base/support.h"

struct hook {
	const char *program; /* its name in meter.bpf.c */
	const char *name;
	const char *since; /* the first Linux that has what it takes */
	const char *lost; /* without it */
};

/* Hooks of the meter that is made of BPF programs. */
enum hook_number {
	HOOK_STATE,
	HOOK_DESTROY,
	HOOK_RETRANSMIT,
	HOOK_MARK,
	HOOK_MARK_TCP,
	HOOK_FILES,
	HOOK_SEND,
	HOOK_RECEIVE,
	N_HOOKS,
};

extern const struct hook hooks[N_HOOKS];

/* The reason why each hook does not work, looked for again once they are old. */
struct findings {
	char why_not[N_HOOKS][WHY_SIZE]; /* "": it works */
	uint64_t old_ns;
};

/*
 * Loads a program of each hook and attaches it for a moment, or does nothing if that was done just now: it takes a
 * tenth of a second, during which no client is served.
 */
void hooks_look(struct findings *f);
