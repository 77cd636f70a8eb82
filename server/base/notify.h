/*
 * The service manager
 *
 * Messages to systemd, or to a keeper, by sd_notify's protocol: one datagram a message. Not through
 * libsystemd: while the manager's queue is full, sd_pid_notify_with_fds() waits without a limit (systemd 252: in its 12th
 * call, with a manager that does not read). Here messages wait, and the loop continues. Those of one user are sent in order;
 * users take turns, so that one with thousands of messages does not hold up another. Pings of the watchdog overtake all.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/loop.h"

#define NOTIFY_OURS ((uid_t)-1) /* messages of the program itself */

struct notify {
	struct loop *loop;
	struct source source; /* the socket, which we own; fd -1 without a service manager */
	struct list lanes; /* messages the manager had no room for, by user; the next one is of the first lane */
	struct timer retry;
	struct timer watchdog;
	uint64_t watchdog_ns; /* between two pings; 0: none are expected */
	uint64_t n_waited; /* messages that had to wait, ever */
	unsigned n_removals; /* that wait */
	unsigned room; /* in the manager's store, once all that waits was sent; set by the store */
	bool in_order; /* whatever the room is: until nothing waits */
	bool is_keeper; /* the manager is a weightd --keeper */
	bool gone; /* the manager does not receive messages any more */
	void (*charge)(void *arg, uid_t uid, uint64_t begin, uint64_t end);
	void *charge_arg;
};

/*
 * Reads NOTIFY_SOCKET and, by sd_watchdog_enabled(), the interval of the watchdog. Logs what is wrong with them, which is no
 * failure. -EINVAL: there is a watchdog and no libsystemd; that is logged, too.
 */
int notify_init(struct notify *n, struct loop *l);
void notify_deinit(struct notify *n);

/* Has `charge` called for the time that it took to send a user's message which had waited. */
void notify_charge(struct notify *n,
		   void (*charge)(void *arg, uid_t uid, uint64_t begin, uint64_t end), void *arg);

/* True when there is a service manager that receives messages. */
bool notify_works(const struct notify *n);

/*
 * Sends a message of lines, now or in a turn of the user, with `fd` (borrowed) unless it is -1. -ENOTCONN, -ENOMEM,
 * -EMFILE.
 */
int notify_send(struct notify *n, uid_t uid, const char *text, int fd);
/* Likewise, of a message that makes room in the manager's store. */
int notify_send_removal(struct notify *n, uid_t uid, const char *text);

/*
 * Sends what waits now before all that comes later, as the room was not known, or users begin to count as other ones.
 * Turns begin with the first call.
 */
void notify_keep_order(struct notify *n);

/* READY=1: starts the pings too. */
void notify_ready(struct notify *n, const char *status);
