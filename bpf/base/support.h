/*
 * Support for BPF: what this kernel, and the rights of this process, allow
 */
#pragma once

#include <stdbool.h>

#define WHY_SIZE 256 /* bytes of a sentence that explains why something is not available */

/*
 * The first Linux with all that BPF programs need here: atomic operations, and sockets found by a cookie.
 */
#define BPF_SINCE "5.12"

bool support_has_capability(unsigned capability);
/* True where the kernel describes itself, which every program of the meter needs. */
bool support_has_btf(void);

/* Explains why the kernel refused something of BPF with `r`; `since` is the first Linux that has it. */
void support_explain(int r, const char *since, char ret_why[WHY_SIZE]);
