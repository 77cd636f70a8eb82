#include "server/writer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/buffer.h"
#include "server/lease.h"
#include "server/log.h"
#include "server/server.h"
#include "server/session.h"
#include "server/slot.h"
#include "server/waiter.h"

/* io_uring lets go of registered buffers up to 300 ms after its ring was closed. */
#define SEAL_DEADLINE_NS 1000000000u
#define SEAL_RETRY_NS 10000000u

static void unmap_layout(struct writer *w)
{
	layout_check_deinit(&w->check);
	if (w->layout_image)
		(void)munmap((void *)w->layout_image, w->layout_size);
	w->layout_image = NULL;
}

static struct writer *writer_free(struct writer *w)
{
	struct buffer *b = w->buffer;

	assert(!w->busy);
	list_remove(&w->link);
	unmap_layout(w);
	closer_close_memfd(&b->server->closer, w->layout_fd);
	slot_free(w->slot);
	quota_refund(&w->charge);
	b->writer = NULL;
	if (buffer_has_name(b) && !buffer_newest(b))
		buffer_drop(b); /* it was made for this writer alone */
	buffer_unref(b);
	free(w);
	return NULL;
}
CLEANUP_POINTER(struct writer, writer_free);

void writer_abandon(struct writer *w)
{
	if (!w->busy) {
		writer_free(w);
		return;
	}
	list_remove(&w->link);
	w->session = NULL;
	w->job.cancelled = true;
}

struct writer *writer_find(struct session *session, uint64_t id)
{
	struct writer *w;

	list_for_each(w, &session->writers, link)
		if (w->id == id)
			return w;
	return NULL;
}

static void submit(struct writer *w, struct worker *worker, int (*step)(struct job *),
		   void (*done)(struct job *, int))
{
	w->busy = true;
	worker_submit(worker, &w->job, step, done);
}

/* The job is over. NULL when nobody waits for it any more, and then the writer is gone too. */
static struct writer *take_back(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	w->busy = false;
	return w->session ? w : writer_free(w);
}

/* --- providing --- */

static int provide_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);

	return job->cancelled ? -ECANCELED : slot_provide(w->slot);
}

static void fail_for_memory(struct writer *w)
{
	char needs[NUM_SIZE_MAX], missing[NUM_SIZE_MAX];

	session_fail(w->session, -ENOMEM,
		     "'%s' on %s needs %s, %s more than this machine has free; remove a buffer or an old "
		     "version (weightctl rm), or give weightd more memory",
		     w->buffer->name, w->buffer->device, num_format_size(needs, w->slot->size),
		     num_format_size(missing, w->slot->progress.missing));
}

static void provide_done(struct job *job, int r)
{
	struct writer *w = take_back(job);
	struct wire_reply reply = {0};
	int fds[2];

	if (!w)
		return;
	if (r == -ENOMEM && buffers_evict(w->buffer->server, w->slot->progress.missing)) {
		submit(w, &w->buffer->server->worker, provide_step,
		       provide_done); /* behind the freeing of what was evicted */
		return;
	}
	if (r < 0) {
		if (r == -ENOMEM)
			fail_for_memory(w);
		else
			session_fail(w->session, r, "no memory for '%s' on %s: %s", w->buffer->name,
				     w->buffer->device, strerror(-r));
		writer_free(w);
		return;
	}
	reply.create = (struct wire_create_reply){
		.writer = w->id,
		.buffer = w->buffer->id,
		.version = w->buffer->next_version,
		.data_size = w->slot->data_size,
		.slot_size = w->slot->size,
	};
	fds[0] = w->slot->fd;
	fds[1] = w->slot->reader_fd;
	if (session_reply(w->session, WIRE_CREATE, &reply, fds, 2) < 0)
		writer_free(w);
}

