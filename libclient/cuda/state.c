#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/cuda/cuda.h"
#include "libclient/cuda/digester.h"
#include "libclient/cuda/staging.h"

struct cuda_state *cuda_state_free(struct cuda_state *state)
{
	struct visit visit = {0};
	struct sentence ignored; /* nothing can be done about it */

	if (!state)
		return NULL;
	if (state->mark && place_enter(&state->place, &visit, &ignored) == 0)
		(void)state->place.driver->event_destroy(state->mark);
	place_leave(&visit);
	(void)digester_free(state->digester);
	(void)fd_close(state->fd);
	(void)pthread_mutex_destroy(&state->lock);
	if (state->place.driver)
		staging_leave(&state->place);
	place_deinit(&state->place);
	free(state);
	return NULL;
}
CLEANUP_POINTER(struct cuda_state, cuda_state_free);

static int check_peer(const struct cuda_driver *d, int device, int owner, struct sentence *s)
{
	int can = 0;
	cu_result result = d->device_can_access_peer(&can, device, owner);

	if (result)
		return gpu_error(d, result, "peer access between the GPUs cannot be queried", s);
	if (!can)
		return sentence_set(s, -EOPNOTSUPP,
				    "cuda:%d cannot reach the memory of cuda:%d (no peer access)",
				    device, owner);
	return 0;
}

int cuda_state_new(const struct memory_request *q, struct cuda_state **ret, struct sentence *s)
{
	cleanup(cuda_state_freep) struct cuda_state *state = NULL;
	const struct cuda_driver *d;
	int owner, device;
	int r = gpu_driver(&d, s);

	if (r == 0)
		r = gpu_find(d, q->location.uuid, &owner, s);
	if (r < 0)
		return r;
	device = q->device < 0 ? owner : q->device;
	if (device != owner)
		r = check_peer(d, device, owner, s);
	if (r < 0)
		return r;
	state = calloc(1, sizeof(*state));
	if (!state)
		return sentence_set(s, -ENOMEM, "out of memory");
	state->fd = -1;
	(void)pthread_mutex_init(&state->lock, NULL);
	state->owner = owner;
	r = place_init(&state->place, d, device, s);
	if (r < 0)
		return r;
	staging_enter();
	*ret = take_ptr(state);
	return 0;
}
