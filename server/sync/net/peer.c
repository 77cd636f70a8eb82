#include "server/sync/net/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/sync/net/log_fields.h"

#define LASTING_NS 5000000000u /* the shortest good connection */
#define RENEW_NS 1000000000u

static uint64_t realtime_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct peer *peer_find(struct peers *p, const char *name)
{
	for (unsigned i = 0; i < p->n; i++)
		if (!strcmp(p->at[i].config->name, name))
			return &p->at[i];
	return NULL;
}

/* The peer of a connection, once it is known. */
static struct peer *peer_of(const struct connection *c)
{
	struct peers *p = c->owner;

	return peer_find(p, c->name);
}

/* --- Up and down ---------------------------------------------------------------------------------- */

/* Sets the reason for `weightctl nodes`, and logs it if it is new. */
static void peer_note(struct peer *p, const char *why)
{
	char who[NODE_MAX + 32];

	if (!p->up)
		(void)snprintf(p->why, sizeof(p->why), "%s", why);
	(void)snprintf(who, sizeof(who), "node %s is down", p->config->name);
	refusal_log_add(&p->peers->refusal_log, who, why);
}

/* Formats the addresses on other hosts than the connection's, for the log; "": none. */
static void describe_data(const struct connection *c, char *ret, size_t size)
{
	char text[ADDRESS_TEXT_SIZE];
	size_t at = 0;

	ret[0] = '\0';
	for (unsigned i = 0; i < c->n_data && at < size; i++) {
		const struct sockaddr *data = (const struct sockaddr *)&c->data[i].at;

		if (!address_same_host(data, (const struct sockaddr *)&c->address.at))
			at += (size_t)snprintf(ret + at, size - at, "%s%s",
					       at ? ", " : ", and takes bytes at ",
					       address_format_host(data, text));
	}
}

static void come_up(struct peer *p, struct connection *c)
{
	char text[ADDRESS_TEXT_SIZE], data[WHY_SIZE];

	describe_data(c, data, sizeof(data));
	p->up = c;
	memcpy(p->data, c->data, sizeof(p->data));
	p->n_data = c->n_data;
	p->since_ns = realtime_ns();
	p->why[0] = '\0';
	p->peers->n_up++;
	log_fields_write(&(struct log_fields){LOG_FIELDS_UP, .peer = p->config->name, .uid = -1},
			 "node %s is up at %s%s", p->config->name,
			 address_format((const struct sockaddr *)&c->address.at, text), data);
	refusal_log_forget(&p->peers->refusal_log);
	p->peers->events->on_up(p->peers->agent, p->index);
	p->peers->events->on_change(p->peers->userdata, p->index);
	if (c->held)
		connection_release(c);
}

static void go_down(struct peer *p, struct connection *c)
{
	struct connection *next = take_ptr(p->next);

	p->up = NULL;
	p->since_ns = realtime_ns();
	p->peers->n_up--;
	(void)snprintf(p->why, sizeof(p->why), "%s", c->why);
	log_fields_write(&(struct log_fields){LOG_FIELDS_DOWN, .peer = p->config->name, .uid = -1},
			 "node %s is down: %s", p->config->name, c->why);
	if (num_now_ns() - c->opened_ns > LASTING_NS && p->we_dial)
		dialer_reset(&p->dialer);
	/* The agent replaces "it" with the name. */
	p->peers->events->on_down(p->peers->agent, p->index,
				  strncmp(p->why, "it ", 3) ? p->why : p->why + 3);
	p->peers->events->on_change(p->peers->userdata, p->index);
	if (next)
		come_up(p, next);
	else if (p->we_dial)
		dialer_again(&p->dialer);
}

/* `c` is authenticated, and the peer already has a connection: usually the newer one is right. */
static void peer_supersede(struct peer *p, struct connection *c)
{
	struct connection *old = p->up;

	if (old->state != CONNECTION_DOOMED) {
		if (old->incarnation == c->incarnation && !connection_is_silent(old)) {
			connection_doom(c, "'%s' is connected already", c->name);
			return;
		}
		connection_doom(old, "%s",
				old->incarnation == c->incarnation
					? "it fell silent, and dialled anew"
					: "it was started anew");
	}
	if (p->next)
		connection_doom(p->next, "it dialled once more");
	p->next = c;
	c->held = true; /* its messages are read after the end of the old one */
}

static bool same_host(const struct connection *a, const struct connection *b)
{
	return address_same_host((const struct sockaddr *)&a->address.at,
				 (const struct sockaddr *)&b->address.at);
}

