/*
 * GPU memory by virtual memory management: the process receives a descriptor of an allocation, imports it, and maps
 * it at an address of its own, which stays reserved when the memory is unmapped.
 *
 * The handle of the mapped memory is kept: if mapping other memory in its place fails, it is mapped again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/cuda/cuda.h"

static cu_ptr address_of(const struct memory *m)
{
	return (cu_ptr)(uintptr_t)m->data;
}

/*
 * Trusts the server's location unless the driver names another GPU of this process. No documentation promises that an
 * import has the device numbers of the importer, and numbers beyond them cannot be checked here.
 */
static int check_owner(const struct cuda_driver *d, cu_handle handle, int owner, struct sentence *s)
{
	struct cu_allocation found;
	int n_gpus = 0;
	cu_result result = d->mem_properties(&found, handle);

	if (result == CU_OK)
		result = d->device_count(&n_gpus);
	if (result)
		return gpu_error(d, result, "the location of the memory cannot be queried", s);
	if (found.location.type == CU_LOCATION_DEVICE &&
	    (found.location.id == owner || found.location.id >= n_gpus))
		return 0;
	return sentence_set(s, -EBADMSG,
			    "weightd reports it on cuda:%d, the driver elsewhere; use the same release "
			    "of both",
			    owner);
}

static int memory_import(const struct memory_request *q, const struct cuda_state *state,
			 cu_handle *ret, struct sentence *s)
{
	const struct cuda_driver *d = state->place.driver;
	cu_handle handle;
	cu_result result = d->mem_import(&handle, (void *)(intptr_t)q->fd, CU_HANDLE_POSIX_FD);
	int r;

	if (result)
		return gpu_error(d, result, "the driver cannot import it", s);
	r = check_owner(d, handle, state->owner, s);
	if (r < 0) {
		(void)d->mem_release(handle);
		return r;
	}
	*ret = handle;
	return 0;
}

/*
 * Grants access to two GPUs, which may be the same. A driver without read-only mappings returns a writable one: then the
 * bytes are protected by convention alone, and checked by verify.
 */
static cu_result grant(const struct cuda_driver *d, const struct memory *m, cu_device one,
		       cu_device two, enum memory_access access)
{
	const int flags = access == MEMORY_WRITE ? CU_ACCESS_READWRITE : CU_ACCESS_READ;
	struct cu_access a[] = {
		{{CU_LOCATION_DEVICE, one}, flags},
		{{CU_LOCATION_DEVICE, two}, flags},
	};
	const size_t n = one == two ? 1 : 2;
	cu_result result = d->mem_set_access(address_of(m), m->location.map_size, a, n);

	if (access == MEMORY_WRITE || (result != CU_NOT_SUPPORTED && result != CU_INVALID_VALUE))
		return result;
	a[0].flags = a[1].flags = CU_ACCESS_READWRITE;
	return d->mem_set_access(address_of(m), m->location.map_size, a, n);
}

/* To the GPU that maps it, and to the one with the memory: engines of the latter may do the copies. */
static cu_result set_access(const struct memory *m, const struct cuda_state *state,
			    enum memory_access access)
{
	return grant(state->place.driver, m, state->place.device, state->owner, access);
}

bool cuda_open_to(const struct memory *m, const struct place *reader)
{
	const struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	int can = 0;

	if (reader->device == state->place.device || reader->device == state->owner)
		return true;
	return m->kind == &cuda_memory &&
	       !d->device_can_access_peer(&can, reader->device, state->owner) && can &&
	       !grant(d, m, reader->device, reader->device, MEMORY_READ);
}

/* Leaves nothing mapped on a failure. */
static cu_result map_there(const struct memory *m, const struct cuda_state *state, cu_handle handle,
			   enum memory_access access)
{
	const struct cuda_driver *d = state->place.driver;
	cu_result result = d->mem_map(address_of(m), m->location.map_size, 0, handle, 0);

	if (result)
		return result;
	result = set_access(m, state, access);
	if (result)
		(void)d->mem_unmap(address_of(m), m->location.map_size);
	return result;
}

/* With the handle; takes it over on success. */
static int reserve_and_map(struct memory *m, struct cuda_state *state, cu_handle handle,
			   struct sentence *s)
{
	const struct cuda_driver *d = state->place.driver;
	const uint64_t size = m->location.map_size;
	cu_ptr p;
	cu_result result = d->mem_reserve(&p, size, 0, 0, 0);

