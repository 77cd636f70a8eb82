/*
 * Peers
 *
 * The other nodes, and the one connection with each of them: the node whose name is lower dials. Who dials us is a
 * stranger until his name and his hello are known; strangers have little time, and where there are more than all
 * peers can be at once, they make room for others.
 */
#pragma once

#include <jansson.h>
#include <openssl/ssl.h>

#include "server/base/loop.h"
#include "server/sync/base/limits.h"
#include "server/sync/net/connection.h"
#include "server/sync/net/dialer.h"
#include "server/sync/net/net_config.h"
#include "server/sync/net/refusal_log.h"
#include "server/sync/net/resolver.h"

#define PEERS_STRANGERS_MAX 64 /* beside one for each peer: all of them may call at once */

struct agent;

/* As in server/sync/agent.h. */
struct peer_events {
	void (*on_up)(struct agent *a, unsigned peer);
	void (*on_down)(struct agent *a, unsigned peer, const char *why);
	void (*on_message)(struct agent *a, unsigned peer, const json_t *message);
	void (*on_blob)(struct agent *a, unsigned peer, const uint8_t hash[32], int fd,
			uint64_t size);
	uint64_t (*blob_limit)(const struct agent *a, unsigned peer, const uint8_t hash[32]);
	bool (*is_idle)(const struct agent *a);
	/* This one is up, or is not any more. */
	void (*on_change)(void *userdata, unsigned peer);
	/*
	 * Returns whether bytes may go to this address, of this node or peer. False with a
	 * sentence.
	 */
	bool (*may_trust)(void *userdata, const struct sockaddr *at, const char *whose,
			  char why[WHY_SIZE]);
};

struct peers;

struct peer {
	struct peers *peers;
	unsigned index;
	const struct peer_config *config;
	bool we_dial;
	struct dialer dialer;
	struct connection *dialled; /* on its way to a hello */
	struct connection *up;
	struct connection *next; /* takes over once `up` has ended */
	struct address data[STRIPES_MAX]; /* where its engines are, by its last hello; before, by sync.conf */
	unsigned n_data;
	uint64_t since_ns; /* CLOCK_REALTIME, of its state */
	char why[WHY_SIZE]; /* it is down; or who pretends to be it */
};

struct peers {
	struct net_config config;
	SSL_CTX *const *tls; /* of today's certificate */
	const struct peer_events *events;
	struct agent *agent;
	void *userdata;
	struct connection_manner manner;
	struct resolver resolver;
	struct peer *at;
	unsigned n, n_up;
	struct list strangers; /* connections, oldest first */
	unsigned n_strangers;
	struct refusal_log refusal_log;
	struct timer renew; /* of connections that show a certificate of before */
};

int peers_init(struct peers *p, struct loop *loop, const struct net_config *config,
	       SSL_CTX *const *tls, const struct peer_events *events, void *userdata);
/* Hangs up on all of them, for what `why` says; the agent hears nothing of it. */
void peers_deinit(struct peers *p, const char *why);

/* Begins to dial; `agent` hears of what happens from now on. */
void peers_start(struct peers *p, struct agent *agent);

/* Somebody dialled; `fd` is taken. */
void peers_accept(struct peers *p, int fd, const struct address *address);

/*
 * There are other certificates. Whoever is believed no more is hung up on, and whoever has not said who it is; with the
 * others a connection that shows a certificate of ours that was replaced is made anew as soon as no sync needs it.
 */
void peers_recheck(struct peers *p);

/*
 * Returns whether this node, which may be ours, takes bytes at an address by its own word; NULL:
 * whether any of them does.
 */
bool peers_take_bytes_at(const struct peers *p, const char *node, const struct sockaddr *at);

/* As in server/sync/state/env.h. */
int peers_send(struct peers *p, unsigned peer, const json_t *message);
int peers_send_blob(struct peers *p, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
void peers_hang_up(struct peers *p, unsigned peer, const char *why);

/* True when nothing waits to be sent. */
bool peers_are_flushed(const struct peers *p);

/* {node, address, state, since_ns, why, rtt_us}, without what it serves. */
json_t *peer_row(const struct peers *p, unsigned peer);
