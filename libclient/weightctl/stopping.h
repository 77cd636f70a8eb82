/*
 * Termination signals as a request to stop
 *
 * For verbs that poll a flag: SIGINT, SIGTERM and SIGHUP raise it, and the verb cleans up. A second signal of the same kind
 * kills.
 */
#pragma once

/*
 * Takes the signals in a thread of its own, which works while the verb waits for a file system. Signals that the caller
 * ignores stay ignored, for nohup.
 *
 * With `last_words`, a line, the verb may be ended: if it has neither ended nor called stopping_settle() two seconds after a
 * signal, or after `timeout_ms`, > 0, these are written to standard error, and the program exits.
 */
void stopping_catch(const char *last_words, int timeout_ms);
/* From now on the verb is not ended any more. Does not return if it is being ended. */
void stopping_settle(void);
/* The number of the signal that arrived, 0 for none. */
int stopping_signal(void);
