/*
 * Termination signals as a request to stop
 *
 * For verbs that poll a flag: SIGINT, SIGTERM and SIGHUP raise it, and the verb cleans up. A second signal kills.
 */
#pragma once

/* Signals that the caller ignores stay ignored, for nohup. */
void stopping_catch(void);
/* The number of the signal that arrived, 0 for none. */
int stopping_signal(void);
