/*
 * Contexts
 *
 * Primary ones only: one per GPU and process, which costs memory of the GPU (FAKE_CUDA_CONTEXT, 8M) while it is
 * retained. Which one is current is each thread's own affair. What goes wrong in a kernel or in a queued copy
 * spoils the context for good.
 */
#pragma once

#include "ipc/base/list.h"
#include "tests/fake/call.h"

/* 0, or why nothing can be done in the current one. */
cu_result context_check(void);

/* The current context, which context_check() found, and its GPU. */
cu_context context_current(void);
int context_gpu(void);

int context_gpu_of(cu_context c);
cu_result context_error(cu_context c);
void context_break(cu_context c, cu_result error);

/* Waits for all work in the current context; what came of it. */
cu_result context_wait(void);
