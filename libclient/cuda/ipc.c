/*
 * GPU memory of the older kind: a handle of 64 bytes, lent by a process of the server for as long as that process
 * lives. The driver chooses the address, so that no other memory can be mapped there, and access cannot be chosen
 * either. The memory ends with that process, for all that map it, and a descriptor reports that.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/cuda/cuda.h"

static int ipc_check(const struct memory *m, struct sentence *s)
{
	const struct cuda_state *state = m->state;
	struct pollfd p = {.fd = state->fd, .events = POLLIN | POLLRDHUP};

	/* Nothing is ever written to it: what there is to read is its end. */
	if (poll(&p, 1, 0) <= 0)
		return 0;
	return sentence_set(
		s, -EIO, "its memory is lost with the process that held it; attach another version");
}

static int open_handle(struct memory *m, const struct cuda_state *state, struct sentence *s)
{
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	struct cu_ipc_handle handle;
	cu_result result;
	cu_ptr p;
	int r = place_enter(&state->place, &visit, s);

	if (r < 0)
		return r;
	static_assert(sizeof(handle.bytes) == WIRE_HANDLE_SIZE, "handles are the driver's");
	memcpy(handle.bytes, m->location.handle, sizeof(handle.bytes));
	result = d->ipc_open(&p, handle, CU_IPC_LAZY_PEER_ACCESS);
	if (result)
		return gpu_error(d, result, "the driver cannot open its handle", s);
	m->data = (void *)(uintptr_t)p;
	return 0;
}

static int ipc_map(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	struct cuda_state *state;
	int r = cuda_state_new(q, &state, s);

	if (r < 0)
		return r;
	m->state = state;
	state->fd = fcntl(q->fd, F_DUPFD_CLOEXEC, 0);
	if (state->fd < 0)
		r = sentence_set(s, -errno, "%s", strerror(errno));
	if (r == 0)
		r = ipc_check(m, s);
	if (r == 0)
		r = open_handle(m, state, s);
	if (r < 0) {
		cuda_state_free(state);
		return r;
	}
	m->device = state->place.device;
	return 0;
}

static int cuda_ipc_refuse(struct sentence *s)
{
	return sentence_set(s, -EOPNOTSUPP,
			    "the driver chooses the address of cuda-ipc memory; attach the other "
			    "version beside it (refresh), then detach this one");
}

static int ipc_replace(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	(void)m;
	(void)q;
	return cuda_ipc_refuse(s);
}

static int ipc_let_go(struct memory *m, struct sentence *s)
{
	(void)m;
	return cuda_ipc_refuse(s);
}

/* It stays writable for every process that has it open: a writer cannot prevent that. */
static int ipc_protect(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	(void)m;
	(void)q;
	(void)s;
	return 0;
}

static void ipc_unmap(struct memory *m)
{
	struct cuda_state *state = m->state;
	struct visit visit = {0};
	struct sentence ignored; /* nothing can be done about it */

	if (place_enter(&state->place, &visit, &ignored) == 0)
		(void)state->place.driver->ipc_close((cu_ptr)(uintptr_t)m->data);
	place_leave(&visit);
	cuda_state_free(state);
}

const struct memory_kind cuda_ipc_memory = {
	.map = ipc_map,
	.replace = ipc_replace,
	.protect = ipc_protect,
	.let_go = ipc_let_go,
	.unmap = ipc_unmap,
	.read = cuda_read,
	.write = cuda_write,
	.digest = cuda_digest,
	.synchronize = cuda_synchronize,
	.mark = cuda_mark,
	.has_passed = cuda_has_passed,
	.check = ipc_check,
};
