/*
 * Termination signals as a descriptor to poll
 */
#pragma once

/*
 * Blocks SIGINT, SIGTERM and SIGHUP in this thread and the threads it starts; a signal that the caller ignores stays
 * ignored, for nohup. Returns a descriptor that is readable when one arrives, or a negative errno.
 */
int signals_open(void);
/* The number of the signal that arrived, 0 for none. */
int signals_take(int fd);
