/*
 * Dialers
 *
 * Calls one peer until it answers: looks its name up each time, tries all addresses in turn, and waits between two
 * rounds, 0.2 s at first and 5 s in the end.
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
	/* A socket that is being connected; taken. dialer_again() when nothing comes of it. */
	void (*on_socket)(struct dialer *d, int fd, const struct address *address);
	/* Nothing to connect to, for now. Whether an address may be dialled at all is asked before. */
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
	struct address addresses[DIALER_ADDRESSES_MAX]; /* of this round */
	unsigned n_addresses, next;
	uint64_t wait_ns;
};

void dialer_init(struct dialer *d, struct loop *loop, struct resolver *resolver,
		 const struct dialer_events *events, const struct peer_config *peer);
void dialer_deinit(struct dialer *d);

/* Begins, soon. */
void dialer_start(struct dialer *d);
/* The socket became no connection: the next address, or after a while the next round. */
void dialer_again(struct dialer *d);
/* It was a good one: the next wait is a short one. */
void dialer_reset(struct dialer *d);
