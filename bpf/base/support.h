/*
 * What this kernel, and the rights of this process, allow of BPF
 */
#pragma once

#include <stdbool.h>

#define WHY_SIZE 256 /* of a sentence that says why something cannot be had */

/* The first Linux that has what all of BPF here takes: operations that are atomic, and sockets known by a cookie. */
#define BPF_SINCE "5.12"

bool support_has_capability(unsigned capability);
/* True where the kernel describes itself, which every program of the meter needs. */
bool support_has_btf(void);

/* Explains why the kernel refused something of BPF with `r`; `since` is the first Linux that has it. */
void support_explain(int r, const char *since, char ret_why[WHY_SIZE]);
