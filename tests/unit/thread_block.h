/*
 * Thread blocks
 *
 * The words of CUDA that our kernels use, for the host: a kernel's file is included as it is and its thread
 * blocks are run, one after the other. The threads of one are contexts that go on from barrier to barrier
 * in an order drawn anew each time, so that a barrier that lacks shows as a wrong result.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __constant__
#define __shared__ static /* one thread block runs at a time */
#define __launch_bounds__(n)
#define __ldcs(p) (*(p))
#define __umul64hi(a, b) ((unsigned long long)((unsigned __int128)(a) * (b) >> 64))
#define __syncthreads() thread_wait()

/* clang knows it, gcc says that it does not. */
#pragma GCC diagnostic ignored "-Wunknown-pragmas"

typedef struct {
	unsigned long long x, y;
} __attribute__((aligned(16))) ulonglong2;

struct dim3 {
	unsigned x;
};

#define THREADS_MAX 256
#define STACK_SIZE ((size_t)64 << 10)

struct thread {
	ucontext_t context;
	bool ended;
#ifdef __SANITIZE_THREAD__
	void *fiber;
#endif
};

static struct dim3 blockIdx, threadIdx;

static struct {
	struct thread threads[THREADS_MAX];
	ucontext_t scheduler;
	char *stacks;
	void (*kernel)(void);
#ifdef __SANITIZE_THREAD__
	void *fiber;
#endif
} thread_block;

/* TSan is told which stack is run. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define thread_tell(fiber_) __tsan_switch_to_fiber(fiber_, 0)
#else
#define thread_tell(fiber_) ((void)0)
#endif

/* To the scheduler, which sees that all wait or none. */
static inline void thread_wait(void)
{
	struct thread *t = &thread_block.threads[threadIdx.x];

	thread_tell(thread_block.fiber);
	(void)swapcontext(&t->context, &thread_block.scheduler);
}

static inline void thread_main(void)
{
	thread_block.kernel();
	thread_block.threads[threadIdx.x].ended = true;
	thread_wait();
}

static inline void thread_start(struct thread *t, size_t i)
{
	(void)getcontext(&t->context);
	t->context.uc_stack.ss_sp = thread_block.stacks + i * STACK_SIZE;
	t->context.uc_stack.ss_size = STACK_SIZE;
	t->ended = false;
	makecontext(&t->context, thread_main, 0);
}

/* One turn of each, in a random order: how many ended. */
static inline unsigned thread_block_turn(unsigned n_threads)
{
	unsigned order[THREADS_MAX], n_ended = 0;

	for (unsigned i = 0; i < n_threads; i++) {
		unsigned at = (unsigned)rand() % (i + 1);

		order[i] = order[at];
		order[at] = i;
	}
	for (unsigned i = 0; i < n_threads; i++) {
		struct thread *t = &thread_block.threads[order[i]];

		threadIdx.x = order[i];
		thread_tell(t->fiber);
		(void)swapcontext(&thread_block.scheduler, &t->context);
		n_ended += t->ended;
	}
	return n_ended;
}

/* Once, for all launches: TSan's own part of it takes long. */
static inline void thread_block_init(void)
{
	thread_block.stacks = malloc(THREADS_MAX * STACK_SIZE);
	assert(thread_block.stacks);
#ifdef __SANITIZE_THREAD__
	thread_block.fiber = __tsan_get_current_fiber();
	for (unsigned i = 0; i < THREADS_MAX; i++)
		thread_block.threads[i].fiber = __tsan_create_fiber(0);
#endif
}

/* Runs a grid of `n_blocks` thread blocks; `kernel` knows its arguments. */
static inline void thread_block_launch(void (*kernel)(void), unsigned n_blocks, unsigned n_threads)
{
	assert(n_threads <= THREADS_MAX);
	thread_block.kernel = kernel;
	if (!thread_block.stacks)
		thread_block_init();
	for (blockIdx.x = 0; blockIdx.x < n_blocks; blockIdx.x++) {
		unsigned n_ended = 0;

		for (unsigned i = 0; i < n_threads; i++)
			thread_start(&thread_block.threads[i], i);
		while (n_ended == 0)
			n_ended = thread_block_turn(n_threads);
		assert(n_ended == n_threads); /* else some wait at a barrier that others never reach */
	}
}
