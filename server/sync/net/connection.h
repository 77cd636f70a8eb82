/*
 * Connections
 *
 * One connection of two agents, from the first byte to its end: TLS, the peer's identity, frames
 * both ways, and the heartbeat. For any end on_end() is called once, from the loop and never from
 * within another call; the owner frees the connection there.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/base/loop.h"
#include "server/sync/base/stripes.h"
#include "server/sync/net/address.h"
#include "server/sync/net/blob.h"
#include "server/sync/net/frame.h"
#include "server/sync/net/outbox.h"
#include "server/sync/net/tls.h"

#define CONNECTION_OPEN_NS 10000000000u /* from its first byte to its hello */

struct connection;

struct connection_events {
	/* The name is authenticated, and nothing was received yet. May doom it. */
	void (*on_name)(struct connection *c);
	/* The hello was received: c->incarnation and c->data. May doom or hold it. */
	void (*on_hello)(struct connection *c);
	void (*on_message)(struct connection *c, const json_t *message);
	uint64_t (*blob_limit)(struct connection *c, const uint8_t hash[32]);
	void (*on_blob)(struct connection *c, const uint8_t hash[32], int fd, uint64_t size);
	void (*on_end)(struct connection *c);
};

enum connection_state {
	CONNECTION_CONNECTING,
	CONNECTION_HANDSHAKE,
	CONNECTION_HELLO,
	CONNECTION_UP,
	CONNECTION_DOOMED,
};

/* Common settings of all connections of this node. */
struct connection_manner {
	struct loop *loop;
	const struct connection_events *events;
	const char *node; /* our name */
	uint64_t incarnation; /* this process */
	const char *const *data_addresses; /* addresses of our engines, in digits */
	unsigned n_data_addresses;
	uint64_t heartbeat_ns;
};

struct connection {
	struct list link; /* the owner's */
	void *owner;
	unsigned n_alike; /* the owner's: strangers of its host, with it */
	const struct connection_manner *manner;
	enum connection_state state;
	bool dialled; /* we dialled */
	bool held; /* nothing is read, until connection_release() */
	int fd;
	struct source source;
	struct tls tls;
	struct address address;
	char name[NODE_MAX + 1]; /* the peer's, once authenticated */
	uint64_t incarnation; /* the peer's, after its hello */
	/* The addresses of its engines in that hello; without ports. */
	struct address data[STRIPES_MAX];
	unsigned n_data;
	struct frame_decoder in;
	struct outbox out;
	struct blob blob;
	struct timer deadline; /* the hello's, then the next heartbeat's */
	struct timer check; /* checks if the peer's certificate has expired */
	struct timer end;
	uint64_t opened_ns;
	uint64_t heard_ns; /* time of the last bytes */
	uint64_t ping; /* number of the last ping; 0: it was answered */
	uint64_t rtt_us; /* 0: unknown yet */
	char why[WHY_SIZE]; /* the reason of the end */
};

/* Takes `fd`, even on failure; `connecting`: it is not connected yet. */
int connection_new(const struct connection_manner *manner, SSL_CTX *context, int fd,
		   const struct address *address, bool dialled, void *owner,
		   struct connection **ret);
struct connection *connection_free(struct connection *c);

/* -ENOTCONN; -ENOBUFS: the peer does not read, and the connection is doomed; -EMSGSIZE; -ENOMEM. */
int connection_send(struct connection *c, const json_t *message);
int connection_send_blob(struct connection *c, const uint8_t hash[32], int fd, uint64_t size);

/* Stops receiving, and sends nothing but the reason; on_end() follows. */
__attribute__((format(printf, 2, 3))) void connection_doom(struct connection *c, const char *fmt,
							   ...);

/* Dooms it if the peer's certificate would not be accepted now, with this context. */
void connection_check(struct connection *c, SSL_CTX *context);

/* Continues a connection that was held in on_hello(). */
void connection_release(struct connection *c);

/* Nothing was received for longer than a heartbeat. */
bool connection_is_silent(const struct connection *c);
