/*
 * What the meter that is made of BPF programs needs of this kernel, one by one
 */
#pragma once

#include <stddef.h>

#include "bpf/meter.h"

struct bpf_object;

struct hook {
	const char *program; /* its name in flows.bpf.c */
	const char *name;
	const char *since; /* the first Linux that has what it takes */
	const char *lost; /* without it */
};

extern const struct hook hooks[];
extern const size_t n_hooks;

/* The first Linux that has what all of BPF here takes: operations that are atomic, and sockets known by a cookie. */
#define BPF_SINCE "5.12"

/* What the doctor found of each, and looks for again once they are old. */
#define HOOKS_MAX 16

struct findings {
	char why_not[HOOKS_MAX][WHY_SIZE]; /* "": it works */
	uint64_t old_ns;
};

/* Probes all of them, or none where somebody asked just now: that takes a tenth of a second, in which nobody is served. */
void hooks_look(struct findings *f);

/* Whether it is in use, or as on_send and on_receive ready to be. Of the other meter none is. */
bool hook_is_on(const struct meter *m, const struct hook *hook);

/*
 * How often no program ran at the end of a connection, because that had interrupted another one: whether all that it carried
 * is in its row nobody knows then.
 */
uint64_t meter_misses(const struct meter *m);

/* Its programs; NULL of the other meter. */
const struct bpf_object *meter_object(const struct meter *m);

/* Why the kernel refused something of BPF with `r`, of which `since` was the first Linux that has it. */
void hook_say_why(int r, const char *since, char ret_why[WHY_SIZE]);