static int start_providing(struct writer *w)
{
	struct buffer *b = w->buffer;
	struct version *newest = buffer_newest(b);
	int r;

	if (newest && !w->new_layout && memcmp(newest->layout_hash, w->layout_hash, WIRE_HASH_SIZE)) {
		session_fail(w->session, -EPROTOTYPE,
			     "the layout differs from that of '%s@%" PRIu64 "' on %s; ask for a new "
			     "layout (weightctl load --new-layout), or remove the buffer first",
			     b->name, newest->number, b->device);
		return -EPROTOTYPE;
	}
	r = slot_new(b->server, b->backend, w->session->peer.uid, w->data_size, &w->slot);
	if (r == QUOTA_EXCEEDED) {
		session_fail(w->session, -EDQUOT, "uid %u may not hold that many bytes",
			     w->session->peer.uid);
		return -EDQUOT;
	}
	if (r < 0) {
		session_fail(w->session, r, "no memory for '%s' on %s: %s", b->name, b->device,
			     strerror(-r));
		return r;
	}
	submit(w, &w->buffer->server->worker, provide_step, provide_done);
	return 0;
}

/* --- checking --- */

static int check_layout(struct writer *w)
{
	int r;

	if (w->check.leaves)
		return layout_check_step(&w->check);
	/* Or reading it would take memory of ours, and past a cgroup's limit the kernel kills. */
	if (!fd_is_written(w->layout_fd, w->layout_size)) {
		w->check.why = "it has holes";
		return -EBADMSG;
	}
	r = layout_check_init(&w->check, w->layout_image, w->layout_size);
	return r < 0 ? r : JOB_AGAIN;
}

static int check_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);
	int r = job->cancelled ? -ECANCELED : check_layout(w);

	if (r > 0)
		return r;
	if (r == 0) {
		const struct layout_header *h = w->check.layout.header;

		w->n_tensors = h->n_tensors;
		w->data_size = h->data_size;
		memcpy(w->layout_hash, h->hash, WIRE_HASH_SIZE);
	}
	unmap_layout(w); /* here, since that takes long for a big one */
	return r;
}

static void check_done(struct job *job, int r)
{
	struct writer *w = take_back(job);

	if (!w)
		return;
	if (r == 0)
		r = start_providing(w);
	else if (w->check.why)
		session_fail(w->session, r, "the layout is refused at entry %u: %s", w->check.at,
			     w->check.why);
	else
		session_fail(w->session, r, "the layout cannot be checked: %s", strerror(-r));
	if (r < 0)
		writer_free(w);
}

/* Sealed, so that it cannot change under us. */
static int map_layout(struct writer *w, int fd)
{
	uint64_t size;
	void *image;
	int r;

	if (!fd_is_sealed(fd) || fd_size(fd, &size) < 0 || size == 0 || size > LAYOUT_SIZE_MAX)
		return -EBADMSG;
	r = fd_reopen_readonly(fd, &w->layout_fd);
	if (r < 0)
		return r;
	image = mmap(NULL, size, PROT_READ, MAP_SHARED, w->layout_fd, 0);
	if (image == MAP_FAILED)
		return -errno;
	w->layout_image = image;
	w->layout_size = size;
	return 0;
}

void writer_new(struct session *session, struct buffer *buffer, const struct wire_create *create,
		int layout_fd)
{
	cleanup(writer_freep) struct writer *w = calloc(1, sizeof(*w));
	struct server *server = session->server;
	int r;

	assert(!buffer->writer);
	if (!w) {
		session_fail(session, -ENOMEM, "weightd is out of memory");
		if (!buffer_newest(buffer))
			buffer_drop(buffer);
		return;
	}
	w->session = session;
	w->id = server_next_id(server);
	w->layout_fd = -1;
	w->buffer = buffer;
	w->keep = create->keep;
	w->new_layout = create->flags & WIRE_CREATE_NEW_LAYOUT;
	buffer_ref(buffer);
	buffer->writer = w;
	list_append(&session->writers, &w->link);
	r = quota_charge(&server->quota, session->peer.uid, QUOTA_VERSIONS, 1, &w->charge);
	if (r != 0) {
		session_fail_quota(session, r, "versions; remove some (weightctl rm)");
		return;
	}
	r = map_layout(w, layout_fd);
	if (r < 0) {
		session_fail(session, r,
			     "the layout must come as a sealed memfd of at most 1 GiB: %s",
			     strerror(-r));
		return;
	}
	submit(w, &server->worker, check_step, check_done);
	w = NULL; /* the session's list has it */
}