static void add_stranger(struct peers *p, struct connection *c)
{
	struct connection *other;

	list_append(&p->strangers, &c->link);
	p->n_strangers++;
	c->n_alike = 0;
	list_for_each(other, &p->strangers, link)
		if (same_host(c, other)) {
			c->n_alike++;
			other->n_alike += other != c;
		}
}

static void forget_stranger(struct peers *p, struct connection *c)
{
	struct connection *other;

	if (c->dialled || list_empty(&c->link))
		return;
	list_remove(&c->link);
	p->n_strangers--;
	list_for_each(other, &p->strangers, link)
		other->n_alike -= same_host(c, other);
}

static void peer_on_hello(struct connection *c)
{
	struct peers *peers = c->owner;
	struct peer *p = peer_of(c);

	forget_stranger(peers, c);
	if (p->dialled == c)
		p->dialled = NULL;
	if (p->up)
		peer_supersede(p, c);
	else
		come_up(p, c);
}

static void check_dialled(struct connection *c)
{
	struct peers *peers = c->owner;

	for (unsigned i = 0; i < peers->n; i++) {
		const struct peer *p = &peers->at[i];

		if (p->dialled == c && strcmp(p->config->name, c->name) != 0)
			connection_doom(
				c,
				"the node at %s is '%s' by its certificate; correct 'address' of "
				"[peer %s]",
				p->config->address, c->name, p->config->name);
	}
}

static void peer_on_name(struct connection *c)
{
	struct peers *peers = c->owner;
	struct peer *p = peer_find(peers, c->name);
	char why[WHY_SIZE];

	if (c->dialled)
		check_dialled(c);
	else if (!p)
		connection_doom(c, "'%s' is no peer of '%s'; add [peer %s] to its sync.conf",
				c->name, peers->config.name, c->name);
	else if (p->we_dial)
		connection_doom(c,
				"of two nodes the one whose name is lower dials: '%s' is to wait for "
				"'%s'",
				c->name, peers->config.name);
	else if (!peers->events->may_trust(peers->userdata, (const struct sockaddr *)&c->address.at,
					   c->name, why))
		connection_doom(c, "%s", why);
}

static void end_stranger(struct peers *peers, struct connection *c)
{
	const char *name = c->name[0] ? c->name : c->tls.claimed;
	char host[ADDRESS_TEXT_SIZE], who[ADDRESS_TEXT_SIZE + NODE_MAX + 48], why[2 * WHY_SIZE];
	struct peer *p = name[0] ? peer_find(peers, name) : NULL;

	forget_stranger(peers, c);
	(void)address_format_host((const struct sockaddr *)&c->address.at, host);
	if (name[0])
		(void)snprintf(who, sizeof(who), "refused the connection of '%s' from %s", name,
			       host);
	else
		(void)snprintf(who, sizeof(who), "refused a connection from %s", host);
	refusal_log_add(&peers->refusal_log, who, c->why);
	if (!p || p->up)
		return;
	(void)snprintf(why, sizeof(why), "refused a connection from %s under its name: %s", host,
		       c->why);
	(void)snprintf(p->why, sizeof(p->why), "%.*s", (int)sizeof(p->why) - 1, why);
}

static void peer_on_end(struct connection *c)
{
	struct peers *peers = c->owner;
	bool known = false;

	for (unsigned i = 0; i < peers->n && !known; i++) {
		struct peer *p = &peers->at[i];

		known = p->up == c || p->next == c || p->dialled == c;
		if (p->next == c)
			p->next = NULL;
		if (p->dialled == c) {
			p->dialled = NULL;
			peer_note(p, c->why);
			dialer_again(&p->dialer);
		}
		if (p->up == c)
			go_down(p, c);
	}
	if (!known)
		end_stranger(peers, c);
	(void)connection_free(c);
}

/* --- Receiving --------------------------------------------------------------------------------- */

static void peer_on_message(struct connection *c, const json_t *message)
{
	struct peers *p = c->owner;

	p->events->on_message(p->agent, peer_of(c)->index, message);
}

static uint64_t peer_blob_limit(struct connection *c, const uint8_t hash[32])
{
	struct peers *p = c->owner;

	return p->events->blob_limit(p->agent, peer_of(c)->index, hash);
}

static void peer_on_blob(struct connection *c, const uint8_t hash[32], int fd, uint64_t size)
{
	struct peers *p = c->owner;

	p->events->on_blob(p->agent, peer_of(c)->index, hash, fd, size);
}

