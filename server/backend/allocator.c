#include "server/backend/allocator.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"

#define PROGRAM "weightd-cuda"
#define SECOND_NS ((uint64_t)1000000000)
#define PAUSE_MS 10
#define DEATHS_FREE 2 /* before it has to wait */
#define WAIT_MAX_S 32

int allocator_init(struct allocator *a, const char *path, uint64_t timeout_s)
{
	*a = (struct allocator){
		.path = path,
		.timeout_ns = timeout_s * SECOND_NS,
		.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
	};
	child_init(&a->child);
	return a->stop_fd < 0 ? -errno : 0;
}

void allocator_deinit(struct allocator *a)
{
	allocator_rest(a);
	a->stop_fd = fd_close(a->stop_fd);
}

void allocator_stop(struct allocator *a)
{
	(void)eventfd_write(a->stop_fd, 1); /* the counter is far from its limit */
}

bool allocator_is_running(const struct allocator *a)
{
	return a->child.pid > 0;
}

void allocator_rest(struct allocator *a)
{
	char how[CHILD_WHY_SIZE];

	if (a->has_held)
		child_leave(&a->child);
	else
		(void)child_end(&a->child,
				how); /* the next use finds out what the driver still holds */
}

void allocator_pause(struct allocator *a)
{
	struct pollfd p = {.fd = a->stop_fd, .events = POLLIN};

	(void)poll(&p, 1, PAUSE_MS);
}

static bool is_stopped(const struct allocator *a)
{
	eventfd_t n;
	bool stopped = eventfd_read(a->stop_fd, &n) == 0;

	if (stopped)
		(void)eventfd_write(a->stop_fd, n);
	return stopped;
}

/* Twice it may die at once; then it has some time for what it dies of to pass. */
static void count_death(struct allocator *a)
{
	unsigned n = ++a->n_deaths;
	uint64_t seconds = n <= DEATHS_FREE      ? 0
			   : n - DEATHS_FREE > 5 ? WAIT_MAX_S
						 : (uint64_t)1 << (n - DEATHS_FREE);

	a->not_before_ns = num_now_ns() + seconds * SECOND_NS;
}

static int allocator_start(struct allocator *a, char *why)
{
	uint64_t now = num_now_ns();
	char how[CHILD_WHY_SIZE];
	int r;

	if (a->has_held) {
		child_leave(&a->child);
	} else if (child_end(&a->child, how) < 0) {
		(void)snprintf(why, ALLOCATOR_WHY_SIZE,
			       PROGRAM " (pid %d) hangs in the driver and cannot be killed; look at "
				       "dmesg and nvidia-smi",
			       a->child.pid);
		return -EBUSY;
	}
	if (now < a->not_before_ns) {
		(void)snprintf(why, ALLOCATOR_WHY_SIZE,
			       PROGRAM " died %u times in a row; the next start is in %" PRIu64 " s",
			       a->n_deaths, (a->not_before_ns - now) / SECOND_NS + 1);
		return -EAGAIN;
	}
	r = child_start(&a->child, a->path, PROGRAM, a->holds ? "--hold" : "--serve", why);
	if (r < 0)
		return r;
	a->has_held = false;
	log_debug(PROGRAM " was started: pid %d", a->child.pid);
	return 0;
}

/* It received a request and has not answered: `r` is the reason. */
static int allocator_fail(struct allocator *a, int r, char *why)
{
	pid_t pid = a->child.pid;
	bool is_left = a->has_held && r != -EPIPE;
	char how[CHILD_WHY_SIZE] = "nothing";

	if (is_left)
		child_leave(&a->child);
	else if (r != -EPIPE)
		child_kill(&a->child);
	if (child_end(&a->child, how) < 0)
		(void)snprintf(how, sizeof(how), "nothing: it hangs in the driver");
	if (r == -ECANCELED) {
		(void)snprintf(why, ALLOCATOR_WHY_SIZE, "weightd is stopping");
		return r;
	}
	count_death(a);
	if (r == -ETIMEDOUT)
		(void)snprintf(why, ALLOCATOR_WHY_SIZE,
			       PROGRAM " did not answer within %" PRIu64
				       " s and %s: the GPU or its driver hangs",
			       a->timeout_ns / SECOND_NS,
			       is_left ? "keeps what it holds" : "was killed");
	else if (r == -EPROTO)
		(void)snprintf(why, ALLOCATOR_WHY_SIZE,
			       PROGRAM " is of another release; restart weightd");
	else
		(void)snprintf(why, ALLOCATOR_WHY_SIZE, PROGRAM " died (%.64s)", how);
	log_warning("%s (pid %d)", why, pid);
	return r == -ETIMEDOUT || r == -EPROTO ? r : -EIO;
}

static int allocator_send_and_wait(struct allocator *a, const struct allocator_request *q,
				   struct allocator_reply *ret, int *ret_fd)
{
	struct channel_packet packet;
	int r = child_call(&a->child, q, sizeof(*q), num_now_ns() + a->timeout_ns, a->stop_fd,
			   &packet);

	if (r < 0)
		return r == -EMSGSIZE ? -EPROTO : r;
	if (!allocator_reply_ok(packet.data, packet.size, packet.n_fds)) {
		channel_packet_deinit(&packet);
		return -EPROTO;
	}
	memcpy(ret, packet.data, sizeof(*ret));
	if (ret->op != q->op || ret->serial != q->serial) {
		channel_packet_deinit(&packet);
		return -EPROTO;
	}
	if (packet.n_fds > 0)
		*ret_fd = packet.fds[0];
	return 0;
}

int allocator_ask(struct allocator *a, struct allocator_request *q, struct allocator_reply *ret,
		  int *ret_fd)
{
	bool was_running = allocator_is_running(a) && a->child.fd >= 0;
	int r;

	q->protocol = ALLOCATOR_PROTOCOL;
	q->serial = ++a->serial;
	*ret = (struct allocator_reply){0};
	if (is_stopped(a)) {
		(void)snprintf(ret->why, sizeof(ret->why), "weightd is stopping");
		return -ECANCELED;
	}
	r = was_running ? 0 : allocator_start(a, ret->why);
	if (r < 0)
		return r;
	r = allocator_send_and_wait(a, q, ret, ret_fd);
	if (r == -EPIPE && was_running) {
		/* It was killed while idle: no request has failed. */
		r = allocator_start(a, ret->why);
		if (r < 0)
			return r;
		r = allocator_send_and_wait(a, q, ret, ret_fd);
	}
	if (r == -EMFILE) {
		/*
		 * The descriptor that it sent is lost on the way, and freed with that: the child
		 * itself is intact.
		 */
		(void)snprintf(ret->why, sizeof(ret->why),
			       "weightd is out of descriptors; try again");
		return r;
	}
	if (r < 0)
		return allocator_fail(a, r, ret->why);
	a->used_ns = num_now_ns();
	a->n_deaths = 0;
	a->has_held |= q->op == ALLOCATOR_HOLD && ret->error == 0;
	if (ret->error == -EIO || ret->error == -ENODEV)
		allocator_rest(
			a); /* a context that has failed keeps failing; a driver may be loaded later */
	return ret->error;
}
