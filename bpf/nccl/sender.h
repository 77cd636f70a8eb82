/*
 * The thread that tells weightd-trace what callbacks wrote down
 */
#pragma once

/* With the lock of plugin.c. 0, or negative errno: then nothing is told. */
int sender_start(void);
/* Tells what there is still, if that takes no longer than half a second, and is no more. */
void sender_stop(void);
/* In a child of the process, which has no such thread. */
void sender_forget(void);

/* Any thread. */
void sender_wake(void);
void sender_wake_if_idle(void);
