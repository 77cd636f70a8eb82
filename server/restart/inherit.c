#include "server/restart/inherit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/base/log.h"

#define FIRST_FD 3
#define LEFT_NAMED 10

static int inherited_compare(const void *a, const void *b)
{
	return strcmp(((const struct inherited *)a)->name, ((const struct inherited *)b)->name);
}

static long env_number(const char *name)
{
	const char *s = getenv(name);
	char *end;
	long v = s ? strtol(s, &end, 10) : -1;

	return s && *s && !*end ? v : -1;
}

/* Cuts the next name off the list. */
static void next_name(const char **names, char ret[STORE_NAME_MAX + 1])
{
	size_t n = strcspn(*names, ":");
	size_t kept = n < STORE_NAME_MAX ? n : STORE_NAME_MAX;

	memcpy(ret, *names, kept);
	ret[kept] = '\0';
	*names += (*names)[n] ? n + 1 : n;
}

static int read_environment(struct inherit *in)
{
	const char *names = getenv("LISTEN_FDNAMES");
	long pid = env_number("LISTEN_PID");
	long n = env_number("LISTEN_FDS");

	if (pid != getpid() || n <= 0)
		return 0;
	if (n > 1 << 20)
		return -EINVAL;
	in->items = calloc((size_t)n, sizeof(*in->items));
	if (!in->items)
		return -ENOMEM;
	in->n = (unsigned)n;
	for (unsigned i = 0; i < in->n; i++) {
		in->items[i].fd = FIRST_FD + (int)i;
		if (names)
			next_name(&names, in->items[i].name);
		if (fcntl(in->items[i].fd, F_SETFD, FD_CLOEXEC) < 0)
			return -errno;
	}
	qsort(in->items, in->n, sizeof(*in->items), inherited_compare);
	return 0;
}

int inherit_init(struct inherit *in)
{
	int r;

	*in = (struct inherit){0};
	r = read_environment(in);
	if (r < 0) {
		log_error("invalid LISTEN_FDS from the service manager: %s", strerror(-r));
		free(take_ptr(in->items));
		in->n = 0;
	}
	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	return r;
}

void inherit_deinit(struct inherit *in)
{
	for (unsigned i = 0; i < in->n; i++)
		(void)fd_close(in->items[i].fd);
	free(in->items);
	*in = (struct inherit){0};
}

static struct inherited *inherited_find(struct inherit *in, enum store_kind kind, uint64_t id)
{
	struct inherited key;

	store_name(kind, id, key.name);
	return in->n ? bsearch(&key, in->items, in->n, sizeof(key), inherited_compare) : NULL;
}

int inherit_take(struct inherit *in, enum store_kind kind, uint64_t id)
{
	struct inherited *found = inherited_find(in, kind, id);

	return found ? take_fd(found->fd) : -1;
}

void inherit_give_back(struct inherit *in, enum store_kind kind, uint64_t id, int fd)
{
	inherited_find(in, kind, id)->fd = fd;
}

void inherit_drop(struct inherit *in, struct store *store, uid_t uid, enum store_kind kind,
		  uint64_t id)
{
	int fd = inherit_take(in, kind, id);

	if (fd < 0)
		return;
	(void)fd_close(fd);
	store_adopt(store);
	store_remove(store, uid, kind, id);
}

unsigned inherit_leave(struct inherit *in, struct store *store)
{
	unsigned n = 0;

	for (unsigned i = 0; i < in->n; i++) {
		if (in->items[i].fd < 0)
			continue;
		n++;
		store_adopt(store);
		if (n <= LEFT_NAMED)
			log_warning("descriptor '%s' from the store belongs to no served buffer or job: "
				    "the service manager keeps it",
				    in->items[i].name);
	}
	if (n > LEFT_NAMED)
		log_warning("... and %u more like it", n - LEFT_NAMED);
	return n;
}

static bool is_listener(int fd)
{
	int type, listens;
	socklen_t size = sizeof(int);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET &&
	       getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens;
}

int inherit_take_listener(struct inherit *in, int *ret_fd)
{
	struct inherited *found = NULL;

	for (unsigned i = 0; i < in->n; i++) {
		if (in->items[i].fd < 0 || store_is_name(in->items[i].name))
			continue;
		if (found || !is_listener(in->items[i].fd))
			return -EINVAL;
		found = &in->items[i];
	}
	if (!found)
		return -ENOENT;
	*ret_fd = take_fd(found->fd);
	return 0;
}
