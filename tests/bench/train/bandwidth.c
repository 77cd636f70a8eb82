/*
 * bandwidth THREADS BYTES: what memory gives to so many threads, for rounds (rounds.h)
 *
 * "copy": with non-temporal stores, which read nothing that they overwrite. "copy_cached": memcpy(). "triad": a = b + s * c,
 * non-temporal. All threads together do SIZE bytes of each array, each thread its part.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bench/stopwatch.h"
#include "tests/bench/train/rounds.h"

#ifdef __x86_64__
#include <emmintrin.h>
#define stream(to, x) _mm_stream_ps((float *)(to), (__m128)(x))
#define fence() _mm_sfence()
#else
#define stream(to, x) (*(to) = (x))
#define fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

#define THREADS_MAX 64
#define HUGE 2097152

typedef float vec __attribute__((vector_size(16)));

struct bandwidth {
	vec *a, *b, *c;
	uint64_t n_threads;
	const struct round *round;
	pthread_barrier_t barrier;
	pthread_t threads[THREADS_MAX];
	bool ended;
};

struct worker {
	struct bandwidth *bandwidth;
	uint64_t index;
};

static struct worker workers[THREADS_MAX];

static void part_run(const struct worker *w)
{
	const struct bandwidth *b = w->bandwidth;
	uint64_t lines = b->round->size / 64;
	uint64_t begin = lines * w->index / b->n_threads * 4;
	uint64_t end = lines * (w->index + 1) / b->n_threads * 4;

	if (!strcmp(b->round->verb, "copy_cached")) {
		memcpy(b->a + begin, b->b + begin, (end - begin) * sizeof(vec));
	} else if (!strcmp(b->round->verb, "copy")) {
		for (uint64_t i = begin; i < end; i++)
			stream(b->a + i, b->b[i]);
		fence();
	} else {
		for (uint64_t i = begin; i < end; i++)
			stream(b->a + i, b->b[i] + 3.0f * b->c[i]);
		fence();
	}
}

static void *worker_run(void *context)
{
	const struct worker *w = context;

	for (;;) {
		(void)pthread_barrier_wait(&w->bandwidth->barrier);
		if (w->bandwidth->ended)
			return NULL;
		part_run(w);
		(void)pthread_barrier_wait(&w->bandwidth->barrier);
	}
}

static void bandwidth_begin(void *context)
{
	(void)context;
}

static void bandwidth_run(void *context)
{
	struct bandwidth *b = context;

	(void)pthread_barrier_wait(&b->barrier);
	part_run(&workers[0]);
	(void)pthread_barrier_wait(&b->barrier);
}

static vec *array_new(uint64_t size)
{
	vec *array = aligned_alloc(HUGE, (size + HUGE - 1) / HUGE * HUGE);

	if (!array)
		stopwatch_fail("out of memory");
	(void)madvise(array, size, MADV_HUGEPAGE);
	memset(array, 0, size);
	return array;
}

int main(int argc, char **argv)
{
	static struct bandwidth b;
	struct rounds rounds;
	struct round round;
	uint64_t size;

	if (argc != 3)
		stopwatch_fail("wants THREADS BYTES");
	b.n_threads = stopwatch_number(argv[1]);
	size = stopwatch_number(argv[2]);
	if (b.n_threads == 0 || b.n_threads > THREADS_MAX)
		stopwatch_fail("1 to %d threads", THREADS_MAX);
	b.a = array_new(size);
	b.b = array_new(size);
	b.c = array_new(size);
	b.round = &round;
	(void)pthread_barrier_init(&b.barrier, NULL, (unsigned)b.n_threads);
	for (uint64_t i = 0; i < b.n_threads; i++) {
		workers[i] = (struct worker){&b, i};
		if (i > 0 && pthread_create(&b.threads[i], NULL, worker_run, &workers[i]))
			stopwatch_fail("cannot start a thread");
	}
	rounds = rounds_open(0);
	while (rounds_next(&rounds, &round))
		rounds_measure(&rounds, &round, bandwidth_begin, bandwidth_run, &b);
	b.ended = true;
	(void)pthread_barrier_wait(&b.barrier);
	for (uint64_t i = 1; i < b.n_threads; i++)
		(void)pthread_join(b.threads[i], NULL);
	return 0;
}
