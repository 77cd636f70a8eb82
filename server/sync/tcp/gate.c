#include "server/sync/tcp/gate.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/stream/tls.h"
#include "server/sync/tcp/engine.h"

#define LOGGED_MAX 8 /* refusals; an attacker could fill the disk otherwise */
#define BACKLOG 64

void gate_init(struct gate *g)
{
	*g = (struct gate){0};
	for (size_t i = 0; i < STRIPES_MAX; i++)
		g->doors[i].fd = -1;
	for (size_t i = 0; i < GATE_GUESTS; i++)
		tcp_socket_init(&g->guests[i].socket);
}

static void guest_drop(struct guest *g)
{
	loop_remove(&g->source);
	tcp_socket_close(&g->socket);
}

void gate_close(struct gate *g)
{
	for (size_t i = 0; i < GATE_GUESTS; i++)
		guest_drop(&g->guests[i]);
	for (size_t i = 0; i < STRIPES_MAX; i++) {
		loop_remove(&g->doors[i].source);
		g->doors[i].fd = fd_close(g->doors[i].fd);
	}
}

static void name_guest(const struct guest *g, char *ret, size_t size)
{
	struct sockaddr_storage at;
	socklen_t at_size = sizeof(at);
	char host[64], port[16];

	(void)snprintf(ret, size, "somebody");
	if (getpeername(g->socket.fd, (struct sockaddr *)&at, &at_size) == 0 &&
	    getnameinfo((struct sockaddr *)&at, at_size, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		(void)snprintf(ret, size, "%s port %s", host, port);
}

static void guest_refuse(struct guest *g, const char *why)
{
	static const uint8_t refused = PREAMBLE_REFUSED;
	struct gate *gate = &g->engine->gate;
	char who[96];

	(void)snprintf(gate->last, sizeof(gate->last), "%s", why);
	if (gate->n_refused++ < LOGGED_MAX) {
		name_guest(g, who, sizeof(who));
		log_warning("%s: refused the stream of %s: %s", g->engine->engine_loop.order.node,
			    who, why);
	}
	if (g->is_secured)
		/* The peer receives it, or sees that we close. */
		(void)tcp_socket_write(&g->socket, &refused, 1);
	guest_drop(g);
}

static unsigned n_stripes_of(const struct preamble *p)
{
	return p->n_stripes ? p->n_stripes : 1;
}

/* Returns the error of a preamble; NULL: none. Checks the token first, in constant time. */
static const char *check_preamble(const struct engine *e, const struct preamble *p)
{
	const struct engine_order *o = &e->engine_loop.order;

	if (CRYPTO_memcmp(p->token, o->token, sizeof(o->token)) != 0)
		return "its token is wrong";
	if (memcmp(p->sync, o->sync, sizeof(o->sync)) != 0)
		return "it belongs to another sync";
	if (p->epoch != o->epoch)
		return "it belongs to another epoch";
	if (strcmp(p->from, o->from) != 0 || strcmp(p->to, o->node) != 0)
		return "it belongs to another link";
	if (p->n_bytes != o->total)
		return "it announces another number of bytes";
	if (n_stripes_of(p) > o->n_addresses || (e->n_in && n_stripes_of(p) != e->n_in))
		return "it announces another number of stripes";
	if (e->in[p->stripe].state != INBOUND_NONE)
		return "it is already connected";
	return NULL;
}

static void guest_on_preamble(struct guest *g)
{
	struct engine *e = g->engine;
	struct preamble p;
	const char *why;
	struct tcp_socket socket;

	if (preamble_decode(g->preamble, &p) < 0) {
		guest_refuse(g, "it does not speak our protocol");
		return;
	}
	why = check_preamble(e, &p);
	if (why) {
		guest_refuse(g, why);
		return;
	}
	loop_remove(&g->source);
	socket = g->socket;
	tcp_socket_init(&g->socket);
	e->n_in = n_stripes_of(&p);
	e->in[p.stripe].state = INBOUND_NEXT;
	if (!engine_is_awaiting(e))
		gate_close(&e->gate);
	inbound_accept(&e->in[p.stripe], socket, g->place);
}

static void gate_on_guest(struct source *source, uint32_t events)
{
	struct guest *g = container_of(source, struct guest, source);
	char why[GATE_WHY_SIZE];
	ssize_t n = 0;

	(void)events;
	if (!g->is_secured) {
		n = tcp_socket_handshake(&g->socket);
		if (n == -EAGAIN)
			return;
		if (n < 0) {
			tls_explain(g->socket.tls, why, sizeof(why));
			guest_refuse(g, why);
			return;
		}
		g->is_secured = true;
	}
	while (g->n_read < PREAMBLE_SIZE) {
		n = tcp_socket_read(&g->socket, g->preamble + g->n_read, PREAMBLE_SIZE - g->n_read);
		if (n < 0)
			break;
		g->n_read += (size_t)n;
	}
	if (g->n_read == PREAMBLE_SIZE)
		guest_on_preamble(g);
	else if (n != -EAGAIN)
		guest_refuse(g, "it hung up before it sent a preamble");
}

static struct guest *find_room(struct gate *gate)
{
	struct crowd_member members[GATE_GUESTS];
	struct guest *leaves;

	for (size_t i = 0; i < GATE_GUESTS; i++) {
		if (gate->guests[i].socket.fd < 0)
			return &gate->guests[i];
		members[i] = gate->guests[i].member;
	}
	leaves = &gate->guests[crowd_leaver(members, GATE_GUESTS)];
	guest_refuse(leaves, "it sent no preamble while others connected");
	return leaves;
}

static void gate_on_connection(struct source *source, uint32_t events)
{
	struct door *door = container_of(source, struct door, source);
	struct engine *e = door->engine;
	struct sockaddr_storage at = {0};
	socklen_t at_size = sizeof(at);
	int fd = accept4(door->fd, (struct sockaddr *)&at, &at_size, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct guest *g;
	SSL *tls = NULL;

	(void)events;
	if (fd < 0)
		return; /* the peer closed it already */
	if (e->tls && !(tls = tls_session(e->tls, fd, true, e->engine_loop.order.from))) {
		(void)fd_close(fd);
		return;
	}
	tcp_socket_tune(fd, e->engine_loop.order.stall_ns, 0);
	g = find_room(&e->gate);
	*g = (struct guest){
		.engine = e,
		.place = (unsigned)(door - e->gate.doors),
		.member = crowd_member(&at),
		.is_secured = !tls,
	};
	tcp_socket_open(&g->socket, fd, tls, false);
	if (loop_add(&e->engine_loop.loop, &g->source, fd, EPOLLIN, gate_on_guest) < 0)
		guest_drop(g);
}

static int open_door(struct engine *e, struct door *door, const struct address *a,
		     uint16_t *ret_port)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} at;
	socklen_t size = sizeof(at);
	int r = 0;

	door->engine = e;
	door->fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (door->fd < 0)
		return -errno;
	if (bind(door->fd, (const struct sockaddr *)&a->at, a->size) < 0 ||
	    listen(door->fd, BACKLOG) < 0 || getsockname(door->fd, &at.any, &size) < 0)
		r = -errno;
	if (r == 0)
		r = loop_add(&e->engine_loop.loop, &door->source, door->fd, EPOLLIN,
			     gate_on_connection);
	if (r == 0)
		*ret_port = ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
	return r;
}

int gate_open(struct engine *e, uint16_t ret_ports[STRIPES_MAX])
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < e->engine_loop.order.n_addresses; i++)
		r = open_door(e, &e->gate.doors[i], &e->engine_loop.order.addresses[i],
			      &ret_ports[i]);
	return r;
}

void gate_check_deadlines(struct engine *e, uint64_t now_ns)
{
	for (size_t i = 0; i < GATE_GUESTS; i++) {
		struct guest *g = &e->gate.guests[i];

		if (g->socket.fd >= 0 && now_ns > g->member.since_ns + e->engine_loop.order.stall_ns)
			guest_refuse(g, "it sent no preamble in time");
	}
}
