#include "tests/fake/stream.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/fake/context.h"
#include "tests/fake/state.h"

#define NON_BLOCKING 1u

struct cu_stream {
	struct list link; /* streams */
	cu_context context;
	bool is_default, is_non_blocking, is_ending;
	unsigned refs; /* its own one, its thread's, those of moments */
	struct list queue; /* work::link */
	uint64_t n_submitted, n_done;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* all streams */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* in any of them */
static struct list streams = {&streams, &streams};

static void unref(struct cu_stream *s)
{
	if (s && !--s->refs)
		free(s);
}

void stream_unref(struct cu_stream *s)
{
	(void)pthread_mutex_lock(&mutex);
	unref(s);
	(void)pthread_mutex_unlock(&mutex);
}

/* Under the mutex, which work::end may need itself. */
static void forget_moments(struct work *w)
{
	for (size_t i = 0; i < w->n_after; i++)
		unref(w->after[i].stream);
	free(w->after);
	w->after = NULL;
	w->n_after = 0;
}

static bool is_due(const struct work *w)
{
	for (size_t i = 0; i < w->n_after; i++)
		if (w->after[i].stream->n_done < w->after[i].n)
			return false;
	return true;
}

static bool is_gate_shut(void)
{
	char path[4096];
	bool shut = true;
	FILE *f;
	int pid;

	state_path("gate", path, sizeof(path));
	f = fopen(path, "re");
	if (!f)
		return false;
	for (int n = 0; fscanf(f, "%d", &pid) == 1; n++) {
		if (n == 0)
			shut = false;
		shut |= pid == getpid();
	}
	(void)fclose(f);
	return shut;
}

static void pass_gate(void)
{
	while (is_gate_shut())
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void run_work(struct cu_stream *s, struct work *w)
{
	cu_result r = CUDA_SUCCESS;

	pass_gate();
	if (!context_error(s->context)) /* after an error nothing runs any more */
		r = w->run(w);
	if (r)
		context_break(s->context, r);
}

static void *stream_thread(void *arg)
{
	struct cu_stream *s = arg;

	(void)pthread_mutex_lock(&mutex);
	for (;;) {
		struct work *w = list_first(&s->queue, struct work, link);

		if (!w && s->is_ending)
			break;
		if (!w || !is_due(w)) {
			(void)pthread_cond_wait(&changed, &mutex);
			continue;
		}
		list_remove(&w->link);
		(void)pthread_mutex_unlock(&mutex);
		run_work(s, w);
		(void)pthread_mutex_lock(&mutex);
		forget_moments(w);
		s->n_done++;
		(void)pthread_cond_broadcast(&changed);
		(void)pthread_mutex_unlock(&mutex);
		w->end(w);
		(void)pthread_mutex_lock(&mutex);
	}
	unref(s);
	(void)pthread_mutex_unlock(&mutex);
	return NULL;
}

static int start_thread(struct cu_stream *s)
{
	sigset_t all, before;
	pthread_t thread;
	int r;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all,
			      &before); /* signals are for the program's own threads */
	r = pthread_create(&thread, NULL, stream_thread, s);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!r)
		(void)pthread_detach(thread);
	return r;
}

