/*
 * The sender: a thread that reports the records of callbacks to weightd-trace
 */
#pragma once

/* With the lock of plugin.c. 0, or negative errno: then nothing is reported. */
int sender_start(void);
/* Reports what is left, if that takes no longer than half a second, and ends the thread. */
void sender_stop(void);
/* In a child of the process, which has no such thread. */
void sender_forget(void);

/* Any thread. */
void sender_wake(void);
void sender_wake_if_idle(void);
