/*
 * A record of the work of streams
 *
 * With FAKE_CUDA_RECORD=1 the file "record" of the state has a line for each copy and kernel when it is queued, begins and
 * ends: "queue 3 HtoD 0 2097152" is number, kind, GPU and bytes (of a kernel: its blocks). Lines are in the order in which
 * things happened, in all processes.
 */
#pragma once

#include <stddef.h>

struct recorded {
	unsigned number; /* 0: it is not recorded */
	const char *kind;
	int gpu;
	size_t size;
};

/* "pin 1 host 2 4194304": host memory was pinned by a thread that may run on two processors. */
void record_pinned(size_t size);
void record_queue(struct recorded *r, const char *kind, int gpu, size_t size);
void record_begin(const struct recorded *r);
void record_end(const struct recorded *r);
