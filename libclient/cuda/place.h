/*
 * Places
 *
 * A GPU and the context to work in. The driver is called in the caller's current context if that is on this GPU,
 * else in the GPU's primary context, the one of the CUDA runtime and of torch, which is retained for as long as the
 * memory exists. A call restores the current context. During the call the thread may also make driver calls that,
 * by default, would invalidate an unrelated capture of another thread.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "libclient/cuda/gpu.h"

struct place {
	const struct cuda_driver *driver;
	cu_device device;
	cu_context primary;
	pid_t owner; /* a child of it has the addresses, and nothing of the GPU behind them */
};

/* Creates the primary context if it does not exist, which takes a second and some memory of the GPU. */
int place_init(struct place *p, const struct cuda_driver *d, cu_device device, struct sentence *s);
void place_deinit(struct place *p);

struct visit {
	const struct place *place; /* NULL: it has ended, or never began */
	bool has_pushed;
	int capture_mode; /* capture mode of the thread before */
};

/* -ECHILD: called in a child of the process that owns the memory. */
int place_enter(const struct place *p, struct visit *ret, struct sentence *s);
/* Likewise, in the primary context whatever is current. */
int place_enter_primary(const struct place *p, struct visit *ret, struct sentence *s);
void place_leave(struct visit *v);

/* Waits for all streams of this process on the GPU: of its primary context, and of the current one. */
int place_synchronize(const struct place *p, struct sentence *s);
