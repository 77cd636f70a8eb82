/*
 * Digests on a GPU
 *
 * The kernel of digest.cu: leaves of a GPU's memory are digested where they are.
 */
#pragma once

/* Of digest.ptx: text with a NUL at its end. */
extern const char digest_ptx[];
