/*
 * The keeper
 *
 * A parent that starts the daemon and starts it again when it dies, for machines and containers without
 * a service manager. It speaks the protocol of systemd to its child: what the child hands in with FDSTORE=1
 * (under a name of at most 20 characters, and never polled) the next child finds in LISTEN_FDS. So the
 * weights survive every death but the keeper's own.
 *
 * SIGTERM and SIGINT end both; the child gets SIGINT then, for the end is final, and SIGTERM when it ends for
 * a successor: at SIGHUP, which starts the program that is to be found at its path by then. SIGUSR1 and
 * SIGUSR2 are passed on.
 */
#pragma once

#define KEEPER_STORE_MAX 6000
#define KEEPER_WATCHDOG_MS 10000 /* as WatchdogSec= of weightd.service */

struct keeper_options {
	const char *program; /* path; NULL: the one that is running */
	unsigned store_max; /* descriptors; the child finds it in $FDSTORE */
	unsigned watchdog_ms; /* a child that is silent for so long is killed; 0: never */
};

/*
 * Runs the program with `argv`, which must not ask for a keeper, and returns the exit status for
 * the process: that of a child which ended on its own, or after a signal to the keeper.
 */
int keeper_run(char *const argv[], const struct keeper_options *options);
