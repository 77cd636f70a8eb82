#include "server/base/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/libsystemd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/base/subordinate.h"

#define RETRY_NS 10000000u
#define FLUSH_NS 200000u /* a manager on another processor may receive as fast as we send */
#define PARTING_MS 1000 /* time to send what still waits at our end */
#define TURN_MESSAGES 6 /* as many as hand over what a create makes, with its barrier */

/* Messages of one user, which wait. It exists while there are some. */
struct lane {
	struct list link; /* notify::lanes */
	struct list messages;
	uid_t uid;
	unsigned n_sent; /* in its turn */
};

struct message {
	struct list link; /* lane::messages */
	uint64_t number; /* in the order in which they came */
	int fd; /* ours; -1: none */
	bool is_removal;
	char text[];
};

static void message_free(struct message *m)
{
	list_remove(&m->link);
	(void)fd_close(m->fd);
	free(m);
}

static int send_now(const struct notify *n, const char *text, int fd)
{
	union {
		struct cmsghdr align;
		char data[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)text, .iov_len = strlen(text)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		struct cmsghdr *c;

		msg.msg_control = control.data;
		msg.msg_controllen = sizeof(control.data);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	if (sendmsg(n->source.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return -errno;
	return 0;
}

/* --- lanes --- */

static struct lane *lane_find(const struct notify *n, uid_t uid)
{
	struct lane *lane;

	list_for_each(lane, &n->lanes, link)
		if (lane->uid == uid)
			return lane;
	return NULL;
}

static struct lane *lane_new(struct notify *n, uid_t uid)
{
	struct lane *lane = calloc(1, sizeof(*lane));

	if (!lane)
		return NULL;
	lane->uid = uid;
	list_init(&lane->messages);
	list_append(&n->lanes, &lane->link);
	return lane;
}

static struct message *lane_message(const struct lane *lane)
{
	return list_first(&lane->messages, struct message, link);
}

/* Removes its first message, and the lane with the last one: then true. */
static bool lane_pop(struct notify *n, struct lane *lane)
{
	struct message *m = lane_message(lane);

	n->n_removals -= m->is_removal;
	message_free(m);
	if (!list_empty(&lane->messages))
		return false;
	list_remove(&lane->link);
	free(lane);
	if (list_empty(&n->lanes))
		n->in_order = false;
	return true;
}

static void notify_forget_all(struct notify *n)
{
	struct lane *lane;

	while ((lane = list_first(&n->lanes, struct lane, link)))
		(void)lane_pop(n, lane);
}

/* Its first message was sent: the lane behind it is next once its turn is over. */
static void lane_advance(struct notify *n, struct lane *lane)
{
	if (!lane_pop(n, lane) && ++lane->n_sent == TURN_MESSAGES) {
		lane->n_sent = 0;
		list_remove(&lane->link);
		list_append(&n->lanes, &lane->link);
	}
}

/*
 * The lane with the next message. A manager drops what its store has no room for, without a word: a descriptor must not
 * overtake removals that made room for it. Where there is room for all that wait, before any removal, it may.
 */
static struct lane *next_lane(const struct notify *n)
{
	struct lane *next = list_first(&n->lanes, struct lane, link), *lane;

	if (!n->in_order && n->n_removals <= n->room)
		return next;
	list_for_each(lane, &n->lanes, link)
		if (lane_message(lane)->number < lane_message(next)->number)
			next = lane;
	return next;
}

/* --- sending --- */

static void notify_give_up(struct notify *n, int r)
{
	if (!n->gone)
		log_error("the service manager is gone (%s): buffers will not survive a restart",
			  strerror(-r));
	n->gone = true;
	timer_stop(&n->retry);
	timer_stop(&n->watchdog);
	loop_modify(&n->source, 0);
	notify_forget_all(n);
}

/* Sends what waits, as far as there is room, for a while. `charges`: no user's turn has that time. */
static void notify_flush(struct notify *n, bool charges)
{
	uint64_t began_ns = num_now_ns(), now = began_ns, before;
	struct lane *lane;

	while ((lane = next_lane(n))) {
		const struct message *m = lane_message(lane);
		uid_t uid = lane->uid;
		int r = now - began_ns < FLUSH_NS ? send_now(n, m->text, m->fd) : -EAGAIN;

		if (r == -EAGAIN || r == -EINTR) {
			loop_modify(&n->source, EPOLLOUT);
			return;
		}
		if (r == -ETOOMANYREFS || r == -ENOBUFS || r == -ENOMEM) {
			loop_modify(&n->source, 0); /* no event shows when there is room */
			timer_start(n->loop, &n->retry, num_now_ns() + RETRY_NS);
			return;
		}
		if (r < 0) {
			notify_give_up(n, r);
			return;
		}
		lane_advance(n, lane);
		before = now;
		now = num_now_ns();
		if (charges && n->charge && uid != NOTIFY_OURS)
			n->charge(n->charge_arg, uid, before, now);
	}
	loop_modify(&n->source, 0);
}

static void notify_on_room(struct source *source, uint32_t events)
{
	(void)events;
	notify_flush(container_of(source, struct notify, source), true);
}

static void notify_on_retry(struct timer *timer)
{
	notify_flush(container_of(timer, struct notify, retry), true);
}

/* In front of what waits: storing much must not look like hanging. */
static void notify_on_watchdog(struct timer *timer)
{
	struct notify *n = container_of(timer, struct notify, watchdog);
	int r = send_now(n, "WATCHDOG=1", -1);

	if (r == -ECONNREFUSED || r == -ENOENT || r == -EPIPE) {
		notify_give_up(n, r);
		return;
	}
	timer_start(n->loop, &n->watchdog, num_now_ns() + (r == 0 ? n->watchdog_ns : RETRY_NS));
}

static int watchdog_init(struct notify *n)
{
	const struct libsystemd *systemd;
	const char *why;
	uint64_t usec;
	int r;

	if (!getenv("WATCHDOG_USEC"))
		return 0;
	systemd = libsystemd_open(&why);
	if (!systemd) {
		log_error("cannot send the pings that the service manager expects (WATCHDOG_USEC): %s",
			  why);
		return -EINVAL;
	}
	r = systemd->watchdog_enabled(true, &usec);
	if (r < 0)
		log_error("invalid WATCHDOG_USEC from the service manager: %s", strerror(-r));
	else if (r > 0)
		n->watchdog_ns = usec * 1000 / 4;
	return 0;
}

/*
 * Keeps few messages in the kernel, where they are in one line: as many as the least buffer has room for, which are
 * those of a turn.
 */
static void bound_buffer(int fd)
{
	const int least = 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least,
			 sizeof(least)); /* cannot fail for a socket */
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t size = strlen(path);
	int fd;

	if ((path[0] != '/' && path[0] != '@') || size >= sizeof(address.sun_path))
		return -EINVAL;
	memcpy(address.sun_path, path, size);
	if (path[0] == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&address,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)) < 0) {
		int r = -errno;

		(void)fd_close(fd);
		return r;
	}
	bound_buffer(fd);
	return fd;
}