/* Under the mutex. */
static cu_result stream_new(cu_context c, unsigned flags, bool is_default, struct cu_stream **ret)
{
	struct cu_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->context = c;
	s->is_default = is_default;
	s->is_non_blocking = flags & NON_BLOCKING;
	s->refs = 2;
	list_init(&s->queue);
	if (start_thread(s)) {
		free(s);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	list_append(&streams, &s->link);
	*ret = s;
	return CUDA_SUCCESS;
}

/* Under the mutex. */
static struct cu_stream *default_stream(cu_context c)
{
	struct cu_stream *s;

	list_for_each(s, &streams, link)
		if (s->context == c && s->is_default)
			return s;
	return stream_new(c, 0, true, &s) ? NULL : s;
}

/* Under the mutex. */
static struct cu_stream *find(cu_context c, cu_stream wanted)
{
	struct cu_stream *s;

	if ((uintptr_t)wanted <= 2) /* 1 and 2 are names of the default stream, too */
		return default_stream(c);
	list_for_each(s, &streams, link)
		if (s == wanted && s->context == c && !s->is_ending)
			return s;
	return NULL;
}

cu_result stream_find(cu_stream s, struct cu_stream **ret)
{
	(void)pthread_mutex_lock(&mutex);
	*ret = find(context_current(), s);
	(void)pthread_mutex_unlock(&mutex);
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Under the mutex: the rule of the default stream. */
static bool waits_for(const struct cu_stream *s, const struct cu_stream *other)
{
	if (s == other || s->context != other->context || s->is_non_blocking ||
	    other->is_non_blocking)
		return false;
	return s->is_default || other->is_default;
}

/* Under the mutex. */
static int add_moment(struct work *w, struct cu_stream *s, uint64_t n)
{
	struct moment *more;

	if (s->n_done >= n)
		return 0;
	more = realloc(w->after, (w->n_after + 1) * sizeof(*more));
	if (!more)
		return -1;
	s->refs++;
	more[w->n_after++] = (struct moment){s, n};
	w->after = more;
	return 0;
}

/* Under the mutex. */
static cu_result order(struct cu_stream *s, struct work *w)
{
	struct cu_stream *other;

	list_for_each(other, &streams, link)
		if (waits_for(s, other) && add_moment(w, other, other->n_submitted) < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

cu_result stream_submit(struct cu_stream *s, struct work *w, struct moment *ret_moment)
{
	cu_result r;

	(void)pthread_mutex_lock(&mutex);
	r = order(s, w);
	if (r) {
		forget_moments(w);
	} else {
		list_append(&s->queue, &w->link);
		s->n_submitted++;
		if (ret_moment) {
			*ret_moment = (struct moment){s, s->n_submitted};
			s->refs++;
		}
		(void)pthread_cond_broadcast(&changed);
	}
	(void)pthread_mutex_unlock(&mutex);
	if (r)
		w->end(w);
	return r;
}

cu_result stream_run_now(struct work *w)
{
	cu_context c = context_current();
	struct cu_stream *s;
	cu_result r;

	(void)pthread_mutex_lock(&mutex);
	s = default_stream(c);
	r = s ? order(s, w) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!r && add_moment(w, s, s->n_submitted) < 0)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	while (!r && !is_due(w))
		(void)pthread_cond_wait(&changed, &mutex);
	(void)pthread_mutex_unlock(&mutex);
	if (!r)
		r = context_error(c);
	if (!r) {
		r = w->run(w);
		if (r)
			context_break(c, r);
	}
	(void)pthread_mutex_lock(&mutex);
	forget_moments(w);
	(void)pthread_mutex_unlock(&mutex);
	w->end(w);
	return r;
}

bool stream_has_passed(const struct moment *m)
{
	bool passed;

	(void)pthread_mutex_lock(&mutex);
	passed = !m->stream || m->stream->n_done >= m->n;
	(void)pthread_mutex_unlock(&mutex);
	return passed;
}

void stream_wait_for(const struct moment *m)
{
	(void)pthread_mutex_lock(&mutex);
	while (m->stream && m->stream->n_done < m->n)
		(void)pthread_cond_wait(&changed, &mutex);
	(void)pthread_mutex_unlock(&mutex);
}

static cu_result run_nothing(struct work *w)
{
	(void)w;
	return CUDA_SUCCESS;
}

static void end_nothing(struct work *w)
{
	free(w);
}

cu_result stream_submit_wait(struct cu_stream *s, const struct moment *m)
{
	struct work *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return CUDA_ERROR_OUT_OF_MEMORY;
	w->run = run_nothing;
	w->end = end_nothing;
	(void)pthread_mutex_lock(&mutex);
	r = m->stream ? add_moment(w, m->stream, m->n) : 0;
	(void)pthread_mutex_unlock(&mutex);
	if (r < 0) {
		free(w);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return stream_submit(s, w, NULL);
}

void stream_wait_all(cu_context c)
{
	struct cu_stream *s;
	bool waiting;

	(void)pthread_mutex_lock(&mutex);
	do {
		waiting = false;
		list_for_each(s, &streams, link)
			waiting |= s->context == c && s->n_done < s->n_submitted;
		if (waiting)
			(void)pthread_cond_wait(&changed, &mutex);
	} while (waiting);
	(void)pthread_mutex_unlock(&mutex);
}

/* Under the mutex. What is queued is done still. */
static void end(struct cu_stream *s)
{
	s->is_ending = true;
	list_remove(&s->link);
	unref(s);
	(void)pthread_cond_broadcast(&changed);
}

void stream_end_all(cu_context c)
{
	struct cu_stream *s, *tmp;

	stream_wait_all(c);
	(void)pthread_mutex_lock(&mutex);
	list_for_each_safe(s, tmp, &streams, link)
		if (s->context == c)
			end(s);
	(void)pthread_mutex_unlock(&mutex);
}

CALL(cuStreamCreate, cu_stream *ret, unsigned flags)
{
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (flags & ~NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	(void)pthread_mutex_lock(&mutex);
	r = stream_new(context_current(), flags, false, ret);
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

CALL(cuStreamDestroy_v2, cu_stream s)
{
	struct cu_stream *found;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	r = stream_find(s, &found);
	if (r || found->is_default)
		return CUDA_ERROR_INVALID_HANDLE;
	(void)pthread_mutex_lock(&mutex);
	end(found);
	(void)pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* The moment after the work that is queued now: held until stream_unref(). */
static cu_result last_moment(cu_stream wanted, struct moment *ret)
{
	struct cu_stream *s;

	(void)pthread_mutex_lock(&mutex);
	s = find(context_current(), wanted);
	if (s) {
		s->refs++;
		*ret = (struct moment){s, s->n_submitted};
	}
	(void)pthread_mutex_unlock(&mutex);
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

cu_result stream_wait(cu_stream s)
{
	struct moment m;
	cu_result r = last_moment(s, &m);

	if (r)
		return r;
	stream_wait_for(&m);
	stream_unref(m.stream);
	return context_error(context_current());
}

CALL(cuStreamSynchronize, cu_stream s)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return stream_wait(s);
}

CALL(cuStreamQuery, cu_stream s)
{
	struct cu_stream *found;
	struct moment m;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	r = stream_find(s, &found);
	if (r)
		return r;
	(void)pthread_mutex_lock(&mutex);
	m = (struct moment){found, found->n_submitted};
	(void)pthread_mutex_unlock(&mutex);
	return stream_has_passed(&m) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
