/*
 * Notifies systemd that the tracer serves
 */
#pragma once

/* Does nothing without $NOTIFY_SOCKET. Returns 0, or negative errno. */
int ready_notify(void);
