/*
 * The thread that tells weightd-trace what callbacks wrote down
 */
#pragma once

/* With the lock of plugin.c. 0, or negative errno: then nothing is told. */
int teller_start(void);
/* Tells what there is still, if that takes no longer than half a second, and is no more. */
void teller_stop(void);
/* In a child of the process, which has no such thread. */
void teller_forget(void);

/* Any thread. */
void teller_wake(void);
void teller_wake_if_idle(void);
