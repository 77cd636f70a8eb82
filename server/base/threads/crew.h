/*
 * The crew
 *
 * Threads that work beside a step of the worker, where there is more than one processor: all call one function, which hands
 * out shares of the work to whoever asks next. They may come late or not at all; the step must not need them.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#define CREW_MAX 3

struct crew {
	pthread_t threads[CREW_MAX];
	unsigned n_threads;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed;
	void (*work)(void *arg);
	void *arg;
	unsigned n_wanted; /* threads that are to begin it */
	unsigned n_busy; /* threads in it */
	bool stop;
};

void crew_init(struct crew *h);
void crew_deinit(struct crew *h);

/* Has `n` threads at most call work(arg) soon. Starts as many as are missing; fewer will do. */
void crew_begin(struct crew *h, unsigned n, void (*work)(void *arg), void *arg);
/* Waits until all that began it have left work(). The others do not begin it any more. */
void crew_end(struct crew *h);
