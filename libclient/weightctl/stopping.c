#include "libclient/weightctl/stopping.h"

#include <signal.h>
#include <stddef.h>

/* The handler writes it. */
static volatile sig_atomic_t stop_signal;

static void stopping_on_signal(int signal)
{
	stop_signal = signal;
}

void stopping_catch(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	const struct sigaction action = {
		.sa_handler = stopping_on_signal,
		.sa_flags = SA_RESTART | (int)SA_RESETHAND,
	};
	struct sigaction old;

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		(void)sigaction(signals[i], NULL, &old); /* cannot fail for these */
		if (old.sa_handler != SIG_IGN)
			(void)sigaction(signals[i], &action, NULL);
	}
}

int stopping_signal(void)
{
	return stop_signal;
}
