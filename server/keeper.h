/*
 * The keeper
 *
 * A parent that starts the daemon and starts it again when it dies, for machines and containers without
 * a service manager. It passes SIGTERM and SIGINT on, and ends when the daemon ends by its own will.
 */
#pragma once

/* Runs `argv`, which must not ask for a keeper. Returns the exit status for the process. */
int keeper_run(char *const argv[]);
