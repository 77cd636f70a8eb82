#include "server/sync/state/word.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"

static int add(struct list *words, const struct word *said)
{
	struct word *w = malloc(sizeof(*w));

	if (!w)
		return -ENOMEM;
	*w = *said;
	list_append(words, &w->link);
	return 0;
}

int word_say(struct list *words, json_t *message)
{
	int r = add(words, &(const struct word){.message = message, .fd = -1});

	if (r == 0)
		json_incref(message);
	return r;
}

int word_say_blob(struct list *words, const uint8_t hash[32], int fd, uint64_t size)
{
	struct word w = {.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3), .size = size};
	int r = w.fd < 0 ? -errno : 0;

	memcpy(w.hash, hash, sizeof(w.hash));
	if (r == 0)
		r = add(words, &w);
	if (r < 0)
		(void)fd_close(w.fd);
	return r;
}

void word_free(struct word *w)
{
	list_remove(&w->link);
	json_decref(w->message);
	(void)fd_close(w->fd);
	free(w);
}
