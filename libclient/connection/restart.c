/*
 * While a server restarts, its socket has no listener or is missing. Both end with an event in its folder, except if
 * another process holds the socket. So connecting is tried at each event, and periodically.
 */
#include "libclient/connection/restart.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/connection/ask.h"
#include "libclient/connection/dial.h"
#include "libclient/connection/folder.h"

#define RECHECK_MS 50
#define HELLO_MS 5000
#define HELLO_LEAST_MS                                                                             \
	100 /* also of a call that has no time: else it would never find the server again */

uint64_t restart_until(const struct weightd *w)
{
	if (w->restart_timeout_ms < 0)
		return UINT64_MAX;
	return num_now_ns() + (uint64_t)w->restart_timeout_ms * 1000000;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t end_of(const struct restart_patience *p)
{
	return smaller(p->until_ns, p->deadline_ns);
}

static int hello_ms(const struct restart_patience *p)
{
	uint64_t now = num_now_ns();
	uint64_t left_ms = end_of(p) > now ? (end_of(p) - now) / 1000000 : 0;

	if (left_ms < HELLO_LEAST_MS)
		return HELLO_LEAST_MS;
	return (int)smaller(left_ms, HELLO_MS);
}

static int resume_all(struct list *l, const struct weightd *w, const struct restart_patience *p)
{
	struct held *h;
	int r;

	list_for_each(h, l, link) {
		r = h->ops->resume(h, p);
		if (w->fd < 0)
			return r;
	}
	return 0;
}

int restart_take_up(struct weightd *w, const struct restart_patience *p)
{
	int r = resume_all(&w->buffers, w, p);

	if (w->fd >= 0)
		r = resume_all(&w->writers, w, p);
	return w->fd < 0 ? r : resume_all(&w->jobs, w, p);
}

void restart_forget(struct weightd *w)
{
	struct held *h;

	list_for_each(h, &w->buffers, link)
		h->ops->forget(h);
	list_for_each(h, &w->writers, link)
		h->ops->forget(h);
	list_for_each(h, &w->jobs, link)
		h->ops->forget(h);
}

/* Those that pass when the server is there. EACCES: of a socket that was just made. */
static bool is_passing(int r)
{
	return r == -ECONNREFUSED || r == -ENOENT || r == -EAGAIN || r == -EACCES ||
	       r == -ENOTCONN || r == -ECONNRESET || r == -EPIPE || r == -ETIMEDOUT;
}

static int try_once(struct weightd *w, const struct restart_patience *p)
{
	int r = dial_open(w, false);

	if (r == 0)
		r = dial_greet(w, hello_ms(p), p);
	if (r == 0)
		r = restart_take_up(w, p);
	if (r < 0)
		w->fd = fd_close(w->fd);
	return r;
}

static int too_late(struct weightd *w, const struct restart_patience *p)
{
	if (num_now_ns() >= p->deadline_ns)
		return sentence_set(&w->sentence, -ETIMEDOUT,
				    "the time was over before weightd at %s was back", w->path);
	return sentence_set(
		&w->sentence, -ENOTCONN,
		"weightd at %s was not back within %d ms; see its journal (journalctl -u weightd)",
		w->path, w->restart_timeout_ms);
}

/* Waits with a watch on the folder, in which a server recreates its socket. */
static int watch_and_wait(struct weightd *w, const struct restart_patience *p)
{
	cleanup(fd_closep) int watch = folder_watch(-1, w->path);
	int pause_ms = 1;

	for (;;) {
		int r = try_once(w, p);
		uint64_t now;

		if (!is_passing(r))
			return r;
		now = num_now_ns();
		if (now >= end_of(p))
			return too_late(w, p);
		/* At first often: a socket that is just made refuses until its owner listens. */
		if (folder_wait(watch, (int)smaller((uint64_t)pause_ms,
						    (end_of(p) - now + 999999) / 1000000)))
			pause_ms = 1;
		else
			pause_ms = (int)smaller(2 * (uint64_t)pause_ms, RECHECK_MS);
		if (p->tick && p->tick(p->userdata) < 0)
			return sentence_set(&w->sentence, -ECANCELED, "cancelled");
	}
}

int restart_wait(struct weightd *w, const struct restart_patience *p)
{
	/*
	 * If another process holds the socket, connecting succeeds before anything listens. Try without a
	 * watch first: closing one takes up to 20 ms, in which the kernel waits for all its readers.
	 */
	int r = try_once(w, p);

	if (!is_passing(r))
		return r;
	return num_now_ns() < end_of(p) ? watch_and_wait(w, p) : too_late(w, p);
}

static int not_back(struct weightd *w)
{
	return sentence_set(&w->sentence, -ENOTCONN, "weightd at %s is not back yet", w->path);
}

/* Leaves the connection in w->greeted_fd, with a hello sent on it. */
static int greet_without_waiting(struct weightd *w)
{
	int r = dial_open(w, false);

	if (r == 0)
		r = dial_greet_send(w);
	if (r < 0) {
		w->fd = fd_close(w->fd);
		return is_passing(r) ? not_back(w) : r;
	}
	w->greeted_fd = take_fd(w->fd);
	return 0;
}

int restart_try(struct weightd *w)
{
	const struct restart_patience patience = {
		.until_ns = UINT64_MAX,
		.deadline_ns = UINT64_MAX,
	};
	struct pollfd answer = {.events = POLLIN};
	int r = w->greeted_fd < 0 ? greet_without_waiting(w) : 0;

	if (r < 0)
		return r;
	answer.fd = w->greeted_fd;
	if (poll(&answer, 1, 0) <= 0)
		return not_back(w);
	w->fd = take_fd(w->greeted_fd);
	r = dial_greet_receive(w);
	if (r == 0)
		r = restart_take_up(w, &patience);
	if (r < 0)
		w->fd = fd_close(w->fd);
	return is_passing(r) ? not_back(w) : r;
}

/* Outside of a call nothing arrives but the end. */
static bool is_connected(struct weightd *w)
{
	struct pollfd end = {.fd = w->fd, .events = POLLIN};
	char byte;
	ssize_t n;

	if (w->fd < 0)
		return false;
	if (poll(&end, 1, 0) <= 0)
		return true;
	n = recv(w->fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	(void)client_lost(w, n < 0 ? -errno : n > 0 ? -EBADMSG : 0);
	return false;
}

int restart_look(struct weightd *w)
{
	if (is_connected(w))
		return 0;
	return w->survives ? restart_try(w) : -ENOTCONN;
}
