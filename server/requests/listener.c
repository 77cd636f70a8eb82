#include "server/requests/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/channel.h"
#include "ipc/socket_path.h"
#include "server/base/log.h"
#include "server/requests/connection.h"
#include "server/restart/inherit.h"
#include "server/restart/store.h"
#include "server/state/server.h"

#define BACKLOG 1024
#define PAUSE_NS 100000000u
#define BATCH_NS 100000u

void listener_resume(struct listener *l)
{
	if (!l->source.loop)
		return;
	timer_stop(&l->pause);
	loop_modify(&l->source, EPOLLIN);
}

static void listener_on_session_closed(void *listener)
{
	listener_resume(listener);
}

static void listener_pause(struct listener *l, int error)
{
	log_warning("no new clients for the moment: %s", strerror(error));
	loop_modify(&l->source, 0);
	timer_start(l->source.loop, &l->pause, num_now_ns() + PAUSE_NS);
}

/*
 * The kernel hands connections out in the order of their connect(), whoever made them: they are taken in
 * batches, and what is to be done for each waits for its user's turn, which is the shorter for them. A lone one has no
 * batch: to be told that there is no other costs as much as to accept it.
 */
static void listener_on_connection(struct source *source, uint32_t events)
{
	struct listener *l = container_of(source, struct listener, source);
	uint64_t began_ns = num_now_ns(), now = began_ns, round = source->loop->n_rounds;
	bool is_crowded = round - l->last_round <= 1;

	(void)events;
	l->last_round = round;
	do {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 &&
		    (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
			listener_pause(l, errno);
		if (fd < 0)
			return; /* no more; or the client disconnected, or a signal interrupted */
		now = connection_new(l->server, fd, now, listener_on_session_closed, l);
	} while (is_crowded && now - began_ns < BATCH_NS);
}

static void listener_on_pause_over(struct timer *timer)
{
	listener_resume(container_of(timer, struct listener, pause));
}

/* The unit's, for root: there systemd makes the folder. */
static int system_path(char **ret)
{
	char folder[] = SOCKET_PATH_SYSTEM;
	mode_t mask;
	int r;

	*strrchr(folder, '/') = '\0';
	mask = umask(022);
	r = mkdir(folder, 0755) < 0 && errno != EEXIST ? -errno : 0;
	(void)umask(mask);
	if (r < 0) {
		log_error("cannot make %s: %s", folder, strerror(-r));
		return r;
	}
	*ret = strdup(SOCKET_PATH_SYSTEM);
	return *ret ? 0 : -ENOMEM;
}

static int default_path(char **ret)
{
	const char *given = socket_path_given(NULL);
	int r;

	if (given) {
		*ret = strdup(given);
		return *ret ? 0 : -ENOMEM;
	}
	if (geteuid() == 0)
		return system_path(ret);
	r = socket_path_user(ret);
	if (r != -ENOENT)
		return r;
	log_error("no path to listen on: give --socket PATH, or set WEIGHTD_SOCKET, or "
		  "XDG_RUNTIME_DIR to a folder of this user");
	return -EINVAL;
}

static int take_lock(struct listener *l)
{
	cleanup(freep) char *lock_path = NULL;

	if (asprintf(&lock_path, "%s.lock", l->path) < 0) {
		lock_path = NULL;
		return -ENOMEM;
	}
	l->lock_fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (l->lock_fd < 0) {
		log_error("cannot open %s: %s", lock_path, strerror(errno));
		return -errno;
	}
	if (flock(l->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		log_error("another weightd listens on %s; stop it, or give another --socket",
			  l->path);
		return -EADDRINUSE;
	}
	return 0;
}

/* A daemon without our lock may listen there all the same: then connecting works. */
static bool socket_answers(const struct sockaddr_un *address)
{
	cleanup(fd_closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
					   0);

	if (fd < 0)
		return true;
	return connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
	       (errno != ECONNREFUSED && errno != ENOENT);
}

static int clear_path(const char *path, const struct sockaddr_un *address)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode) || socket_answers(address)) {
		log_error("%s is in the way: %s; remove it, or give another --socket", path,
			  S_ISSOCK(st.st_mode) ? "a process listens there" : "it is not a socket");
		return -EADDRINUSE;
	}
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

