#include "server/sync/state/loopback.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"

static int loopback_add(struct list *queue, const struct loopback *said)
{
	struct loopback *w = malloc(sizeof(*w));

	if (!w)
		return -ENOMEM;
	*w = *said;
	list_append(queue, &w->link);
	return 0;
}

int loopback_send(struct list *queue, json_t *message)
{
	int r = loopback_add(queue, &(const struct loopback){.message = message, .fd = -1});

	if (r == 0)
		json_incref(message);
	return r;
}

int loopback_send_blob(struct list *queue, const uint8_t hash[32], int fd, uint64_t size)
{
	struct loopback w = {.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3), .size = size};
	int r = w.fd < 0 ? -errno : 0;

	memcpy(w.hash, hash, sizeof(w.hash));
	if (r == 0)
		r = loopback_add(queue, &w);
	if (r < 0)
		(void)fd_close(w.fd);
	return r;
}

void loopback_free(struct loopback *w)
{
	list_remove(&w->link);
	json_decref(w->message);
	(void)fd_close(w->fd);
	free(w);
}