int notify_init(struct notify *n, struct loop *l)
{
	const char *path = getenv("NOTIFY_SOCKET");
	int fd, r;

	*n = (struct notify){.loop = l, .source.fd = -1, .in_order = true};
	list_init(&n->lanes);
	timer_init(&n->retry, notify_on_retry);
	timer_init(&n->watchdog, notify_on_watchdog);
	if (!path || !path[0])
		return 0;
	fd = connect_to(path);
	r = fd < 0 ? fd : loop_add(l, &n->source, fd, 0, notify_on_room);
	if (r < 0) {
		log_error("NOTIFY_SOCKET=%s: %s", path, strerror(-r));
		n->source.fd = -1;
		if (fd >= 0)
			(void)fd_close(fd);
		return 0;
	}
	n->is_keeper = getenv("WEIGHTD_KEEPER") != NULL;
	(void)unsetenv("NOTIFY_SOCKET"); /* our children must not send messages as us */
	return watchdog_init(n);
}

void notify_charge(struct notify *n,
		   void (*charge)(void *arg, uid_t uid, uint64_t begin, uint64_t end), void *arg)
{
	n->charge = charge;
	n->charge_arg = arg;
}

/* Sends what waits, of use even now: removals, above all. There are no clients left to delay. */
static void send_rest(struct notify *n)
{
	uint64_t deadline_ns = num_now_ns() + PARTING_MS * 1000000u;
	struct lane *lane;

	while ((lane = next_lane(n))) {
		const struct message *m = lane_message(lane);
		int r = n->gone ? -EPIPE : send_now(n, m->text, m->fd);

		while (r == -EAGAIN && num_now_ns() < deadline_ns) {
			struct pollfd room = {.fd = n->source.fd, .events = POLLOUT};

			(void)poll(&room, 1, RETRY_NS / 1000000);
			r = send_now(n, m->text, m->fd);
		}
		if (r < 0) {
			log_warning("the service manager did not receive all messages: %s",
				    strerror(-r));
			return;
		}
		lane_advance(n, lane);
	}
}

