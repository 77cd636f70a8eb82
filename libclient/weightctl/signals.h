/*
 * The signals that ask to end, as something to wait for
 */
#pragma once

/*
 * Blocks SIGINT, SIGTERM and SIGHUP in this thread and those it starts; what the caller ignores stays ignored:
 * nohup. A descriptor that can be read when one came, or a negative errno.
 */
int signals_open(void);
/* The number of the signal that came, 0 for none. */
int signals_take(int fd);
