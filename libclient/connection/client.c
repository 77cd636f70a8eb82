/*
 * The state of a connection: its path, the sentence of its last failure, and its users.
 */
#include "libclient/connection/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "weightd.h"

#define RESTART_TIMEOUT_MS 30000

int weightd_new(struct weightd **ret)
{
	struct weightd *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->n_refs = 1;
	w->fd = -1;
	w->greeted_fd = -1;
	w->restart_timeout_ms = RESTART_TIMEOUT_MS;
	list_init(&w->buffers);
	list_init(&w->writers);
	list_init(&w->jobs);
	*ret = w;
	return 0;
}

struct weightd *client_ref(struct weightd *w)
{
	w->n_refs++;
	return w;
}

void client_unref(struct weightd *w)
{
	if (!w || --w->n_refs > 0)
		return;
	(void)fd_close(w->fd);
	(void)fd_close(w->greeted_fd);
	free(w->path);
	free(w);
}

void weightd_close(struct weightd *w)
{
	if (!w)
		return;
	(void)client_reap(w, true);
	w->is_closed = true;
	client_unref(w);
}

struct sentence *client_sentence(struct weightd *w)
{
	return &w->sentence;
}

const char *weightd_error(const struct weightd *w)
{
	return w->sentence.text;
}

const char *weightd_socket(const struct weightd *w)
{
	return w->path ? w->path : "";
}

bool weightd_is_connected(const struct weightd *w)
{
	return w->fd >= 0;
}

void weightd_set_restart_timeout(struct weightd *w, int timeout_ms)
{
	w->restart_timeout_ms = timeout_ms;
}

int client_copy_options(struct weightd *w, const void *options, size_t min, void *ret, size_t size)
{
	const char *tail = options;
	size_t theirs;

	memcpy(&theirs, options, sizeof(theirs));
	if (theirs < min)
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct of options has no size (set .size)");
	for (size_t i = size; i < theirs; i++)
		if (tail[i])
			return sentence_set(
				&w->sentence, -E2BIG,
				"this libweightd (%s) does not support an option that was set",
				weightd_release());
	memcpy(ret, options, theirs < size ? theirs : size);
	return 0;
}

bool client_awaits_restart(const struct weightd *w)
{
	return w->survives && w->restart_timeout_ms != 0;
}

int client_check_owner(struct weightd *w)
{
	if (!w->owner || w->owner == getpid())
		return 0;
	return sentence_set(&w->sentence, -ECHILD,
			    "this connection belongs to the parent process; connect again");
}

int client_check_usable(struct weightd *w)
{
	int r = client_check_owner(w);

	if (r < 0)
		return r;
	if (w->fd < 0 && !client_awaits_restart(w))
		return sentence_set(&w->sentence, -ENOTCONN,
				    "not connected to weightd; connect first");
	return 0;
}

int client_reap(struct weightd *w, bool wait)
{
	struct held *h, *tmp;

	if (w->n_leaving == 0)
		return 0;
	list_for_each_safe(h, tmp, &w->buffers, link)
		if (h->ops->leave(h, wait))
			w->n_leaving--;
	return w->n_leaving;
}
