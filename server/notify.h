/*
 * The service manager
 *
 * Readiness, the end, a line of status, and the listening socket it may have opened for us. Two files
 * stand behind this page: notify-systemd.c, and notify-none.c where libsystemd is absent.
 */
#pragma once

/* Each does nothing without a service manager. */
void notify_ready(void);
void notify_stopping(void);

/* The one listening socket that was passed on. -ENOENT: none; -EINVAL: several, or no SEQPACKET one. */
int notify_listen_fd(int *ret_fd);
