#include "tests/bench/tenants/crowd.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tests/bench/stopwatch.h"

#define EVENTS_MAX 256
#define CONNECTS_MAX 64 /* before replies are read again */
#define IDLE_MS 20

/* --- Members ------------------------------------------------------------------------------------ */

static void member_see(struct member *m)
{
	m->squad->n_seen += !m->seen;
	m->seen = true;
}

static void member_close(struct member *m)
{
	if (m->fd < 0)
		return;
	m->fd = fd_close(m->fd); /* the epoll set loses it, too */
	m->squad->n_closed++;
}

void member_leave(struct member *m)
{
	member_see(m);
	member_close(m);
}

/* Unlike channel_send(), with as many descriptors as the kernel passes on. */
static int packet_send(int fd, const void *data, size_t size, const int *fds, unsigned n_fds)
{
	char control[CMSG_SPACE(CHANNEL_FDS_MAX * sizeof(int))] __attribute__((aligned(8))) = {0};
	struct iovec io = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

	if (n_fds > 0) {
		struct cmsghdr *rights;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		rights = CMSG_FIRSTHDR(&message);
		*rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
					   .cmsg_type = SCM_RIGHTS,
					   .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
		memcpy(CMSG_DATA(rights), fds, n_fds * sizeof(int));
	}
	return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

bool member_send_raw(struct member *m, const void *data, size_t size, const int *fds, unsigned n_fds)
{
	int r;

	if (m->fd < 0)
		return false;
	r = packet_send(m->fd, data, size, fds, n_fds);
	if (r == 0)
		m->squad->n_sent++;
	else if (r != -EAGAIN)
		member_leave(m);
	return r == 0;
}

void member_send(struct member *m, enum wire_op op, struct wire_request *request, const int *fds,
		 unsigned n_fds)
{
	(void)member_send_raw(m, request, codec_seal_request(request, op, ++m->serial), fds, n_fds);
}

static void member_greet(struct member *m)
{
	struct wire_request request = {0};

	request.hello.version = WIRE_VERSION;
	request.hello.features = WIRE_FEATURE_IMAGE;
	(void)CODEC_PUT_STRING(request.hello.program, "attacker");
	member_send(m, WIRE_HELLO, &request, NULL, 0);
}

/* False: the server has a full backlog, or does not listen. */
static bool member_connect(struct member *m)
{
	const struct crowd *c = m->squad->crowd;
	struct epoll_event event = {.events = EPOLLIN | (c->attack->reads_not ? EPOLLOUT : 0),
				    .data.ptr = m};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		stopwatch_fail("no socket: %s", strerror(errno));
	if (connect(fd, (const struct sockaddr *)&c->address, sizeof(c->address)) < 0) {
		(void)close(fd);
		return false;
	}
	if (epoll_ctl(m->squad->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		stopwatch_fail("no events: %s", strerror(errno));
	*m = (struct member){.squad = m->squad,
			     .fd = fd,
			     .index = m->index,
			     .seen = m->seen,
			     .greeted = c->attack->greets_not,
			     .serial = m->serial};
	m->squad->n_closed--;
	m->squad->n_connected++;
	if (c->attack->greets_not)
		c->attack->act(m);
	else
		member_greet(m);
	return true;
}

static void member_take_reply(struct member *m, struct channel_packet *packet)
{
	const struct attack *attack = m->squad->crowd->attack;
	struct wire_reply reply;

	member_see(m);
	m->squad->n_answered++;
	if (codec_decode_reply(packet->data, packet->size, packet->n_fds, &reply) < 0)
		stopwatch_fail("a reply is not one of this protocol");
	if (reply.header.op == (WIRE_ERROR | WIRE_REPLY))
		m->squad->n_refused++;
	else if (m->greeted && attack->answered)
		attack->answered(m, &reply, packet);
	/* After a refused hello the connection ends. */
	m->greeted |= reply.header.op == (WIRE_HELLO | WIRE_REPLY);
	if (m->greeted)
		attack->act(m);
}

static void member_on_input(struct member *m)
{
	struct channel_packet packet;
	int r = channel_receive(m->fd, MSG_DONTWAIT, &packet);

	if (r > 0)
		member_take_reply(m, &packet);
	for (unsigned i = 0; i < packet.n_fds; i++)
		(void)fd_close(packet.fds[i]);
	if (r == 0 || (r < 0 && r != -EAGAIN))
		member_leave(m);
}

static void member_on_event(struct member *m, uint32_t events)
{
	bool silent = m->squad->crowd->attack->reads_not && m->greeted;

	if (m->fd < 0)
		return;
	if (silent && events & (EPOLLHUP | EPOLLERR))
		member_leave(m);
	else if (silent && events & EPOLLOUT)
		m->squad->crowd->attack->act(m);
	else if (!silent && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		member_on_input(m);
}

/* --- Squads ------------------------------------------------------------------------------------- */

static void squad_connect(struct squad *s)
{
	uint32_t n_looked_at = 0;

	for (unsigned n = 0; s->n_closed > 0 && n < CONNECTS_MAX; n++) {
		struct member *m;

		do {
			m = &s->members[s->cursor++ % s->n_members];
		} while (m->fd >= 0 && n_looked_at++ < s->n_members);
		if (m->fd >= 0 || !member_connect(m))
			return;
	}
}

static void squad_report_ready(struct squad *s, bool controls)
{
	struct crowd *c = s->crowd;

	if (!s->ready && s->n_seen == s->n_members) {
		s->ready = true;
		atomic_fetch_add(&c->n_ready, 1);
	}
	if (controls && atomic_load(&c->n_ready) == c->n_squads) {
		atomic_fetch_add(&c->n_ready, 1); /* once */
		(void)puts("ready");
		(void)fflush(stdout);
	}
}

void squad_run(struct squad *s, int control_fd)
{
	struct epoll_event events[EVENTS_MAX] = {{.events = EPOLLIN}};
	bool controls = control_fd >= 0;

	if (controls && epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, control_fd, events) < 0)
		stopwatch_fail("no events: %s", strerror(errno));
	while (!atomic_load(&s->crowd->stop)) {
		int n = epoll_wait(s->epoll_fd, events, EVENTS_MAX, s->n_closed > 0 ? 0 : IDLE_MS);

		for (int i = 0; i < n; i++) {
			if (events[i].data.ptr)
				member_on_event(events[i].data.ptr, events[i].events);
			else
				atomic_store(&s->crowd->stop, true);
		}
		squad_connect(s);
		squad_report_ready(s, controls);
	}
}

/* --- The crowd ---------------------------------------------------------------------------------- */

static void squad_init(struct squad *s, struct crowd *c, uint32_t first, uint32_t n)
{
	*s = (struct squad){.crowd = c, .n_members = n, .n_closed = n};
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->members = calloc(n, sizeof(*s->members));
	if (s->epoll_fd < 0 || !s->members)
		stopwatch_fail("out of memory");
	for (uint32_t i = 0; i < n; i++)
		s->members[i] = (struct member){.squad = s, .fd = -1, .index = first + i};
}

void crowd_init(struct crowd *c, const char *path, uint32_t n_members)
{
	c->layout_fd = -1;
	if (channel_address(path, &c->address) < 0)
		stopwatch_fail("'%s' cannot be a socket", path);
	c->n_squads = n_members < CROWD_THREADS_MAX ? 1 : CROWD_THREADS_MAX;
	if (c->attack->prepare)
		c->attack->prepare(c);
	for (unsigned i = 0; i < c->n_squads; i++) {
		uint32_t first = n_members * i / c->n_squads;

		squad_init(&c->squads[i], c, first, n_members * (i + 1) / c->n_squads - first);
	}
}

/* The kernel closes what is open. */
void crowd_deinit(struct crowd *c)
{
	for (unsigned i = 0; i < c->n_squads; i++)
		free(c->squads[i].members);
}

int crowd_connect(struct crowd *c)
{
	struct wire_request request = {0};
	struct wire_reply reply;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)&c->address, sizeof(c->address)) < 0)
		stopwatch_fail("no connection: %s", strerror(errno));
	request.hello.version = WIRE_VERSION;
	if (crowd_ask(fd, WIRE_HELLO, &request, NULL, 0, &reply) < 0)
		stopwatch_fail("the server refused the first connection: %s", reply.error.text);
	return fd;
}

int crowd_ask(int fd, enum wire_op op, struct wire_request *request, const int *fds, unsigned n_fds,
	      struct wire_reply *ret)
{
	struct channel_packet packet;
	int r = channel_send(fd, request, codec_seal_request(request, op, 1), fds, n_fds);

	if (r < 0 || channel_receive(fd, 0, &packet) <= 0 ||
	    codec_decode_reply(packet.data, packet.size, packet.n_fds, ret) < 0)
		stopwatch_fail("no reply to request %d", op);
	channel_packet_deinit(&packet);
	return ret->header.op == (WIRE_ERROR | WIRE_REPLY) ? ret->error.error : 0;
}
