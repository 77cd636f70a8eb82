/*
 * The service manager
 *
 * Messages to systemd, or to a keeper, by sd_notify's protocol: one datagram a message, in order.
 * Not through libsystemd: its sd_notify() waits while the manager's queue is full: here messages
 * wait in a queue, and the loop continues. Pings of the watchdog overtake them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/base/loop.h"

struct notify {
	struct loop *loop;
	struct source source; /* the socket, which we own; fd -1 without a service manager */
	struct list queue; /* messages the manager had no room for */
	struct timer retry;
	struct timer watchdog;
	uint64_t watchdog_ns; /* between two pings; 0: none are expected */
	bool gone; /* the manager does not receive messages any more */
};

/* Reads NOTIFY_SOCKET and WATCHDOG_USEC. Logs what is wrong with them, which is no failure. */
void notify_init(struct notify *n, struct loop *l);
void notify_deinit(struct notify *n);

/* True when there is a service manager that receives messages. */
bool notify_works(const struct notify *n);

/* Sends a message of lines, now or soon, with `fd` (borrowed) unless it is -1. -ENOTCONN, -ENOMEM, -EMFILE. */
int notify_send(struct notify *n, const char *text, int fd);

/* READY=1: starts the pings too. */
void notify_ready(struct notify *n, const char *status);
