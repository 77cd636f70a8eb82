/*
 * GPU memory of the older kind
 *
 * Memory that a cudaIpcMemHandle_t leads to lives as long as the process that made it, so a process
 * holds it: weightd-cuda --hold, one for each GPU, since a context takes some hundred megabytes of
 * it, and a holder that dies or hangs must not take the memory of other GPUs with it. A holder
 * outlives weightd: it holds all memory that a process has the descriptor of. A later weightd finds
 * the descriptors in the store, and starts a holder of its own for new memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/backend/backend.h"
#include "server/backend/cuda.h"
#include "server/state/server.h"

struct holder {
	struct list link; /* cuda::holders */
	uint8_t uuid[WIRE_UUID_SIZE];
	struct allocator allocator;
};

static struct holder *find_holder(const struct cuda *c, const uint8_t uuid[WIRE_UUID_SIZE])
{
	struct holder *h;

	list_for_each(h, &c->holders, link)
		if (!memcmp(h->uuid, uuid, sizeof(h->uuid)))
			return h;
	return NULL;
}

static int make_holder(struct cuda *c, const uint8_t uuid[WIRE_UUID_SIZE], struct holder **ret)
{
	struct holder *h = calloc(1, sizeof(*h));
	int r = h ? allocator_init(&h->allocator, c->allocator.path,
				   c->server->config.cuda_timeout_s)
		  : -ENOMEM;

	/* One eventfd stops all. */
	if (r == 0 && dup3(c->allocator.stop_fd, h->allocator.stop_fd, O_CLOEXEC) < 0) {
		r = -errno;
		allocator_deinit(&h->allocator);
	}
	if (r < 0) {
		free(h);
		return r;
	}
	h->allocator.holds = true;
	memcpy(h->uuid, uuid, sizeof(h->uuid));
	list_append(&c->holders, &h->link);
	*ret = h;
	return 0;
}

static int cuda_ipc_provide(struct backend_memory *m)
{
	struct cuda *c = m->server->cuda;
	struct holder *h = find_holder(c, m->location.uuid);
	int r = h ? 0 : make_holder(c, m->location.uuid, &h);

	return r < 0 ? r : cuda_ask(m, &h->allocator, ALLOCATOR_HOLD);
}

bool cuda_ipc_look(struct cuda *c)
{
	struct holder *h, *tmp;
	bool some = false;

	list_for_each_safe(h, tmp, &c->holders, link)
		some |= child_look(&h->allocator.child);
	return some;
}

void cuda_ipc_deinit(struct cuda *c)
{
	struct holder *h;

	while ((h = list_first(&c->holders, struct holder, link))) {
		list_remove(&h->link);
		allocator_deinit(&h->allocator);
		free(h);
	}
}

const struct backend backend_cuda_ipc = {
	.memory = WIRE_MEMORY_CUDA_IPC,
	.opaque = true,
	.mortal = true,
	.has_device = cuda_has_device,
	.worker = cuda_worker,
	.allocate = cuda_allocate,
	.provide = cuda_ipc_provide,
	.measure = cuda_measure,
	.await_free = cuda_await_free,
	.reader = cuda_duplicate,
	.writable = cuda_duplicate,
	.in_use = cuda_unknown,
	.has_writer = cuda_unknown,
	.is_whole = cuda_nothing_to_do,
	.seal = cuda_nothing_to_do,
};
