/*
 * Connections
 *
 * One connection of two agents, from the first byte to its end: TLS, who the other one is, frames both ways, and
 * whether it still answers. Whatever ends it, on_end() comes once, from the loop and never from within another
 * call; whoever owns it frees it there.
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
	/* The name is proven, nothing was said yet. May doom it. */
	void (*on_name)(struct connection *c);
	/* It said who it is: c->incarnation and c->data. May doom or hold it. */
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

/* Settings that all connections of this node share. */
struct connection_manner {
	struct loop *loop;
	const struct connection_events *events;
	const char *node; /* our name */
	uint64_t incarnation; /* of this process */
	const char *const *data_addresses; /* where our engines listen, in digits */
	unsigned n_data_addresses;
	uint64_t heartbeat_ns;
};

struct connection {
	struct list link; /* of whoever owns it */
	void *owner;
	unsigned n_alike; /* the owner's: strangers of its host, with it */
	const struct connection_manner *manner;
	enum connection_state state;
	bool dialled; /* by us */
	bool held; /* nothing is read, until connection_release() */
	int fd;
	struct source source;
	struct tls tls;
	struct address address;
	char name[NODE_MAX + 1]; /* of the other end, once it was proven */
	uint64_t incarnation; /* of the other end, once it said hello */
	struct address data[STRIPES_MAX]; /* where its engines listen, as it said then; ports are none */
	unsigned n_data;
	struct frame_decoder in;
	struct outbox out;
	struct blob blob;
	struct timer deadline; /* of the hello, then of the next heartbeat */
	struct timer check; /* of the other end's certificate, whose time may be over */
	struct timer end;
	uint64_t opened_ns;
	uint64_t heard_ns; /* when the last bytes came */
	uint64_t ping; /* the number that the last ping had; 0: it was answered */
	uint64_t rtt_us; /* 0: not known yet */
	char why[WHY_SIZE]; /* it ended */
};

/* `fd` is taken, whatever is returned; `connecting`: it is not connected yet. */
int connection_new(const struct connection_manner *manner, SSL_CTX *context, int fd,
		   const struct address *address, bool dialled, void *owner,
		   struct connection **ret);
struct connection *connection_free(struct connection *c);

/* -ENOTCONN; -ENOBUFS: the other end does not read, and the connection is doomed; -EMSGSIZE; -ENOMEM. */
int connection_send(struct connection *c, const json_t *message);
int connection_send_blob(struct connection *c, const uint8_t hash[32], int fd, uint64_t size);

/* From now on nothing is heard of it and nothing sent, but for a word why; on_end() follows. */
__attribute__((format(printf, 2, 3))) void connection_doom(struct connection *c, const char *fmt,
							   ...);

/* Dooms it where what the other end has proven is believed no more, by today's time and this context. */
void connection_check(struct connection *c, SSL_CTX *context);

/* Goes on with one that was held in on_hello(). */
void connection_release(struct connection *c);

/* True when nothing came for longer than a heartbeat. */
bool connection_is_silent(const struct connection *c);
