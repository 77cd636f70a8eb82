#include "bpf/probe/gpu_handle.h"

#include <stdlib.h>
#include <string.h>

void gpu_handles_init(struct gpu_handles *e)
{
	list_init(&e->all);
	e->n = 0;
}

static void handle_drop(struct gpu_handles *e, struct gpu_handle *handle)
{
	list_remove(&handle->link);
	e->n--;
	free(handle);
}

void gpu_handles_deinit(struct gpu_handles *e)
{
	struct gpu_handle *handle, *next;

	list_for_each_safe(handle, next, &e->all, link)
		handle_drop(e, handle);
}

static struct gpu_handle *handle_find(const struct gpu_handles *e, const struct gpu_handle_key *key)
{
	struct gpu_handle *handle;

	list_for_each(handle, &e->all, link)
		if (!memcmp(&handle->key, key, sizeof(*key)))
			return handle;
	return NULL;
}

const struct gpu_handle *gpu_handles_find(const struct gpu_handles *e,
					  const struct gpu_handle_key *key)
{
	return handle_find(e, key);
}

void gpu_handles_remove(struct gpu_handles *e, const struct gpu_handle_key *key)
{
	struct gpu_handle *handle = handle_find(e, key);

	if (handle)
		handle_drop(e, handle);
}

/*
 * Drops the oldest of that user if it has as many as it may, else the oldest of all if there is no room.
 */
static void handles_make_room(struct gpu_handles *e, uid_t uid)
{
	struct gpu_handle *handle, *oldest_of_user = NULL;
	unsigned n_of_user = 0;

	list_for_each(handle, &e->all, link)
		if (handle->uid == uid && n_of_user++ == 0)
			oldest_of_user = handle;
	if (n_of_user >= GPU_HANDLES_PER_USER_MAX)
		handle_drop(e, oldest_of_user);
	else if (e->n >= GPU_HANDLES_MAX)
		handle_drop(e, list_first(&e->all, struct gpu_handle, link));
}

void gpu_handles_add(struct gpu_handles *e, const struct gpu_handle *handle)
{
	struct gpu_handle *copy = malloc(sizeof(*copy));

	if (!copy)
		return;
	gpu_handles_remove(e, &handle->key);
	handles_make_room(e, handle->uid);
	*copy = *handle;
	list_append(&e->all, &copy->link);
	e->n++;
}
