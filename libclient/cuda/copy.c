/*
 * Copies between a GPU's memory and the host's, or another GPU's. They wait for work of the default stream, and of streams that
 * wait for that one, as each such copy of the driver's does.
 */
#include <errno.h>

#include "ipc/base/cleanup.h"
#include "libclient/cuda/cuda.h"

int cuda_read(const struct memory *m, uint64_t offset, void *to, uint64_t n, struct sentence *s)
{
	const struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter(&state->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = d->memcpy_to_host(to, (cu_ptr)(uintptr_t)m->data + offset, n);
	return result ? gpu_error(d, result, "the GPU's memory cannot be copied", s) : 0;
}

int cuda_write(struct memory *m, uint64_t offset, const void *from, uint64_t n, struct sentence *s)
{
	const struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	cu_result result;
	int r;

	if (m->access != MEMORY_WRITE)
		return sentence_set(s, -EACCES, "it is mapped read-only");
	r = place_enter(&state->place, &visit, s);
	if (r < 0)
		return r;
	result = d->memcpy_to_device((cu_ptr)(uintptr_t)m->data + offset, from, n);
	/* That returns with the bytes on their way, and neither other streams nor other processes wait. */
	if (result == CU_OK)
		result = d->stream_synchronize(NULL);
	return result ? gpu_error(d, result, "the GPU's memory cannot be written", s) : 0;
}

int cuda_copy(struct memory *m, const struct memory *from, uint64_t offset, uint64_t n,
	      struct sentence *s)
{
	const struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter(&state->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = d->memcpy_on_device((cu_ptr)(uintptr_t)m->data + offset,
				     (cu_ptr)(uintptr_t)from->data + offset, n);
	/* That may return before the bytes are there, too. */
	if (result == CU_OK)
		result = d->stream_synchronize(NULL);
	return result ? gpu_error(d, result, "the GPU cannot copy the bytes", s) : 0;
}