	if (result)
		return gpu_error(d, result, "the GPU has no addresses for it", s);
	m->data = (void *)(uintptr_t)p;
	result = map_there(m, state, handle, m->access);
	if (result) {
		(void)d->mem_unreserve(p, size);
		return gpu_error(d, result, "the GPU cannot map it", s);
	}
	state->handle = handle;
	return 0;
}

static int vmm_map(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	struct cuda_state *state;
	struct visit visit = {0};
	cu_handle handle;
	int r;

	if (q->location.map_size < q->size)
		return sentence_set(s, -EBADMSG, "it is smaller than its contents");
	r = cuda_state_new(q, &state, s);
	if (r < 0)
		return r;
	r = place_enter(&state->place, &visit, s);
	if (r == 0)
		r = memory_import(q, state, &handle, s);
	if (r == 0) {
		r = reserve_and_map(m, state, handle, s);
		if (r < 0)
			(void)state->place.driver->mem_release(handle);
	}
	place_leave(&visit);
	if (r < 0) {
		cuda_state_free(state);
		return r;
	}
	m->device = state->place.device;
	m->state = state;
	return 0;
}

/* Whatever happens, something is at the address again: the new, or what was there. */
static int memory_exchange(struct memory *m, cu_handle handle, enum memory_access access,
			   struct sentence *s)
{
	struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cu_result result = CU_OK;
	int r;

	if (m->is_mapped)
		result = d->mem_unmap(address_of(m), m->location.map_size);
	if (result)
		return gpu_error(d, result, "the GPU cannot unmap the old memory", s);
	result = map_there(m, state, handle, access);
	if (result == CU_OK) {
		if (m->is_mapped)
			(void)d->mem_release(state->handle);
		state->handle = handle;
		return 0;
	}
	r = gpu_error(d, result, "the GPU cannot map it", s);
	if (m->is_mapped && map_there(m, state, state->handle, m->access)) {
		(void)d->mem_release(state->handle);
		m->is_mapped = false;
		return sentence_set(s, -EIO, "%.300s, nor the old memory again", s->text);
	}
	return r;
}

static int vmm_replace(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	cu_handle handle;
	int r;

	if (q->location.map_size != m->location.map_size ||
	    memcmp(q->location.uuid, m->location.uuid, WIRE_UUID_SIZE) != 0)
		return sentence_set(s, -EBADMSG, "its size or its device has changed");
	r = place_enter(&state->place, &visit, s);
	if (r == 0)
		r = memory_import(q, state, &handle, s);
	if (r < 0)
		return r;
	if (m->is_mapped)
		r = cuda_synchronize(m, q->stream, s);
	if (r == 0)
		r = memory_exchange(m, handle, q->access, s);
	if (r < 0)
		(void)d->mem_release(handle);
	return r;
}

static int vmm_protect(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	const struct cuda_state *state = m->state;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter(&state->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = set_access(m, state, q->access);
	return result ? gpu_error(state->place.driver, result, "the GPU cannot change access", s)
		      : 0;
}

static int vmm_let_go(struct memory *m, struct sentence *s)
{
	struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter(&state->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = d->mem_unmap(address_of(m), m->location.map_size);
	if (result)
		return gpu_error(d, result, "the GPU cannot unmap it", s);
	(void)d->mem_release(state->handle);
	return 0;
}

static void vmm_unmap(struct memory *m)
{
	struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	struct visit visit = {0};
	struct sentence ignored; /* nothing can be done about it */

	if (place_enter(&state->place, &visit, &ignored) == 0) {
		if (m->is_mapped)
			(void)d->mem_unmap(address_of(m), m->location.map_size);
		if (m->is_mapped)
			(void)d->mem_release(state->handle);
		(void)d->mem_unreserve(address_of(m), m->location.map_size);
	}
	place_leave(&visit);
	cuda_state_free(state);
}

const struct memory_kind cuda_memory = {
	.map = vmm_map,
	.replace = vmm_replace,
	.protect = vmm_protect,
	.let_go = vmm_let_go,
	.unmap = vmm_unmap,
	.read = cuda_read,
	.write = cuda_write,
	.digest = cuda_digest,
	.synchronize = cuda_synchronize,
	.mark = cuda_mark,
	.has_passed = cuda_has_passed,
};