/* --- sealing --- */

static int seal_step(struct job *job)
{
	struct writer *w = container_of(job, struct writer, job);
	int r;

	if (job->cancelled)
		return -ECANCELED;
	r = slot_seal(w->slot);
	if (r != -EBUSY || num_now_ns() > w->seal_deadline_ns)
		return r;
	job->not_before_ns = num_now_ns() + SEAL_RETRY_NS;
	return JOB_LATER;
}

static uint64_t realtime_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void fail_to_seal(struct writer *w, int r)
{
	const char *name = w->buffer->name;

	if (r == -EBUSY)
		session_fail(
			w->session, r,
			"'%s' cannot be published: its bytes are still mapped writable, or pinned "
			"by I/O in flight, by the writer or a child of it; unmap them and publish "
			"again",
			name);
	else if (r == -EPERM)
		session_fail(w->session, r,
			     "'%s' cannot be published: the writer has forbidden seals on its memory; "
			     "create it again",
			     name);
	else if (r == -ENODATA)
		session_fail(w->session, r,
			     "'%s' cannot be published: parts of its memory were taken out; create it "
			     "again",
			     name);
	else
		session_fail(w->session, r, "'%s' cannot be sealed: %s", name, strerror(-r));
	w->spoiled = r != -EBUSY;
}

/* Everything that can fail comes before buffer_publish(), which is the flip. */
static void commit(struct writer *w)
{
	struct session *session = w->session;
	struct buffer *b = w->buffer;
	cleanup(freep) struct version *v = calloc(1, sizeof(*v));
	struct wire_reply reply = {0};
	struct lease *lease;
	int r = v ? lease_new(session, v, w->id, &lease) : -ENOMEM;

	if (r != 0) {
		session_fail_quota(session, r, "leases; detach some");
		return;
	}
	list_init(&v->link);
	v->slot = take_ptr(w->slot);
	v->layout_fd = take_fd(w->layout_fd);
	v->n_tensors = w->n_tensors;
	v->published_ns = realtime_ns();
	v->uid = session->peer.uid;
	v->has_digest = w->has_digest;
	memcpy(v->layout_hash, w->layout_hash, sizeof(v->layout_hash));
	memcpy(v->digest, w->digest, sizeof(v->digest));
	v->charge = w->charge;
	w->charge = (struct charge){0};
	if (w->keep)
		b->keep = w->keep;
	buffer_publish(b, v);
	reply.publish.version = v->number;
	log_info("'%s@%" PRIu64 "' on %s published by pid %d uid %u", b->name, v->number, b->device,
		 session->peer.pid, session->peer.uid);
	v = NULL; /* the buffer has it */
	writer_free(w);
	(void)session_reply(session, WIRE_PUBLISH, &reply, NULL,
			    0); /* the version stands either way */
	waiters_notify(b);
}

static void seal_done(struct job *job, int r)
{
	struct writer *w = take_back(job);

	if (!w)
		return;
	if (r < 0)
		fail_to_seal(w, r);
	else if (!buffer_has_name(w->buffer))
		session_fail(w->session, -ESTALE, "'%s' was removed while it was written",
			     w->buffer->name);
	else
		commit(w);
}

void writer_publish(struct writer *w, const struct wire_publish *publish)
{
	if (w->spoiled || !buffer_has_name(w->buffer)) {
		session_fail(w->session, -ESTALE,
			     "'%s' was removed, or its memory spoiled; create it again",
			     w->buffer->name);
		return;
	}
	w->has_digest = publish->flags & WIRE_PUBLISH_DIGEST;
	memset(w->digest, 0, sizeof(w->digest));
	if (w->has_digest)
		memcpy(w->digest, publish->digest, sizeof(w->digest));
	w->seal_deadline_ns = num_now_ns() + SEAL_DEADLINE_NS;
	submit(w, &w->buffer->server->sealer, seal_step, seal_done);
}
