#include "server/slot.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/digest.h"
#include "server/server.h"

static void slot_destroy(struct slot *s)
{
	(void)fd_close(s->fd);
	(void)fd_close(s->reader_fd);
	(void)fd_close(s->probe_fd);
	quota_refund(&s->charge);
	quota_refund(&s->descriptor);
	free(s);
}
CLEANUP_POINTER(struct slot, slot_destroy);

static struct slot *slot_blank(struct server *server, const struct backend *backend, uid_t uid,
			       uint64_t data_size)
{
	struct slot *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->server = server;
	s->backend = backend;
	s->uid = uid;
	s->data_size = data_size;
	s->size = digest_slot_size(data_size);
	s->fd = -1;
	s->reader_fd = -1;
	s->probe_fd = -1;
	return s;
}

int slot_new(struct server *server, const struct backend *backend, uid_t uid, uint64_t data_size,
	     struct slot **ret)
{
	cleanup(slot_destroyp) struct slot *s = slot_blank(server, backend, uid, data_size);
	int r;

	if (!s)
		return -ENOMEM;
	s->id = server_next_id(server);
	r = quota_charge(&server->quota, uid, QUOTA_BYTES, s->size, &s->charge);
	if (r == 0)
		r = quota_charge(&server->quota, uid, QUOTA_DESCRIPTORS, 1, &s->descriptor);
	if (r == 0)
		r = backend->allocate(s->size, &s->fd);
	if (r == 0)
		r = backend->reader(s->fd, &s->probe_fd);
	if (r == 0)
		r = backend->reader(s->fd, &s->reader_fd);
	if (r != 0)
		return r;
	server->n_slot_bytes += s->size;
	*ret = take_ptr(s);
	return 0;
}

int slot_recover(struct server *server, const struct backend *backend, uid_t uid, uint64_t id,
		 uint64_t data_size, int probe_fd, struct slot **ret)
{
	cleanup(slot_destroyp) struct slot *s = slot_blank(server, backend, uid, data_size);
	uint64_t size, allocated;
	int r;

	if (!s)
		return -ENOMEM;
	s->id = id;
	s->kept = true;
	r = backend->describe(probe_fd, &size, &allocated, &s->sealed);
	if (r == 0 && (size != s->size || allocated < size))
		r = -EBADMSG;
	if (r == 0)
		r = quota_charge_anyway(&server->quota, uid, QUOTA_BYTES, s->size, &s->charge);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, uid, QUOTA_DESCRIPTORS, 1, &s->descriptor);
	if (r < 0)
		return r;
	s->probe_fd = probe_fd;
	s->progress.done = s->size;
	server->n_slot_bytes += s->size;
	*ret = take_ptr(s);
	return 0;
}

static int free_step(struct job *job)
{
	struct slot *s = container_of(job, struct slot, free_job);

	/* The last close frees the pages. */
	s->fd = fd_close(s->fd);
	s->reader_fd = fd_close(s->reader_fd);
	s->probe_fd = fd_close(s->probe_fd);
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
	if (!s)
		return;
	if (s->kept)
		store_remove(&s->server->store, STORE_SLOT, s->id);
	worker_submit(&s->server->worker, &s->free_job, free_step, free_done);
}

void slot_keep(struct slot *s)
{
	if (s->kept)
		return;
	s->kept = true;
	(void)store_put(&s->server->store, STORE_SLOT, s->id,
			s->probe_fd); /* the barrier behind it tells */
}

int slot_provide(struct slot *s)
{
	return s->backend->provide(s->fd, s->size, &s->progress);
}

int slot_open(struct slot *s)
{
	return s->fd >= 0 ? 0 : s->backend->writable(s->probe_fd, &s->fd);
}

void slot_shut(struct slot *s)
{
	s->fd = fd_close(s->fd);
}

int slot_seal(struct slot *s)
{
	int r;

	if (s->fd < 0)
		return 0; /* sealed before, and then something else failed */
	r = s->sealed ? s->backend->is_whole(s->fd, s->size) : s->backend->seal(s->fd, s->size);
	if (r == 0) {
		s->sealed = true;
		slot_shut(s);
	}
	return r;
}

int slot_finish(struct slot *s)
{
	int r = s->fd < 0 ? 0 : s->backend->is_whole(s->fd, s->size);

	if (r == 0)
		slot_shut(s);
	return r;
}

int slot_reader(struct slot *s)
{
	int r = s->reader_fd >= 0 ? 0 : s->backend->reader(s->probe_fd, &s->reader_fd);

	return r < 0 ? r : s->reader_fd;
}

int slot_has_writer(const struct slot *s)
{
	return s->backend->has_writer(s->probe_fd);
}

bool slot_is_held(struct slot *s)
{
	s->reader_fd = fd_close(s->reader_fd);
	return s->backend->in_use(s->probe_fd) > 0;
}

bool slot_in_use(struct slot *s)
{
	slot_shut(s);
	return slot_is_held(s);
}