static const struct connection_events connection_events = {
	.on_name = peer_on_name,
	.on_hello = peer_on_hello,
	.on_message = peer_on_message,
	.blob_limit = peer_blob_limit,
	.on_blob = peer_on_blob,
	.on_end = peer_on_end,
};

/* --- Dialling and accepting -------------------------------------------------------------------- */

static void peer_on_socket(struct dialer *d, int fd, const struct address *address)
{
	struct peer *p = container_of(d, struct peer, dialer);
	int r = connection_new(&p->peers->manner, *p->peers->tls, fd, address, true, p->peers,
			       &p->dialled);

	if (r < 0) {
		peer_note(p, strerror(-r));
		dialer_again(d);
	}
}

static void peer_on_failure(struct dialer *d, const char *why)
{
	peer_note(container_of(d, struct peer, dialer), why);
}

static bool peer_may_dial(struct dialer *d, const struct address *address, char why[WHY_SIZE])
{
	const struct peer *p = container_of(d, struct peer, dialer);

	return p->peers->events->may_trust(p->peers->userdata, (const struct sockaddr *)&address->at,
					   p->config->name, why);
}

static const struct dialer_events dialer_events = {
	.on_socket = peer_on_socket,
	.on_failure = peer_on_failure,
	.may_dial = peer_may_dial,
};

/*
 * Drops the oldest connection of the host that has the most: a host with many only blocks itself.
 */
static void peer_make_room(struct peers *p)
{
	struct connection *c, *victim = NULL;

	list_for_each(c, &p->strangers, link)
		if (!victim || c->n_alike > victim->n_alike)
			victim = c;
	connection_doom(victim, "it took its time while %u others waited", p->n_strangers);
	forget_stranger(p, victim);
}

void peers_accept(struct peers *p, int fd, const struct address *address)
{
	struct connection *c;
	int r;

	if (p->n_strangers == PEERS_STRANGERS_MAX + p->n)
		peer_make_room(p);
	r = connection_new(&p->manner, *p->tls, fd, address, false, p, &c);
	if (r < 0) {
		refusal_log_add(&p->refusal_log, "refused a connection", strerror(-r));
		return;
	}
	add_stranger(p, c);
}

/* --- Changed certificates ---------------------------------------------------------------------- */

/* The node that dials connects again. */
static void peer_on_renew(struct timer *timer)
{
	struct peers *p = container_of(timer, struct peers, renew);
	bool is_idle = p->events->is_idle(p->agent);

	for (unsigned i = 0; i < p->n; i++) {
		struct connection *c = p->at[i].up;

		if (!c || c->state == CONNECTION_DOOMED || tls_is_of(&c->tls, *p->tls))
			continue;
		if (is_idle)
			connection_doom(c, "the certificate of '%s' was replaced: connecting anew",
					p->config.name);
		else
			timer_start(p->manner.loop, timer, num_now_ns() + RENEW_NS);
	}
}

/* No sync needs this connection, and its handshake used the old certificates. */
static void begin_anew(struct peers *p, struct connection *c)
{
	if (c)
		connection_doom(c, "the certificates of '%s' were replaced: connecting anew",
				p->config.name);
}

void peers_recheck(struct peers *p)
{
	struct connection *c;

	refusal_log_forget(&p->refusal_log);
	for (unsigned i = 0; i < p->n; i++) {
		if (p->at[i].up)
			connection_check(p->at[i].up, *p->tls);
		begin_anew(p, p->at[i].next);
		begin_anew(p, p->at[i].dialled);
	}
	list_for_each(c, &p->strangers, link)
		begin_anew(p, c);
	timer_start(p->manner.loop, &p->renew, num_now_ns());
}

