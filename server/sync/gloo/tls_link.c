/*
 * Links with TLS
 *
 * One end dials, the other accepts; both prove the names of their nodes by their certificates. A thread
 * of the link reads and writes the socket, and sends the headers that Gloo sends, 48 bytes each: a sender
 * announces its bytes, a receiver is ready for them, and the bytes follow a header of their own. So no
 * byte arrives before there is memory for it, and the plan of the bytes is the same for both kinds of link.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/sync/gloo/link.h"
#include "server/sync/stream/crowd.h"
#include "server/sync/stream/tcp_socket.h"
#include "server/sync/stream/tls.h"

#define HEADER_SIZE 48
#define TURN ((uint64_t)4 * MIB) /* bytes in one direction before the other has its turn */
#define GUESTS 8 /* connections in their handshake */
#define READY_MAX 4096 /* receives that the peer may have ready before their sends */
#define BACKLOG 16
#define OTHER_BYTES "its two ends have a transfer of different sizes"

/* A hello: IPv4 is a mapped address. */
struct hello {
	uint8_t magic[4];
	uint16_t port; /* big-endian; 0: this end dials */
	uint8_t address[16];
} __attribute__((packed));
static const uint8_t HELLO_MAGIC[4] = {'T', 'L', 'S', 1};

enum header_kind {
	HEADER_ANNOUNCED = 1, /* the sender has these bytes */
	HEADER_READY, /* the receiver has memory for them */
	HEADER_BYTES, /* they follow */
};

struct header {
	uint64_t kind, slot, size; /* big-endian */
	uint8_t zero[HEADER_SIZE - 24];
};
_Static_assert(sizeof(struct header) == HEADER_SIZE, "it goes over the wire");

/* A receive that the peer is ready for, and that nothing is sent for yet. */
struct ready {
	struct list link; /* tls_link::ready */
	uint64_t slot, size;
};

struct tls_transfer {
	struct transfer base;
	struct list link; /* tls_link::sends or ::receives */
	struct list out_link; /* tls_link::out: its next header is to be written */
	uint64_t slot;
	size_t size;
	bool is_send;
	const uint8_t *from;
	uint8_t *to;
	enum header_kind next; /* its next header */
	bool is_wanted; /* a send: the peer is ready */
	bool is_done;
};

struct tls_link {
	struct link base;
	SSL_CTX *tls;
	bool is_first;
	int door; /* -1: this end dials */
	struct hello hello;
	int wake_fd; /* an eventfd: there is something to write */
	_Atomic int fd; /* the socket's, once it is connected */

	pthread_mutex_t lock; /* protects these, and the transfers in the lists */
	pthread_cond_t changed; /* a transfer is done, or the link broke */
	struct list sends, receives, out, ready;
	unsigned n_ready;
	bool is_broken;
	char why[LINK_WHY_SIZE]; /* of that; empty: the peer closed */
	char refused[LINK_WHY_SIZE]; /* the last peer at the door, for this; empty: none was */

	pthread_mutex_t io; /* held by the thread while it reads and writes; protects the socket */
	struct tcp_socket socket;
	struct tls_transfer *writing; /* the first of `out`, when its header was begun */
	struct header out_header;
	size_t n_out; /* bytes written of its header and what follows it */
	struct tls_transfer *reading; /* its bytes arrive */
	struct header in_header;
	size_t n_in; /* bytes read, likewise */
};

static struct tls_link *of(struct link *l)
{
	return container_of(l, struct tls_link, base);
}

static const struct tls_link *of_const(const struct link *l)
{
	return container_of(l, const struct tls_link, base);
}

/* --- Hellos ------------------------------------------------------------------------------------ */

static void hello_make(struct hello *h, const struct sockaddr_storage *at, bool dials)
{
	const struct sockaddr_in *v4 = (const void *)at;
	const struct sockaddr_in6 *v6 = (const void *)at;

	*h = (struct hello){.port = dials ? 0
					  : v4->sin_port}; /* at the same offset in both families */
	memcpy(h->magic, HELLO_MAGIC, sizeof(h->magic));
	if (at->ss_family == AF_INET6) {
		memcpy(h->address, &v6->sin6_addr, sizeof(h->address));
		return;
	}
	h->address[10] = h->address[11] = 0xff;
	memcpy(h->address + 12, &v4->sin_addr, 4);
}