void notify_deinit(struct notify *n)
{
	timer_stop(&n->watchdog);
	timer_stop(&n->retry);
	send_rest(n);
	notify_forget_all(n);
	loop_remove(&n->source);
	n->source.fd = fd_close(n->source.fd);
}

bool notify_works(const struct notify *n)
{
	return n->source.fd >= 0 && !n->gone;
}

/* NULL, with errno. */
static struct message *message_new(const char *text, int fd)
{
	size_t size = strlen(text) + 1;
	struct message *m = malloc(sizeof(*m) + size);

	if (!m)
		return NULL;
	list_init(&m->link);
	memcpy(m->text, text, size);
	m->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && m->fd < 0) {
		int error = errno;

		message_free(m);
		errno = error;
		return NULL;
	}
	return m;
}

static int notify_enqueue(struct notify *n, uid_t uid, const char *text, int fd, bool is_removal)
{
	struct lane *lane = lane_find(n, uid);
	struct message *m = message_new(text, fd);

	if (!m)
		return -errno;
	m->number = n->n_waited++;
	m->is_removal = is_removal;
	if (!lane)
		lane = lane_new(n, uid);
	if (!lane) {
		message_free(m);
		return -ENOMEM;
	}
	n->n_removals += is_removal;
	list_append(&lane->messages, &m->link);
	return 0;
}

static int send_or_wait(struct notify *n, uid_t uid, const char *text, int fd, bool is_removal)
{
	int r = -EAGAIN;

	if (!notify_works(n))
		return -ENOTCONN;
	if (list_empty(&n->lanes))
		r = send_now(n, text, fd);
	if (r == 0)
		return 0;
	if (r == -ECONNREFUSED || r == -ENOENT || r == -EPIPE || r == -ENOTCONN) {
		notify_give_up(n, r);
		return -ENOTCONN;
	}
	r = notify_enqueue(n, subordinate_payer(uid), text, fd, is_removal);
	if (r == 0)
		notify_flush(n, false);
	return r;
}

int notify_send(struct notify *n, uid_t uid, const char *text, int fd)
{
	return send_or_wait(n, uid, text, fd, false);
}

int notify_send_removal(struct notify *n, uid_t uid, const char *text)
{
	return send_or_wait(n, uid, text, -1, true);
}

void notify_keep_order(struct notify *n)
{
	n->in_order = !list_empty(&n->lanes);
}

void notify_ready(struct notify *n, const char *status)
{
	char text[256];

	(void)snprintf(text, sizeof(text), "READY=1\nSTATUS=%s", status);
	(void)notify_send(n, NOTIFY_OURS, text, -1); /* there is nowhere to report a failure */
	if (n->watchdog_ns && notify_works(n))
		timer_start(n->loop, &n->watchdog, num_now_ns() + n->watchdog_ns);
}
