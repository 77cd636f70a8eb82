/* Layouts that are as expensive to check as the protocol allows. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Returns a sealed memfd with a layout of about `size` bytes, for data of `data_size` bytes. A broken one fails at the
 * last step of its check: a create with it costs all of the check, and leaves nothing that a limit counts. Fails the
 * program.
 */
int hostile_layout_new(uint64_t size, uint64_t data_size, bool broken);
