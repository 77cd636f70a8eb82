#include "server/slot.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/fd.h"
#include "ipc/digest.h"
#include "server/server.h"

static void slot_destroy(struct slot *s)
{
	(void)fd_close(s->fd);
	(void)fd_close(s->reader_fd);
	quota_refund(&s->charge);
	free(s);
}

int slot_new(struct server *server, const struct backend *backend, uid_t uid, uint64_t data_size,
	     struct slot **ret)
{
	struct slot *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->server = server;
	s->backend = backend;
	s->id = server_next_id(server);
	s->data_size = data_size;
	s->size = digest_slot_size(data_size);
	s->fd = -1;
	s->reader_fd = -1;
	r = quota_charge(&server->quota, uid, QUOTA_BYTES, s->size, &s->charge);
	if (r == 0)
		r = backend->allocate(s->size, &s->fd);
	if (r == 0)
		r = backend->reader(s->fd, &s->reader_fd);
	if (r != 0) {
		slot_destroy(s);
		return r;
	}
	server->n_slot_bytes += s->size;
	*ret = s;
	return 0;
}

static int free_step(struct job *job)
{
	struct slot *s = container_of(job, struct slot, free_job);

	/* The last close frees the pages, unless a reader still maps them. */
	s->fd = fd_close(s->fd);
	s->reader_fd = fd_close(s->reader_fd);
	return JOB_DONE;
}

static void free_done(struct job *job, int r)
{
	struct slot *s = container_of(job, struct slot, free_job);

	(void)r; /* closing does not fail */
	s->server->n_slot_bytes -= s->size;
	slot_destroy(s);
}

void slot_free(struct slot *s)
{
	if (s)
		worker_submit(&s->server->worker, &s->free_job, free_step, free_done);
}

int slot_provide(struct slot *s)
{
	return s->backend->provide(s->fd, s->size, &s->progress);
}

int slot_seal(struct slot *s)
{
	int r;

	if (s->fd < 0)
		return 0; /* sealed before, and then something else failed */
	r = s->backend->seal(s->fd, s->size);
	if (r == 0)
		s->fd = fd_close(s->fd);
	return r;
}
