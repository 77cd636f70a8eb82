/*
 * Hooks: places in the kernel where BPF programs are attached
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/tcp/meter.h"

struct bpf_object;

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

/* The first Linux that has what all of BPF here takes: operations that are atomic, and sockets known by a cookie. */
#define BPF_SINCE "5.12"

/* The reason why each hook does not work, looked for again once they are old. */
struct findings {
	char why_not[N_HOOKS][WHY_SIZE]; /* "": it works */
	uint64_t old_ns;
};

/*
 * Loads a program of each hook and attaches it for a moment, or does nothing where that was done just now: it takes a
 * tenth of a second, in which nobody is served.
 */
void hooks_look(struct findings *f);

/* Loads no program of the object but this one. */
void hook_choose(struct bpf_object *object, const char *program);

bool hook_has_capability(unsigned capability);
/* True where the kernel describes itself, which every program of the meter needs. */
bool hook_has_btf(void);

/* Why the kernel refused something of BPF with `r`, of which `since` was the first Linux that has it. */
void hook_explain(int r, const char *since, char ret_why[WHY_SIZE]);
