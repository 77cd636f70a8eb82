/*
 * What the meter that is made of BPF programs needs of this kernel, one by one
 */
#pragma once

#include <stddef.h>

#include "bpf/meter.h"

struct hook {
	const char *program; /* its name in flows.bpf.c */
	const char *name;
	const char *lost; /* without it */
};

extern const struct hook hooks[];
extern const size_t n_hooks;

/* Whether it is in use, or as on_send and on_receive ready to be. Of the other meter none is. */
bool hook_is_on(const struct meter *m, const struct hook *hook);
/* Loads and attaches it alone, for a moment: 0, or negative errno and why. */
int hook_probe(const struct hook *hook, char ret_why[WHY_SIZE]);

/* Why the kernel refused something of BPF with `r`. */
void hook_say_why(int r, char ret_why[WHY_SIZE]);
