/*
 * Killing a client
 *
 * SIGKILL for the process that connected, by a pidfd of the socket: never for another one that has its pid now, nor
 * for one that has become another user's, such as a program with the set-user-ID bit.
 */
#pragma once

struct session;

/* -ESRCH: it is dead already. -EPERM: not permitted to weightd, or another user's now. -ENOPROTOOPT: before Linux 6.5. */
int session_kill(const struct session *s);
