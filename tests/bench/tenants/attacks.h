/* The kinds of attacks. */
#pragma once

#include "tests/bench/tenants/crowd.h"

/* NULL: there is none of this name. */
const struct attack *attack_find(const char *name);

/* Writes their names to standard output, one a line. */
void attacks_print(void);
