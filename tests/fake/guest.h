/*
 * Guests
 *
 * What the stand-in for libnccl asks of the one for libcuda, beside what any program may: work of its own in a
 * stream, and bytes of the GPU for it. Real ones have kernels for that.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/fake/call.h"

struct guest; /* bytes that are held */

/* `run` on the stream's thread, in its turn; `arg` is its own to free, and goes unused where the context is gone. */
cu_result cuFakeRun(cu_stream s, cu_result (*run)(void *arg), void *arg);

/* The GPU of the current context: its number, -1 where there is none. */
int cuFakeGpu(void);

/* The bytes at an address of that GPU, all in one allocation, until cuFakeLetGo(). NULL: its kernels may not use them so. */
char *cuFakeBytes(cu_ptr p, uint64_t size, int gpu, bool writes, struct guest **ret);
void cuFakeLetGo(struct guest *g);