static int tls_link_hello_place(const struct link *l, const uint8_t *hello, size_t size,
				struct sockaddr_storage *ret, char why[LINK_WHY_SIZE])
{
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct hello h;

	(void)l;
	if (size != sizeof(h) || memcmp(hello, HELLO_MAGIC, sizeof(HELLO_MAGIC)) != 0) {
		(void)snprintf(
			why, LINK_WHY_SIZE,
			"its hello is none of a link with TLS; set the same security on both nodes");
		return -EPIPE;
	}
	memcpy(&h, hello, sizeof(h));
	*ret = (struct sockaddr_storage){0};
	memcpy(&v6.sin6_addr, h.address, sizeof(v6.sin6_addr));
	v6.sin6_port = v4.sin_port = h.port;
	memcpy(&v4.sin_addr, h.address + 12, 4);
	if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
		memcpy(ret, &v4, sizeof(v4));
	else
		memcpy(ret, &v6, sizeof(v6));
	return 0;
}

static size_t tls_link_hello(const struct link *l, uint8_t ret[LINK_HELLO_MAX])
{
	memcpy(ret, &of_const(l)->hello, sizeof(struct hello));
	return sizeof(struct hello);
}

static socklen_t size_of(const struct sockaddr_storage *at)
{
	return at->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static int listen_at(struct sockaddr_storage *at, int *ret)
{
	cleanup(fd_closep) int fd = socket(at->ss_family,
					   SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(*at);

	if (fd < 0 || bind(fd, (const struct sockaddr *)at, size_of(at)) < 0 ||
	    listen(fd, BACKLOG) < 0 || getsockname(fd, (struct sockaddr *)at, &size) < 0)
		return -errno;
	*ret = take_fd(fd);
	return 0;
}

static int tls_link_make(const struct link_form *form, struct link **ret, char why[LINK_WHY_SIZE])
{
	struct tls_link *l = calloc(1, sizeof(*l));
	struct sockaddr_storage at = form->address;
	int r = l ? 0 : -ENOMEM;

	if (l) {
		*l = (struct tls_link){
			.tls = form->tls, .is_first = form->is_first, .door = -1, .fd = -1};
		tcp_socket_init(&l->socket);
		list_init(&l->sends);
		list_init(&l->receives);
		list_init(&l->out);
		list_init(&l->ready);
		(void)pthread_mutex_init(&l->lock, NULL);
		(void)pthread_mutex_init(&l->io, NULL);
		(void)pthread_cond_init(&l->changed, NULL);
		l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		r = l->wake_fd < 0 ? -errno : 0;
	}
	if (r == 0 && !form->is_first)
		r = listen_at(&at, &l->door);
	if (r < 0) {
		(void)snprintf(why, LINK_WHY_SIZE, "%s", strerror(-r));
		if (l)
			(void)fd_close(l->wake_fd);
		free(l);
		return -EIO;
	}
	hello_make(&l->hello, &at, form->is_first);
	*ret = &l->base;
	return 0;
}

/* --- Connecting: on the thread of the caller ---------------------------------------------------------- */

/* 0; -EAGAIN: later. Else the sentence has the reason. */
static int shake_hands(struct tcp_socket *s, char why[LINK_WHY_SIZE])
{
	int r = tcp_socket_handshake(s);

	if (r < 0 && r != -EAGAIN)
		tls_explain(s->tls, why, LINK_WHY_SIZE);
	return r;
}

static short events_of(const struct tcp_socket *s)
{
	return SSL_want_write(s->tls) ? POLLOUT : POLLIN;
}

static int begin_session(struct tls_link *l, struct tcp_socket *s, int fd, const char *node)
{
	SSL *tls = tls_session(l->tls, fd, !l->is_first, node);

	if (!tls) {
		(void)fd_close(fd);
		return -ENOMEM;
	}
	tcp_socket_tune(fd, 0, 0);
	tcp_socket_open(s, fd, tls, l->is_first);
	return 0;
}

static int dial(struct tls_link *l, const char *node, const struct sockaddr_storage *there,
		char why[LINK_WHY_SIZE])
{
	cleanup(fd_closep) int fd = socket(there->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0 || connect(fd, (const struct sockaddr *)there, size_of(there)) < 0 ||
	    (r = fcntl(fd, F_SETFL, O_NONBLOCK)) < 0) {
		(void)snprintf(why, LINK_WHY_SIZE, "%s", strerror(errno));
		return -EPIPE;
	}
	if (begin_session(l, &l->socket, take_fd(fd), node) < 0) {
		(void)snprintf(why, LINK_WHY_SIZE, "no memory for TLS");
		return -EPIPE;
	}
	while ((r = shake_hands(&l->socket, why)) == -EAGAIN) {
		struct pollfd p = {.fd = l->socket.fd, .events = events_of(&l->socket)};

		(void)poll(&p, 1, -1);
	}
	return r < 0 ? -EPIPE : 0;
}

/* Peers in their handshake. */
struct guests {
	struct tcp_socket sockets[GUESTS];
	struct crowd_member members[GUESTS];
	unsigned n;
};

static void leave(struct guests *g, size_t i)
{
	size_t n_behind = --g->n - i;

	tcp_socket_close(&g->sockets[i]);
	memmove(g->sockets + i, g->sockets + i + 1, n_behind * sizeof(*g->sockets));
	memmove(g->members + i, g->members + i + 1, n_behind * sizeof(*g->members));
}

static void welcome(struct tls_link *l, struct guests *g, const char *node)
{
	struct sockaddr_storage at = {0};
	socklen_t size = sizeof(at);
	int fd = accept4(l->door, (struct sockaddr *)&at, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return; /* the peer closed it already */
	if (g->n == GUESTS)
		leave(g, crowd_leaver(g->members, GUESTS));
	if (begin_session(l, &g->sockets[g->n], fd, node) == 0)
		g->members[g->n++] = crowd_member(&at);
}

/* The first that proves the name of the node is the other end. Others wait or leave. */
static int admit(struct tls_link *l, const char *node, char why[LINK_WHY_SIZE])
{
	struct guests g = {.n = 0};

	for (;;) {
		struct pollfd p[1 + GUESTS] = {{.fd = l->door, .events = POLLIN}};

		for (unsigned i = 0; i < g.n; i++)
			p[1 + i] = (struct pollfd){.fd = g.sockets[i].fd,
						   .events = events_of(&g.sockets[i])};
		if (poll(p, 1 + g.n, -1) < 0 && errno != EINTR) {
			(void)snprintf(why, LINK_WHY_SIZE, "%s", strerror(errno));
			return -EPIPE;
		}
		for (unsigned i = g.n; i-- > 0;) {
			int r = p[1 + i].revents ? shake_hands(&g.sockets[i], why) : -EAGAIN;

			if (r == 0) {
				l->socket = g.sockets[i];
				tcp_socket_init(&g.sockets[i]);
				while (g.n > 0)
					leave(&g, g.n - 1);
				return 0;
			}
			if (r != -EAGAIN) {
				(void)pthread_mutex_lock(&l->lock);
				memcpy(l->refused, why, sizeof(l->refused));
				(void)pthread_mutex_unlock(&l->lock);
				leave(&g, i);
			}
		}
		if (p[0].revents)
			welcome(l, &g, node);
	}
}

static void *tls_link_run(void *arg);

static int tls_link_connect(struct link *base, const char *node, const uint8_t *hello, size_t size,
			    char why[LINK_WHY_SIZE])
{
	struct tls_link *l = of(base);
	struct sockaddr_storage there;
	pthread_t thread;
	int r = tls_link_hello_place(base, hello, size, &there, why);

	if (r == 0)
		r = l->is_first ? dial(l, node, &there, why) : admit(l, node, why);
	if (r < 0)
		return r;
	l->door = fd_close(l->door);
	l->fd = l->socket.fd;
	r = -pthread_create(&thread, NULL, tls_link_run, l);
	if (r < 0) {
		(void)snprintf(why, LINK_WHY_SIZE, "no thread: %s", strerror(-r));
		return -EPIPE;
	}
	(void)pthread_detach(thread);
	return 0;
}

static int tls_link_fd(const struct link *l)
{
	return of_const(l)->fd;
}

/* --- Failures ---------------------------------------------------------------------------------- */

/* Breaks the link: the first reason counts. Returns an error. */
__attribute__((format(printf, 2, 3))) static int break_link(struct tls_link *l, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)pthread_mutex_lock(&l->lock);
	if (!l->is_broken)
		(void)vsnprintf(l->why, sizeof(l->why), fmt, args);
	l->is_broken = true;
	(void)pthread_cond_broadcast(&l->changed);
	(void)pthread_mutex_unlock(&l->lock);
	va_end(args);
	return -EPIPE;
}

/* --- Transfers ---------------------------------------------------------------------------------- */

static void wake(struct tls_link *l)
{
	/* Cannot fail: the counter is far from its limit. */
	(void)eventfd_write(l->wake_fd, 1);
}

static void queue(struct tls_link *l, struct tls_transfer *t, enum header_kind next)
{
	t->next = next;
	list_append(&l->out, &t->out_link);
}

static struct tls_transfer *find(struct list *all, uint64_t slot)
{
	struct tls_transfer *t;

	list_for_each(t, all, link)
		if (t->slot == slot && !t->is_done)
			return t;
	return NULL;
}

/* -EPIPE with a sentence. */
static int transfer_begin(struct tls_link *l, struct tls_transfer *new, struct transfer **ret,
			  char why[LINK_WHY_SIZE])
{
	struct tls_transfer *t = malloc(sizeof(*t));
	struct ready *ready, *next;
	bool fits = true;

	if (!t) {
		(void)snprintf(why, LINK_WHY_SIZE, "no memory");
		return -EPIPE;
	}
	*t = *new;
	t->base.link = &l->base;
	list_init(&t->link);
	list_init(&t->out_link);
	(void)pthread_mutex_lock(&l->lock);
	list_append(t->is_send ? &l->sends : &l->receives, &t->link);
	queue(l, t, t->is_send ? HEADER_ANNOUNCED : HEADER_READY);
	list_for_each_safe(ready, next, &l->ready, link) {
		if (!t->is_send || ready->slot != t->slot)
			continue;
		fits = ready->size == t->size;
		t->is_wanted = true;
		list_remove(&ready->link);
		l->n_ready--;
		free(ready);
	}
	(void)pthread_mutex_unlock(&l->lock);
	if (!fits)
		(void)break_link(l, "%s", OTHER_BYTES);
	wake(l);
	*ret = &t->base;
	return 0;
}

static int tls_link_send(struct link *l, uint64_t slot, const void *from, size_t size,
			 struct transfer **ret, char why[LINK_WHY_SIZE])
{
	return transfer_begin(
		of(l),
		&(struct tls_transfer){.slot = slot, .is_send = true, .from = from, .size = size},
		ret, why);
}

static int tls_link_receive(struct link *l, uint64_t slot, void *to, size_t size,
			    struct transfer **ret, char why[LINK_WHY_SIZE])
{
	return transfer_begin(of(l), &(struct tls_transfer){.slot = slot, .to = to, .size = size},
			      ret, why);
}

/* A transfer of a broken link stays: its thread may be at the bytes. */
static int tls_transfer_finish(struct transfer *base, char why[LINK_WHY_SIZE])
{
	struct tls_transfer *t = container_of(base, struct tls_transfer, base);
	struct tls_link *l = of(base->link);
	bool is_done;

	(void)pthread_mutex_lock(&l->lock);
	while (!t->is_done && !l->is_broken)
		(void)pthread_cond_wait(&l->changed, &l->lock);
	is_done = t->is_done;
	if (is_done)
		list_remove(&t->link);
	else
		(void)snprintf(why, LINK_WHY_SIZE, "%s", l->why);
	(void)pthread_mutex_unlock(&l->lock);
	if (is_done)
		free(t);
	return is_done ? 0 : -EPIPE;
}

/* --- The thread ---------------------------------------------------------------------------------- */

static int break_for(struct tls_link *l, int error)
{
	char why[LINK_WHY_SIZE] = "";

	if (error == -EPROTO)
		tls_explain(l->socket.tls, why, sizeof(why));
	else if (error != -EPIPE)
		(void)snprintf(why, sizeof(why), "%s", strerror(-error));
	return break_link(l, "%s", why);
}

/* The transfer whose header is next, if none is begun. False: there is nothing to write. */
static bool next_header(struct tls_link *l)
{
	if (l->writing)
		return true;
	(void)pthread_mutex_lock(&l->lock);
	l->writing = list_first(&l->out, struct tls_transfer, out_link);
	if (l->writing) {
		list_remove(&l->writing->out_link);
		l->out_header = (struct header){.kind = htobe64(l->writing->next),
						.slot = htobe64(l->writing->slot),
						.size = htobe64(l->writing->size)};
		l->n_out = 0;
	}
	(void)pthread_mutex_unlock(&l->lock);
	return l->writing;
}

/* The rest of the header and of the bytes behind it, which is to be written. */
static size_t rest_of_writing(const struct tls_link *l, const uint8_t **ret)
{
	size_t n_bytes = l->writing->next == HEADER_BYTES ? l->writing->size : 0;

	if (l->n_out < HEADER_SIZE) {
		*ret = (const uint8_t *)&l->out_header + l->n_out;
		return HEADER_SIZE - l->n_out;
	}
	*ret = n_bytes ? l->writing->from + (l->n_out - HEADER_SIZE) : NULL;
	return HEADER_SIZE + n_bytes - l->n_out;
}

static void wrote_header(struct tls_link *l)
{
	struct tls_transfer *t = l->writing;

	l->writing = NULL;
	(void)pthread_mutex_lock(&l->lock);
	if (t->next == HEADER_BYTES) {
		t->is_done = true;
		(void)pthread_cond_broadcast(&l->changed);
	} else if (t->is_send) {
		t->next = HEADER_BYTES;
		if (t->is_wanted)
			queue(l, t, HEADER_BYTES);
	}
	(void)pthread_mutex_unlock(&l->lock);
}

/* 0: nothing to write, or enough for now. -EAGAIN: the socket is full. */
static int write_some(struct tls_link *l)
{
	uint64_t n_written = 0;

	while (n_written < TURN && next_header(l)) {
		const uint8_t *from;
		size_t size = rest_of_writing(l, &from);
		ssize_t n = tcp_socket_write(&l->socket, from, size < TURN ? size : TURN);

		if (n == -EAGAIN)
			return -EAGAIN;
		if (n < 0)
			return break_for(l, (int)n);
		l->n_out += (size_t)n;
		n_written += (uint64_t)n;
		if ((size_t)n == size && (l->n_out > HEADER_SIZE ||
					  l->writing->next != HEADER_BYTES || l->writing->size == 0))
			wrote_header(l);
	}
	return 0;
}

static int on_ready(struct tls_link *l, uint64_t slot, uint64_t size)
{
	struct tls_transfer *t;
	struct ready *ready;
	bool fits = true;

	(void)pthread_mutex_lock(&l->lock);
	t = find(&l->sends, slot);
	if (t && (t->is_wanted || t->size != size)) {
		fits = false;
	} else if (t) {
		t->is_wanted = true;
		if (t->next == HEADER_BYTES) /* it was announced */
			queue(l, t, HEADER_BYTES);
	} else {
		ready = l->n_ready < READY_MAX ? malloc(sizeof(*ready)) : NULL;
		fits = ready != NULL;
		if (ready) {
			*ready = (struct ready){.slot = slot, .size = size};
			list_init(&ready->link);
			list_append(&l->ready, &ready->link);
			l->n_ready++;
		}
	}
	(void)pthread_mutex_unlock(&l->lock);
	return fits ? 0 : break_link(l, "%s", OTHER_BYTES);
}

/* Announced bytes must be those of the receive, if that has begun. */
static int on_bytes(struct tls_link *l, enum header_kind kind, uint64_t slot, uint64_t size)
{
	struct tls_transfer *t;
	bool fits;

	(void)pthread_mutex_lock(&l->lock);
	t = find(&l->receives, slot);
	fits = t ? t->size == size : kind == HEADER_ANNOUNCED;
	if (fits && kind == HEADER_BYTES)
		l->reading = t;
	(void)pthread_mutex_unlock(&l->lock);
	return fits ? 0 : break_link(l, "%s", OTHER_BYTES);
}

static int on_header(struct tls_link *l)
{
	static const uint8_t zero[sizeof(l->in_header.zero)];
	uint64_t kind = be64toh(l->in_header.kind);
	uint64_t slot = be64toh(l->in_header.slot), size = be64toh(l->in_header.size);

	if (memcmp(l->in_header.zero, zero, sizeof(zero)) != 0 || kind < HEADER_ANNOUNCED ||
	    kind > HEADER_BYTES)
		return break_link(l, "the peer does not speak our protocol");
	return kind == HEADER_READY ? on_ready(l, slot, size)
				    : on_bytes(l, (enum header_kind)kind, slot, size);
}

static void read_all_of(struct tls_link *l)
{
	(void)pthread_mutex_lock(&l->lock);
	l->reading->is_done = true;
	l->reading = NULL;
	(void)pthread_cond_broadcast(&l->changed);
	(void)pthread_mutex_unlock(&l->lock);
	l->n_in = 0;
}

/* -EAGAIN: there is no more. */
static int read_some(struct tls_link *l)
{
	uint64_t n_read = 0;

	while (n_read < TURN) {
		bool is_header = !l->reading;
		size_t at = is_header ? l->n_in : l->n_in - HEADER_SIZE;
		uint8_t *to = is_header ? (uint8_t *)&l->in_header : l->reading->to;
		size_t size = (is_header ? HEADER_SIZE : l->reading->size) - at;
		ssize_t n = size ? tcp_socket_read(&l->socket, to + at, size) : 0;
		int r = 0;

		if (n == -EAGAIN)
			return -EAGAIN;
		if (n < 0)
			return break_for(l, (int)n);
		l->n_in += (size_t)n;
		n_read += (uint64_t)n;
		if ((size_t)n < size)
			continue;
		if (!is_header)
			read_all_of(l);
		else if ((r = on_header(l)) == 0 && !l->reading)
			l->n_in = 0;
		if (r < 0)
			return r;
	}
	return 0;
}

static void wait_for_more(struct tls_link *l, bool is_full)
{
	struct pollfd p[] = {
		{.fd = l->socket.fd, .events = (short)(POLLIN | (is_full ? POLLOUT : 0))},
		{.fd = l->wake_fd, .events = POLLIN},
	};
	eventfd_t n;

	(void)poll(p, ARRAY_LEN(p), -1);
	if (p[1].revents)
		(void)eventfd_read(l->wake_fd, &n);
}

static void *tls_link_run(void *arg)
{
	struct tls_link *l = arg;

	for (;;) {
		int out, in;

		(void)pthread_mutex_lock(&l->io);
		out = write_some(l);
		in = out == 0 || out == -EAGAIN ? read_some(l) : out;
		(void)pthread_mutex_unlock(&l->io);
		if ((in < 0 && in != -EAGAIN) || (out < 0 && out != -EAGAIN))
			return NULL;
		if (in == -EAGAIN && (out == -EAGAIN || !next_header(l)))
			wait_for_more(l, out == -EAGAIN);
	}
}

static bool tls_link_refusal(struct link *base, char why[LINK_WHY_SIZE])
{
	struct tls_link *l = of(base);

	(void)pthread_mutex_lock(&l->lock);
	memcpy(why, l->refused, sizeof(l->refused));
	(void)pthread_mutex_unlock(&l->lock);
	return why[0];
}

static int tls_link_traffic(struct link *base, struct traffic *ret)
{
	struct tls_link *l = of(base);
	int r;

	(void)pthread_mutex_lock(&l->io);
	r = tcp_socket_traffic(&l->socket, ret);
	(void)pthread_mutex_unlock(&l->io);
	return r;
}

const struct link_ops tls_link_ops = {
	.explains = true,
	.make = tls_link_make,
	.hello = tls_link_hello,
	.hello_place = tls_link_hello_place,
	.connect = tls_link_connect,
	.fd = tls_link_fd,
	.send = tls_link_send,
	.receive = tls_link_receive,
	.finish = tls_transfer_finish,
	.refusal = tls_link_refusal,
	.traffic = tls_link_traffic,
};
