/*
 * Dialers
 *
 * Dials one peer until it is connected: resolves its name each time, tries all addresses in turn,
 * and waits between two rounds, from 0.2 s up to 5 s.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/base/limits.h"
#include "server/sync/net/address.h"
#include "server/sync/net/net_config.h"
#include "server/sync/net/resolver.h"

#define DIALER_ADDRESSES_MAX 8

struct dialer;

struct dialer_events {
	/* Takes a socket that is connecting. Call dialer_again() if it fails. */
	void (*on_socket)(struct dialer *d, int fd, const struct address *address);
	/* There is nothing to connect to, for now. may_dial() is called before each address. */
	void (*on_failure)(struct dialer *d, const char *why);
	bool (*may_dial)(struct dialer *d, const struct address *address, char why[WHY_SIZE]);
};

struct dialer {
	struct loop *loop;
	struct resolver *resolver;
	const struct dialer_events *events;
	const struct peer_config *peer;
	struct timer timer;
	struct lookup lookup;
	struct address addresses[DIALER_ADDRESSES_MAX]; /* this round's */
	unsigned n_addresses, next;
	uint64_t wait_ns;
};

void dialer_init(struct dialer *d, struct loop *loop, struct resolver *resolver,
		 const struct dialer_events *events, const struct peer_config *peer);
void dialer_deinit(struct dialer *d);

/* Begins, soon. */
void dialer_start(struct dialer *d);
/* The last socket failed: tries the next address, or after a while the next round. */
void dialer_again(struct dialer *d);
/* The last connection was a good one: the next wait is short. */
void dialer_reset(struct dialer *d);
