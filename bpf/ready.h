/*
 * Tells systemd that the tracer serves
 */
#pragma once

/* Where nobody wants to know, it does nothing. 0, or negative errno. */
int ready_notify(void);
