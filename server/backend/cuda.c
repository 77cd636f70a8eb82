#include "server/backend/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/codec.h"
#include "ipc/device.h"
#include "server/backend/backend.h"
#include "server/state/cost.h"
#include "server/state/server.h"

#define LOOK_NS 1000000000u /* at holders, where the allocator rests at once */
#define SWITCHED_OFF "GPUs are switched off ([cuda] enabled in weightd.conf)"

/* --- the worker --- */

int cuda_init(struct cuda *c, struct server *server)
{
	const struct config *config = &server->config;

	*c = (struct cuda){.server = server};
	list_init(&c->holders);
	return allocator_init(&c->allocator, config->cuda_allocator, config->cuda_timeout_s);
}

void cuda_deinit(struct cuda *c)
{
	c->idle.cancelled = true;
	allocator_stop(&c->allocator);
	if (c->has_worker)
		worker_deinit(&c->worker);
	c->has_worker = false;
	cuda_ipc_deinit(c);
	allocator_deinit(&c->allocator);
	free(c->known);
	c->known = NULL;
}

static int cuda_idle_step(struct job *job)
{
	struct cuda *c = container_of(job, struct cuda, idle);
	uint64_t idle_ns = c->server->config.cuda_idle_timeout_s * 1000000000;
	uint64_t now = num_now_ns();

	if (job->cancelled)
		return JOB_DONE;
	if (!job->not_before_ns) { /* the idle time has not passed yet */
		job->not_before_ns = now + idle_ns;
		return JOB_LATER;
	}
	if (allocator_is_running(&c->allocator) && now < c->allocator.used_ns + idle_ns) {
		job->not_before_ns = c->allocator.used_ns + idle_ns;
		return JOB_LATER;
	}
	allocator_rest(&c->allocator);
	if (!cuda_ipc_look(c))
		return JOB_DONE;
	job->not_before_ns = now + (idle_ns ? idle_ns : LOOK_NS);
	return JOB_LATER;
}

static void watch_idle(struct cuda *c);

static void cuda_idle_done(struct job *job, int r)
{
	struct cuda *c = container_of(job, struct cuda, idle);

	(void)r; /* it does not fail */
	c->idle_submitted = false;
	if (c->worker.n_jobs > 0 && !c->worker.stop)
		watch_idle(c);
}

static void watch_idle(struct cuda *c)
{
	if (c->idle_submitted || c->worker.stop)
		return;
	c->idle_submitted = true;
	worker_submit(&c->worker, &c->idle, WORKER_NOBODY, cuda_idle_step, cuda_idle_done);
}

struct worker *cuda_worker(struct server *server)
{
	struct cuda *c = server->cuda;

	if (c->allocator.stop_fd < 0)
		return &server->worker; /* cuda_deinit() is over, and what is left is closing */
	if (!c->has_worker) {
		if (worker_init(&c->worker, &server->loop) < 0)
			return NULL;
		worker_charge(&c->worker, cost_worked, server);
		c->has_worker = true;
	}
	watch_idle(c);
	return &c->worker;
}

/* --- devices --- */

static unsigned list_none(const char *why, struct wire_device_record *ret)
{
	*ret = (struct wire_device_record){.device = "cuda"};
	(void)snprintf(ret->why, sizeof(ret->why), "%s", why);
	return 1;
}

unsigned cuda_list(struct cuda *c, struct wire_device_record ret[CUDA_DEVICES_MAX])
{
	struct allocator_request q = {.op = ALLOCATOR_DEVICE};
	struct allocator_reply reply;
	bool has_failed = false;
	unsigned n = 0;
	int fd = -1, r;

	if (!c->server->config.cuda_enabled)
		return list_none(SWITCHED_OFF, ret);
	while (n < CUDA_DEVICES_MAX) {
		q.index = n;
		r = allocator_ask(&c->allocator, &q, &reply, &fd);
		if (r == -ENOENT && n > 0)
			break;
		if (r < 0)
			return list_none(reply.why, ret); /* also one that hangs half way */
		has_failed |= !reply.device.total;
		ret[n++] = reply.device;
	}
	if (has_failed)
		allocator_rest(&c->allocator); /* as after an allocation: its contexts go on failing */
	return n;
}

/* --- the backend --- */

bool cuda_has_device(const char *device)
{
	return strcmp(device, "host") != 0 && device_is_canonical(device);
}

int cuda_allocate(struct backend_memory *m, const struct numa_policy *numa)
{
	(void)numa;
	(void)m; /* that blocks, and is left to cuda_provide() */
	return 0;
}

