/* The control of an attack: its processor time without its requests. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

/* Computes for `share` of the time, 0 to 1, until `stop` is true. A thread of its own calls it. */
void burn(double share, const atomic_bool *stop);
