/*
 * Peers
 *
 * The other nodes, and the one connection with each of them: the node with the lower name dials. An
 * incoming connection is a stranger's until its name and its hello were received. Strangers have
 * little time, and if there are more than all peers can have at once, they make room for others.
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

#define PEERS_STRANGERS_MAX 64 /* besides one for each peer: all of them may dial at once */

struct agent;

/* The same as in server/sync/agent.h. */
struct peer_events {
	void (*on_up)(struct agent *a, unsigned peer);
	void (*on_down)(struct agent *a, unsigned peer, const char *why);
	void (*on_message)(struct agent *a, unsigned peer, const json_t *message);
	void (*on_blob)(struct agent *a, unsigned peer, const uint8_t hash[32], int fd,
			uint64_t size);
	uint64_t (*blob_limit)(const struct agent *a, unsigned peer, const uint8_t hash[32]);
	bool (*is_idle)(const struct agent *a);
	/* The peer has come up, or is down. */
	void (*on_change)(void *userdata, unsigned peer);
	/* Bytes may be sent to this address, of this node or peer. False with a sentence. */
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
	struct connection *dialled; /* before its hello */
	struct connection *up;
	struct connection *next; /* becomes `up` when that has ended */
	/* Addresses of its engines, by its last hello; before, by sync.conf. */
	struct address data[STRIPES_MAX];
	unsigned n_data;
	uint64_t since_ns; /* CLOCK_REALTIME of the last change of state */
	char why[WHY_SIZE]; /* it is down, or another node uses its name */
};

struct peers {
	struct net_config config;
	SSL_CTX *const *tls; /* the current certificate's */
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
	struct timer renew; /* renews connections with a replaced certificate */
};

int peers_init(struct peers *p, struct loop *loop, const struct net_config *config,
	       SSL_CTX *const *tls, const struct peer_events *events, void *userdata);
/* Closes all connections with the reason `why`; the agent is not notified. */
void peers_deinit(struct peers *p, const char *why);

/* Begins to dial; `agent` is notified of events from now on. */
void peers_start(struct peers *p, struct agent *agent);

/* Accepts a connection, and takes `fd`. */
void peers_accept(struct peers *p, int fd, const struct address *address);

/*
 * The certificates have changed. Closes connections of peers that are no longer trusted, and of
 * strangers before their hello. A connection that uses a replaced certificate of ours is renewed
 * when no sync needs it.
 */
void peers_recheck(struct peers *p);

/*
 * True: `node`, which may be this one, has announced that it takes bytes at this address; NULL: any
 * node has.
 */
bool peers_take_bytes_at(const struct peers *p, const char *node, const struct sockaddr *at);

/* The same as in server/sync/state/env.h. */
int peers_send(struct peers *p, unsigned peer, const json_t *message);
int peers_send_blob(struct peers *p, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
void peers_hang_up(struct peers *p, unsigned peer, const char *why);

/* Nothing waits to be sent. */
bool peers_are_flushed(const struct peers *p);

/* {node, address, state, since_ns, why, rtt_us}, without its versions. */
json_t *peer_row(const struct peers *p, unsigned peer);