static void explain_refusal(struct backend_memory *m, const struct allocator_reply *reply,
			    uint64_t reserve)
{
	char needs[NUM_SIZE_MAX], free[NUM_SIZE_MAX], reserved[NUM_SIZE_MAX];
	uint64_t wanted = reply->needed + reserve;

	if (wanted <= reply->free) { /* another program was faster, or it is in pieces */
		m->progress.missing = reply->needed;
		(void)snprintf(m->why, sizeof(m->why), "(%.76s) cannot have %s: %.200s",
			       reply->name, num_format_size(needs, reply->needed), reply->why);
		return;
	}
	m->progress.missing = wanted - reply->free;
	(void)snprintf(m->why, sizeof(m->why), "(%s) needs %s, %s are free (%s of them in reserve)",
		       reply->name, num_format_size(needs, reply->needed),
		       num_format_size(free, reply->free), num_format_size(reserved, reserve));
}

int cuda_ask(struct backend_memory *m, struct allocator *a, enum allocator_op op)
{
	const struct config *config = &m->server->config;
	struct allocator_request q = {
		.op = op,
		.size = m->size,
		.reserve = config->cuda_reserve,
		.idle_s = (uint32_t)config->cuda_idle_timeout_s,
	};
	struct allocator_reply reply;
	int r;

	if (!config->cuda_enabled) {
		(void)snprintf(m->why, sizeof(m->why), SWITCHED_OFF);
		return -ENODEV;
	}
	memcpy(q.uuid, m->location.uuid, sizeof(q.uuid));
	r = allocator_ask(a, &q, &reply, &m->fd);
	if (r == -ENOMEM && reply.needed > 0) {
		explain_refusal(m, &reply, q.reserve);
		return r;
	}
	(void)snprintf(m->why, sizeof(m->why), "%s", r < 0 ? reply.why : "");
	if (r < 0)
		return r;
	m->location.map_size = reply.needed;
	memcpy(m->location.handle, reply.handle, sizeof(m->location.handle));
	m->progress.done = m->size;
	return JOB_DONE;
}

static int cuda_provide(struct backend_memory *m)
{
	return cuda_ask(m, &m->server->cuda->allocator, ALLOCATOR_ALLOCATE);
}

/* There is no event for it: freed memory is seen by asking. */
int cuda_await_free(struct backend_memory *m, uint64_t wanted, uint64_t deadline_ns,
		    uint64_t *ret_free)
{
	struct allocator *a = &m->server->cuda->allocator;
	struct allocator_request q = {.op = ALLOCATOR_FREE};
	struct allocator_reply reply;
	int fd = -1, r;

	if (!m->server->config.cuda_enabled)
		return -ENODEV;
	memcpy(q.uuid, m->location.uuid, sizeof(q.uuid));
	for (;;) {
		r = allocator_ask(a, &q, &reply, &fd);
		if (r < 0)
			return r;
		*ret_free = reply.free;
		if (reply.free >= wanted)
			return 0;
		if (num_now_ns() >= deadline_ns)
			return -EBUSY;
		allocator_pause(a);
	}
}

int cuda_measure(struct backend_memory *m, uint64_t *ret_free)
{
	uint64_t reserve = m->server->config.cuda_reserve, all;
	int r = cuda_await_free(m, 0, 0, &all);

	if (r == 0)
		*ret_free = all > reserve ? all - reserve : 0;
	return r;
}

/* A second descriptor of the same open file: another open() would lead to the driver, not to the memory. */
int cuda_duplicate(int fd, int *ret_fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy < 0)
		return -errno;
	*ret_fd = copy;
	return 0;
}

int cuda_unknown(int fd)
{
	(void)fd;
	return -EOPNOTSUPP;
}

/* Nothing seals GPU memory, and nothing can be taken out of it. */
int cuda_nothing_to_do(int fd, uint64_t size)
{
	(void)fd;
	(void)size;
	return 0;
}

const struct backend backend_cuda = {
	.memory = WIRE_MEMORY_CUDA,
	.opaque = true,
	.has_device = cuda_has_device,
	.worker = cuda_worker,
	.allocate = cuda_allocate,
	.provide = cuda_provide,
	.measure = cuda_measure,
	.await_free = cuda_await_free,
	.reader = cuda_duplicate,
	.writable = cuda_duplicate,
	.in_use = cuda_unknown,
	.has_writer = cuda_unknown,
	.is_whole = cuda_nothing_to_do,
	.seal = cuda_nothing_to_do,
};
