/*
 * Helpers
 *
 * Threads that work beside a step of the worker, where there is more than one processor: all call one function, which hands
 * out shares of the work to whoever asks next. Helpers may come late or not at all; the step must not need them.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#define HELPERS_MAX 3

struct helpers {
	pthread_t threads[HELPERS_MAX];
	unsigned n_threads;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed;
	void (*work)(void *arg);
	void *arg;
	unsigned n_wanted; /* threads that are to begin it */
	unsigned n_busy; /* threads in it */
	bool stop;
};

void helpers_init(struct helpers *h);
void helpers_deinit(struct helpers *h);

/* Has `n` threads at most call work(arg) soon. Starts as many as are missing; fewer will do. */
void helpers_begin(struct helpers *h, unsigned n, void (*work)(void *arg), void *arg);
/* Waits until all that began it have left work(). The others do not begin it any more. */
void helpers_end(struct helpers *h);
