/*
 * Events: a moment of a stream, and when it was
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "tests/fake/call.h"
#include "tests/fake/capture.h"
#include "tests/fake/context.h"
#include "tests/fake/stream.h"

#define BLOCKING_SYNC 1u
#define DISABLE_TIMING 2u
#define MAGIC 0x65766e74u

struct cu_event {
	unsigned magic; /* set until it is destroyed */
	unsigned refs; /* its own, and those of records on their way */
	unsigned flags;
	unsigned n_records;
	struct moment moment; /* no stream: nothing was recorded, which is as good as passed */
	struct timespec time; /* time of the last record that is done */
};

struct record {
	struct work work;
	struct cu_event *event;
	unsigned number;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* all events */

static void unref(struct cu_event *e)
{
	if (!--e->refs) {
		stream_unref(e->moment.stream);
		free(e);
	}
}

static cu_result run_record(struct work *w)
{
	struct record *record = (struct record *)w;
	struct cu_event *e = record->event;

	(void)pthread_mutex_lock(&mutex);
	if (e->n_records == record->number)
		(void)clock_gettime(CLOCK_MONOTONIC, &e->time);
	(void)pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

static void end_record(struct work *w)
{
	struct record *record = (struct record *)w;

	(void)pthread_mutex_lock(&mutex);
	unref(record->event);
	(void)pthread_mutex_unlock(&mutex);
	free(record);
}

static bool is_event(cu_event e)
{
	return e && e->magic == MAGIC;
}

CALL(cuEventCreate, cu_event *ret, unsigned flags)
{
	struct cu_event *e;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (flags & ~(BLOCKING_SYNC | DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->magic = MAGIC;
	e->refs = 1;
	e->flags = flags;
	*ret = e;
	return CUDA_SUCCESS;
}

CALL(cuEventDestroy_v2, cu_event e)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!is_event(e))
		return CUDA_ERROR_INVALID_HANDLE;
	(void)pthread_mutex_lock(&mutex);
	e->magic = 0;
	unref(e);
	(void)pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

CALL(cuEventRecord, cu_event e, cu_stream wanted)
{
	struct record *record;
	struct cu_stream *s;
	struct moment m, before;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!is_event(e))
		return CUDA_ERROR_INVALID_HANDLE;
	r = stream_find(wanted, &s);
	if (r)
		return r;
	record = calloc(1, sizeof(*record));
	if (!record)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(void)pthread_mutex_lock(&mutex);
	e->refs++;
	*record = (struct record){{.run = run_record, .end = end_record}, e, ++e->n_records};
	(void)pthread_mutex_unlock(&mutex);
	r = stream_submit(s, &record->work, &m);
	if (r)
		return r;
	(void)pthread_mutex_lock(&mutex);
	before = e->moment;
	e->moment = m;
	(void)pthread_mutex_unlock(&mutex);
	stream_unref(before.stream);
	return CUDA_SUCCESS;
}

CALL(cuEventQuery, cu_event e)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!is_event(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return stream_has_passed(&e->moment) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CALL(cuEventSynchronize, cu_event e)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!is_event(e))
		return CUDA_ERROR_INVALID_HANDLE;
	stream_wait_for(&e->moment);
	return context_error(context_current());
}

CALL(cuStreamWaitEvent, cu_stream wanted, cu_event e, unsigned flags)
{
	struct cu_stream *s;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (flags || !is_event(e))
		return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	r = stream_find(wanted, &s);
	return r ? r : stream_submit_wait(s, &e->moment);
}

CALL(cuEventElapsedTime, float *ret_ms, cu_event from, cu_event to)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!is_event(from) || !is_event(to) || ((from->flags | to->flags) & DISABLE_TIMING) ||
	    !from->moment.stream || !to->moment.stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!stream_has_passed(&from->moment) || !stream_has_passed(&to->moment))
		return CUDA_ERROR_NOT_READY;
	*ret_ms = (float)(to->time.tv_sec - from->time.tv_sec) * 1e3f +
		  (float)(to->time.tv_nsec - from->time.tv_nsec) / 1e6f;
	return CUDA_SUCCESS;
}