static int listen_at_path(struct listener *l, mode_t mode)
{
	struct sockaddr_un address;
	mode_t mask;
	int r = channel_address(l->path, &address);

	if (r < 0) {
		log_error("%s cannot be a socket: a path has 1 to 107 bytes", l->path);
		return r;
	}
	r = take_lock(l);
	if (r == 0)
		r = clear_path(l->path, &address);
	if (r < 0)
		return r;
	l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return -errno;
	mask = umask(0777 & ~mode); /* so that it never has more permissions than it should */
	r = bind(l->fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	(void)umask(mask);
	if (r == 0 && listen(l->fd, BACKLOG) < 0)
		r = -errno;
	if (r < 0)
		log_error("cannot listen on %s: %s", l->path, strerror(-r));
	return r;
}

/* Both are in the store under one name each: a path has one socket. */
#define STORE_ID 0

static bool is_bound_to(int fd, const char *path)
{
	struct sockaddr_un address;
	socklen_t size = sizeof(address);
	struct stat st;

	memset(&address, 0, sizeof(address));
	return getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
	       !strncmp(address.sun_path, path, sizeof(address.sun_path)) &&
	       lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* True when the store had socket and lock of an earlier weightd for this very path. */
static bool take_up(struct listener *l, struct inherit *in, struct store *store)
{
	int fd = inherit_take(in, STORE_SOCKET, STORE_ID);
	int lock_fd = inherit_take(in, STORE_LOCK, STORE_ID);

	if (fd >= 0)
		store_adopt(store);
	if (lock_fd >= 0)
		store_adopt(store);
	if (fd >= 0 && lock_fd >= 0 && is_bound_to(fd, l->path)) {
		l->fd = fd;
		l->lock_fd = lock_fd;
		return true;
	}
	if (fd >= 0)
		store_remove(store, NOTIFY_OURS, STORE_SOCKET, STORE_ID);
	if (lock_fd >= 0)
		store_remove(store, NOTIFY_OURS, STORE_LOCK, STORE_ID);
	(void)fd_close(fd);
	(void)fd_close(lock_fd);
	return false;
}

static int open_socket(struct listener *l, struct inherit *in, struct store *store,
		       const char *path, mode_t mode)
{
	int r;

	if (!path) {
		r = inherit_take_listener(in, &l->fd);
		if (r == -EINVAL)
			log_error("the service manager must pass on one SOCK_SEQPACKET socket");
		if (r != -ENOENT)
			return r < 0 ? r : -(fcntl(l->fd, F_SETFL, O_NONBLOCK) < 0 ? errno : 0);
		r = default_path(&l->path);
		if (r < 0)
			return r;
	} else {
		l->path = strdup(path);
		if (!l->path)
			return -ENOMEM;
	}
	if (take_up(l, in, store))
		return 0;
	r = listen_at_path(l, mode);
	if (r < 0)
		return r;
	(void)store_put(store, NOTIFY_OURS, STORE_LOCK, STORE_ID,
			l->lock_fd); /* without, clients are refused a while */
	(void)store_put(store, NOTIFY_OURS, STORE_SOCKET, STORE_ID, l->fd);
	return 0;
}

int listener_init(struct listener *l, struct server *server, struct inherit *in, const char *path,
		  mode_t mode)
{
	int r;

	*l = (struct listener){.server = server, .fd = -1, .lock_fd = -1};
	timer_init(&l->pause, listener_on_pause_over);
	r = open_socket(l, in, &server->store, path, mode);
	if (r == 0)
		r = loop_add(&server->loop, &l->source, l->fd, EPOLLIN, listener_on_connection);
	if (r < 0) {
		free(take_ptr(l->path));
		l->fd = fd_close(l->fd);
		l->lock_fd = fd_close(l->lock_fd);
		return r;
	}
	log_info("listening on %s", l->path ? l->path : "the socket of the service manager");
	return 0;
}

void listener_deinit(struct listener *l, bool stay)
{
	timer_stop(&l->pause);
	loop_remove(&l->source);
	l->fd = fd_close(l->fd);
	if (l->path && !stay)
		(void)unlink(
			l->path); /* the lock shows that it is ours; PATH.lock stays, or it would not lock */
	l->lock_fd = fd_close(l->lock_fd);
	free(take_ptr(l->path));
}
