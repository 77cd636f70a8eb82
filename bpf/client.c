/*
 * The life of a client, from accept() to the close of its connection. The tracer owns it. Its rows, spans, watches
 * and unread packets are freed at once, while the closer may hold its connection for longer.
 */
#include "bpf/client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bpf/client_row.h"
#include "bpf/follow.h"
#include "bpf/messages.h"
#include "bpf/packets.h"
#include "bpf/request.h"
#include "bpf/rows.h"
#include "bpf/span.h"
#include "bpf/tracer.h"
#include "bpf/watch.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define LEFT_NS 1000000000u /* a client had this long to read */

static void on_connection_closed(struct closing *closing)
{
	struct client *c = container_of(closing, struct client, closing);

	list_remove(&c->link);
	c->tracer->n_clients--;
	free(c);
}

/* Unread packets are still in the connection, and are freed with it. */
static void close_connection(struct client *c)
{
	c->closing.fds[0] = c->source.fd;
	c->closing.n = 1;
	closer_close(c->tracer->closer, &c->closing, c->uid, on_connection_closed);
}

void client_free(struct client *c)
{
	struct messages *messages, *next_messages;
	struct watch *w, *next_watch;
	struct span *span, *next_span;
	struct row *row, *next_row;

	list_for_each_safe(w, next_watch, &c->watches, link)
		watch_free(w);
	if (c->n_rows > 0)
		(void)rows_mark(c->tracer);
	list_for_each_safe(span, next_span, &c->spans, link)
		span_free(c, span);
	list_for_each_safe(messages, next_messages, &c->messages, link)
		messages_free(messages);
	list_for_each_safe(row, next_row, &c->rows, link)
		client_row_free(c, row);
	packets_clear(c);
	json_decref(c->end);
	loop_remove(&c->source);
	list_remove(&c->link);
	list_append(&c->tracer->leaving, &c->link);
	c->is_gone = true;
	if (!c->is_closing)
		close_connection(c);
}

/*
 * Receives one packet and all descriptors that are in it. The kernel would close at once those that there is no room
 * for, and all clients would wait for that. Returns 0 at the end.
 */
static ssize_t client_receive(int fd, char text[PACKET_MAX], struct closing *ret)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(ret->fds))];
	struct iovec iov = {.iov_base = text, .iov_len = PACKET_MAX};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	const struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);

	ret->n = 0;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		memcpy(ret->fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
		ret->n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(*ret->fds));
	}
	if (n > 0 && (ret->n > 1 || m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return -EBADMSG;
	return n < 0 ? -errno : n;
}

static void on_request_closed(struct closing *closing)
{
	struct client *c = container_of(closing, struct client, closing);

	c->is_closing = false;
	if (c->is_gone)
		close_connection(c);
	else
		packets_answer_end(c, take_ptr(c->end));
}

static void client_serve(struct client *c, const char *text, size_t size)
{
	struct closing *closing = &c->closing;

	c->end = request_serve(c, text, size, closing->n == 1 ? closing->fds[0] : -1);
	c->is_closing = true;
	if (closing->n == 0) {
		on_request_closed(closing);
		return;
	}
	packets_wait(c);
	closer_close(c->tracer->closer, closing, c->uid, on_request_closed);
}

static void on_client_ready(struct source *s, uint32_t events)
{
	struct client *c = container_of(s, struct client, source);
	char text[PACKET_MAX];
	ssize_t n;

	if (!(events & (s->events | EPOLLHUP | EPOLLERR)))
		return; /* another source's callback has changed what it waits for */
	if (events & EPOLLOUT && !(events & (EPOLLHUP | EPOLLERR))) {
		packets_flush(c);
		if (c->is_behind)
			follow_catch_up(c);
		return;
	}
	n = c->is_closing ? 0 : client_receive(s->fd, text, &c->closing);
	if (n == -EAGAIN)
		return;
	if (n > 0 || n == -EBADMSG)
		client_serve(c, text, n > 0 ? (size_t)n : 0);
	else
		client_free(c);
}

/*
 * True for a client that ended a while ago, while another process holds its connection and does not read it.
 */
static bool is_left(const struct client *c, uint64_t now_ns)
{
	return !list_empty(&c->queue) && now_ns - c->read_ns > LEFT_NS && c->pid &&
	       kill(c->pid, 0) < 0 && errno == ESRCH;
}

/*
 * Frees clients that hold their own connection open beyond their end. A client does so that sends its connection with
 * a request and reads no answers: the request is not read before they are.
 */
static void drop_those_left(struct tracer *t)
{
	uint64_t now_ns = num_now_ns();
	struct client *c, *next;

	list_for_each_safe(c, next, &t->clients, link)
		if (is_left(c, now_ns))
			client_free(c);
}

static unsigned count_of_user(const struct list *clients, uid_t uid)
{
	const struct client *c;
	unsigned n = 0;

	list_for_each(c, clients, link)
		n += c->uid == uid;
	return n;
}

static bool has_too_many(const struct tracer *t, uid_t uid)
{
	return uid != 0 && uid != geteuid() &&
	       count_of_user(&t->clients, uid) + count_of_user(&t->leaving, uid) >=
		       CLIENTS_PER_USER_MAX;
}

static void on_refused_closed(struct closing *closing)
{
	free(closing);
}

/* Takes `fd`. */
static void connection_refuse(struct tracer *t, int fd, uid_t uid, unsigned limit, const char *whose)
{
	struct closing *closing = calloc(1, sizeof(*closing));
	char text[256];
	int n = snprintf(
		text, sizeof(text),
		"{\"end\":true,\"error\":\"weightd-trace has %u clients%s, and serves no more\"}",
		limit, whose);

	(void)send(fd, text, (size_t)n,
		   MSG_DONTWAIT | MSG_NOSIGNAL); /* there is room, or the client has closed it */
	if (!closing) {
		(void)fd_close(fd);
		return;
	}
	closing->is_refused = true;
	closing->fds[0] = fd;
	closing->n = 1;
	closer_close(t->closer, closing, uid, on_refused_closed);
}

int client_add(struct tracer *t, int fd)
{
	struct ucred peer;
	socklen_t n = sizeof(peer);
	struct client *c;
	int r;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0) {
		r = -errno;
		(void)fd_close(fd);
		return r;
	}
	drop_those_left(t);
	if (t->n_clients == CLIENTS_MAX) {
		connection_refuse(t, fd, peer.uid, CLIENTS_MAX, "");
		return 0;
	}
	if (has_too_many(t, peer.uid)) {
		connection_refuse(t, fd, peer.uid, CLIENTS_PER_USER_MAX, " of this user");
		return 0;
	}
	c = calloc(1, sizeof(*c));
	r = -ENOMEM;
	if (c)
		r = loop_add(t->collector.loop, &c->source, fd, EPOLLIN, on_client_ready);
	if (r < 0) {
		(void)fd_close(fd);
		free(c);
		return r;
	}
	c->tracer = t;
	c->number = ++t->last_client;
	c->uid = peer.uid;
	c->pid = peer.pid;
	c->began_ticks = process_read_began(c->pid);
	process_read_comm(c->pid, c->comm);
	list_init(&c->rows);
	list_init(&c->spans);
	list_init(&c->watches);
	list_init(&c->messages);
	list_init(&c->queue);
	list_append(&t->clients, &c->link);
	t->n_clients++;
	return 0;
}