int peers_init(struct peers *p, struct loop *loop, const struct net_config *config,
	       SSL_CTX *const *tls, const struct peer_events *events, void *userdata)
{
	uint64_t now_ns = realtime_ns();
	int r;

	*p = (struct peers){.config = *config, .tls = tls, .events = events, .userdata = userdata};
	list_init(&p->strangers);
	timer_init(&p->renew, peer_on_renew);
	p->manner = (struct connection_manner){
		.loop = loop,
		.events = &connection_events,
		.node = config->name,
		.data_addresses = config->data_addresses,
		.n_data_addresses = config->n_data_addresses,
		.heartbeat_ns = config->heartbeat_ns,
	};
	if (getrandom(&p->manner.incarnation, sizeof(p->manner.incarnation), 0) < 0)
		return -errno;
	p->manner.incarnation &= INT64_MAX;
	r = resolver_init(&p->resolver, loop);
	if (r < 0)
		return r;
	p->at = calloc(config->n_peers ? config->n_peers : 1, sizeof(*p->at));
	if (!p->at) {
		resolver_deinit(&p->resolver);
		return -ENOMEM;
	}
	for (; p->n < config->n_peers; p->n++) {
		struct peer *peer = &p->at[p->n];

		*peer = (struct peer){
			.peers = p,
			.index = p->n,
			.config = &config->peers[p->n],
			.we_dial = strcmp(config->name, config->peers[p->n].name) < 0,
			.since_ns = now_ns,
		};
		peer->n_data = address_from_digits(peer->config->host, 0, &peer->data[0]);
		(void)snprintf(peer->why, sizeof(peer->why), "%s",
			       peer->we_dial ? "it is being dialled" : "it has not dialled yet");
		dialer_init(&peer->dialer, loop, &p->resolver, &dialer_events, peer->config);
	}
	return 0;
}

void peers_start(struct peers *p, struct agent *agent)
{
	p->agent = agent;
	for (unsigned i = 0; i < p->n; i++)
		if (p->at[i].we_dial)
			dialer_start(&p->at[i].dialer);
}

static void peer_end(struct connection *c, const char *why)
{
	if (c)
		connection_doom(c, "%s", why);
	(void)connection_free(c);
}

void peers_deinit(struct peers *p, const char *why)
{
	struct connection *c;

	if (!p->at)
		return;
	timer_stop(&p->renew);
	for (unsigned i = 0; i < p->n; i++) {
		dialer_deinit(&p->at[i].dialer);
		peer_end(p->at[i].up, why);
		peer_end(p->at[i].next, why);
		peer_end(p->at[i].dialled, why);
	}
	while ((c = list_first(&p->strangers, struct connection, link)))
		peer_end(c, why);
	free(take_ptr(p->at));
	resolver_deinit(&p->resolver);
}

/* --- Data addresses ---------------------------------------------------------------------------- */

static bool has_host(const struct address *all, unsigned n, const struct sockaddr *at)
{
	for (unsigned i = 0; i < n; i++)
		if (address_same_host((const struct sockaddr *)&all[i].at, at))
			return true;
	return false;
}

static bool is_ours(const struct net_config *c, const struct sockaddr *at)
{
	struct address ours;

	for (unsigned i = 0; i < c->n_data_addresses; i++)
		if (address_from_digits(c->data_addresses[i], 0, &ours) && has_host(&ours, 1, at))
			return true;
	return false;
}

bool peers_take_bytes_at(const struct peers *p, const char *node, const struct sockaddr *at)
{
	if ((!node || !strcmp(node, p->config.name)) && is_ours(&p->config, at))
		return true;
	for (unsigned i = 0; i < p->n; i++)
		if ((!node || !strcmp(node, p->at[i].config->name)) &&
		    has_host(p->at[i].data, p->at[i].n_data, at))
			return true;
	return false;
}

/* --- Sending ----------------------------------------------------------------------------------- */

int peers_send(struct peers *p, unsigned peer, const json_t *message)
{
	return p->at[peer].up ? connection_send(p->at[peer].up, message) : -ENOTCONN;
}

int peers_send_blob(struct peers *p, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	return p->at[peer].up ? connection_send_blob(p->at[peer].up, hash, fd, size) : -ENOTCONN;
}

void peers_hang_up(struct peers *p, unsigned peer, const char *why)
{
	if (p->at[peer].up)
		connection_doom(p->at[peer].up, "%s", why);
}

bool peers_are_flushed(const struct peers *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->at[i].up && p->at[i].up->state != CONNECTION_DOOMED &&
		    !outbox_is_empty(&p->at[i].up->out))
			return false;
	return true;
}

json_t *peer_row(const struct peers *p, unsigned peer)
{
	const struct peer *at = &p->at[peer];
	bool up = at->up && at->up->state != CONNECTION_DOOMED;

	return json_pack("{s:s, s:s, s:s, s:I, s:s?, s:o}", "node", at->config->name, "address",
			 at->config->address, "state", up ? "up" : "down", "since_ns",
			 (json_int_t)at->since_ns, "why",
			 at->up && !up ? at->up->why
			 : at->why[0]  ? at->why
				       : NULL,
			 "rtt_us",
			 up && at->up->rtt_us ? json_integer((json_int_t)at->up->rtt_us)
					      : json_null());
}
