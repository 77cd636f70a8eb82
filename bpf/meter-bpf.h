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

/* Loads and attaches it alone, for a moment: 0, or negative errno and why. */
int hook_probe(const struct hook *hook, char ret_why[WHY_SIZE]);
