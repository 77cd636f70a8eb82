#include "server/restart/inherit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/libsystemd.h"
#include "server/base/log.h"

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */
#define LEFT_NAMED 10

static int inherited_compare(const void *a, const void *b)
{
	return strcmp(((const struct inherited *)a)->name, ((const struct inherited *)b)->name);
}

/* Takes ownership of `names`, as many as there are descriptors. */
static int inherit_add(struct inherit *in, char **names, unsigned n)
{
	in->items = calloc(n, sizeof(*in->items));
	for (unsigned i = 0; i < n; i++) {
		if (in->items) {
			in->items[i].fd = FIRST_FD + (int)i;
			(void)snprintf(in->items[i].name, sizeof(in->items[i].name), "%s", names[i]);
		}
		free(names[i]);
	}
	free(names);
	if (!in->items)
		return -ENOMEM;
	in->n = n;
	qsort(in->items, n, sizeof(*in->items), inherited_compare);
	return 0;
}

int inherit_init(struct inherit *in)
{
	char **names = NULL;
	const char *why;
	int n;

	*in = (struct inherit){0};
	if (!getenv("LISTEN_FDS"))
		return 0;
	in->systemd = libsystemd_open(&why);
	if (!in->systemd) {
		log_error("cannot take descriptors from the service manager (LISTEN_FDS): %s", why);
		return -EINVAL;
	}
	n = in->systemd->listen_fds_with_names(true, &names);
	if (n > 0)
		n = inherit_add(in, names, (unsigned)n);
	if (n < 0)
		log_error("invalid LISTEN_FDS from the service manager: %s", strerror(-n));
	return n;
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

int inherit_take_listener(struct inherit *in, int *ret_fd)
{
	struct inherited *found = NULL;

	for (unsigned i = 0; i < in->n; i++) {
		if (in->items[i].fd < 0 || store_is_name(in->items[i].name))
			continue;
		if (found ||
		    in->systemd->is_socket_unix(in->items[i].fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0)
			return -EINVAL;
		found = &in->items[i];
	}
	if (!found)
		return -ENOENT;
	*ret_fd = take_fd(found->fd);
	return 0;
}
