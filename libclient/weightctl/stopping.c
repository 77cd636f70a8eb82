/*
 * A read of a stalled file system lets no handler run in its thread, and no signal but a fatal one ends it. So another
 * thread waits for the signals, and ends the program.
 */
#include "libclient/weightctl/stopping.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/clock.h"

#define PATIENCE_NS UINT64_C(2000000000)

enum {
	RUNS,
	SETTLED,
	ENDS,
};

static const char *words;
static uint64_t end_ns; /* 0: no timeout */
static sigset_t awaited;
static _Atomic int stop_signal;
static _Atomic int state;

static struct timespec time_of(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

/* Returns the signal, or 0 at the deadline, if there is one. */
static int await_signal(uint64_t deadline_ns)
{
	for (;;) {
		uint64_t now = clock_now_ns();
		struct timespec left = time_of(deadline_ns > now ? deadline_ns - now : 0);
		int signal = sigtimedwait(&awaited, NULL, deadline_ns ? &left : NULL);

		if (signal > 0)
			return signal;
		if (errno == EAGAIN)
			return 0;
	}
}

static void let_next_kill(int number)
{
	sigset_t set;

	(void)signal(number, SIG_DFL);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, number);
	(void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static bool become(int next)
{
	int was = RUNS;

	return atomic_compare_exchange_strong(&state, &was, next);
}

static void *stopping_main(void *arg)
{
	int signal = await_signal(end_ns ? end_ns + PATIENCE_NS : 0);

	(void)arg;
	if (signal) {
		atomic_store(&stop_signal, signal);
		let_next_kill(signal);
		(void)sigemptyset(&awaited);
		(void)await_signal(clock_now_ns() + PATIENCE_NS);
	}
	if (words && become(ENDS)) {
		(void)!write(STDERR_FILENO, words, strlen(words));
		_exit(signal ? EXIT_SIGNAL + signal : EXIT_FAILED);
	}
	for (;;) /* the only thread that the next signal can kill */
		(void)pause();
}

void stopping_catch(const char *last_words, int timeout_ms)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction old;
	pthread_t thread;
	sigset_t before;

	words = last_words;
	end_ns = timeout_ms > 0 ? clock_now_ns() + (uint64_t)timeout_ms * 1000000 : 0;
	(void)sigemptyset(&awaited);
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		(void)sigaction(signals[i], NULL, &old); /* cannot fail for these */
		if (old.sa_handler != SIG_IGN)
			(void)sigaddset(&awaited, signals[i]);
	}
	(void)pthread_sigmask(SIG_BLOCK, &awaited, &before);
	if (pthread_create(&thread, NULL, stopping_main, NULL) == 0)
		(void)pthread_detach(thread);
	else
		(void)pthread_sigmask(SIG_SETMASK, &before, NULL); /* the first signal kills */
}

void stopping_settle(void)
{
	if (!become(SETTLED) && atomic_load(&state) == ENDS)
		for (;;)
			(void)pause();
}

int stopping_signal(void)
{
	return atomic_load(&stop_signal);
}
