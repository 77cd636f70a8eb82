/*
 * Streams
 *
 * Each is a thread with a queue. The default stream (NULL) is one per context, which waits for what was queued
 * before in all others and holds up what is queued later, except with those that are non-blocking. While the
 * file FAKE_CUDA_STATE/gate exists nothing that is queued runs; with numbers in it, this holds for the
 * processes that have them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "tests/fake/call.h"

/* Queued work: the first part of a larger struct from malloc(). */
struct work {
	cu_result (*run)(struct work *w); /* an error spoils the context */
	void (*end)(struct work *w); /* frees it, whether it ran or not */
	struct list link; /* cu_stream::queue */
	struct moment *after; /* starts after it */
	size_t n_after;
};

/* The work queued in a stream up to now, by number: done once the stream has done as many. */
struct moment {
	struct cu_stream *stream;
	uint64_t n;
};

/* CUDA_ERROR_INVALID_HANDLE: no stream of the current context. NULL is its default stream. */
cu_result stream_find(cu_stream s, struct cu_stream **ret);

/* Takes over the work. `ret_moment`, if not NULL, holds the stream: see stream_unref(). */
cu_result stream_submit(struct cu_stream *s, struct work *w, struct moment *ret_moment);

/* One piece of work in the default stream, done in this thread, without a gate. */
cu_result stream_run_now(struct work *w);

bool stream_has_passed(const struct moment *m);
void stream_wait_for(const struct moment *m);
void stream_unref(struct cu_stream *s);

/* Waits for the work queued in one stream of the current context. Returns the error of the context. */
cu_result stream_wait(cu_stream s);

/* Makes what is queued later in `s` wait for the moment. */
cu_result stream_submit_wait(struct cu_stream *s, const struct moment *m);

/* All streams of a context: waits for what is queued; ends them. */
void stream_wait_all(cu_context c);
void stream_end_all(cu_context c);
