#include "server/requests/device_query.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/backend/cuda.h"
#include "server/base/headroom.h"
#include "server/buffers/buffer.h"
#include "server/buffers/tally.h"
#include "server/groups/writer_group.h"
#include "server/state/in_work.h"
#include "server/state/server.h"
#include "server/state/session.h"

struct device_query {
	struct session *session; /* NULL: it has ended */
	struct server *server;
	struct job job;
	struct charge work; /* see in_work.h */
	uint64_t after;
	unsigned n_gpus;
	struct wire_device_record *gpus; /* from the step that asked: many may wait, with little memory */
};

static void describe_host(struct server *server, struct wire_device_record *ret)
{
	*ret = (struct wire_device_record){
		.device = "host",
		.name = "host memory",
		.ours = buffers_bytes(server, "host") + writer_groups_bytes(server),
		.granularity = (uint64_t)sysconf(_SC_PAGESIZE),
	};
	if (headroom_total(&ret->total) < 0 || headroom_bytes(&ret->free) < 0)
		memcpy(ret->why, "/proc/meminfo cannot be read",
		       sizeof("/proc/meminfo cannot be read"));
}

/* A page from `after` on: of the host, which is the first, and the GPUs behind it. */
static void device_query_reply(struct session *s, uint64_t after,
			       const struct wire_device_record *gpus, unsigned n_gpus)
{
	struct wire_reply reply = {.list.record_size = sizeof(struct wire_device_record)};
	struct wire_list_reply *list = &reply.list;

	for (uint64_t i = after; i <= n_gpus; i++) {
		struct wire_device_record record;

		if (list->n_records == sizeof(list->records) / sizeof(record)) {
			list->next = i;
			break;
		}
		if (i == 0) {
			describe_host(s->server, &record);
		} else {
			record = gpus[i - 1];
			record.ours = buffers_bytes(s->server, record.device);
		}
		memcpy(list->records + list->n_records++ * sizeof(record), &record, sizeof(record));
	}
	(void)session_reply(s, WIRE_LIST, &reply, NULL,
			    0); /* on failure the connection is being closed */
}

static int device_query_step(struct job *job)
{
	struct device_query *q = container_of(job, struct device_query, job);

	if (job->cancelled)
		return -ECANCELED;
	q->gpus = calloc(CUDA_DEVICES_MAX, sizeof(*q->gpus));
	if (!q->gpus)
		return -ENOMEM;
	q->n_gpus = cuda_list(q->server->cuda, q->gpus);
	return JOB_DONE;
}

/* Names and numbers stay what they are; a reason why there are none may not. */
static void device_query_remember(struct device_query *q)
{
	struct cuda *c = q->server->cuda;

	if (q->server->stopping || q->gpus[0].why[0])
		return;
	free(c->known);
	c->known = take_ptr(q->gpus);
	c->n_known = q->n_gpus;
}

static void device_query_done(struct job *job, int r)
{
	struct device_query *q = container_of(job, struct device_query, job);

	if (q->session) {
		q->session->device_query = NULL;
		if (r == 0)
			device_query_reply(q->session, q->after, q->gpus, q->n_gpus);
		else
			session_fail(q->session, r,
				     r == -ENOMEM ? "weightd is out of memory"
						  : "weightd is stopping");
	}
	if (r == 0)
		device_query_remember(q);
	in_work_end(q->server, &q->work);
	free(q->gpus);
	free(q);
}

void device_query_new(struct session *session, const struct wire_list *list)
{
	const struct cuda *cuda = session->server->cuda;
	struct worker *worker;
	struct device_query *q;

	if (list->flags & WIRE_LIST_KNOWN && cuda->known) {
		device_query_reply(session, list->after, cuda->known, cuda->n_known);
		return;
	}
	worker = cuda_worker(session->server);
	q = worker ? calloc(1, sizeof(*q)) : NULL;

	if (!q) {
		session_fail(session, -ENOMEM, "weightd is out of memory");
		return;
	}
	q->session = session;
	q->server = session->server;
	q->after = list->after;
	session->device_query = q;
	in_work_begin(q->server, session->peer.uid, &q->work);
	worker_submit(worker, &q->job, session->peer.uid, device_query_step, device_query_done);
}

void device_query_forget(struct session *session)
{
	if (!session->device_query)
		return;
	session->device_query->session = NULL;
	session->device_query->job.cancelled = true;
	session->device_query = NULL;
}
