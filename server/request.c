#include "server/request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/access.h"
#include "server/backend/backend.h"
#include "server/buffer.h"
#include "server/lease.h"
#include "server/log.h"
#include "server/server.h"
#include "server/session.h"
#include "server/waiter.h"
#include "server/writer.h"

static const char *device_or_host(const char *device)
{
	return device[0] ? device : "host";
}

/* The named buffer, if the client may do that with it; else the client is told, and NULL. */
static struct buffer *find_for(struct session *s, const char *name, const char *device,
			       unsigned want)
{
	struct buffer *b = buffer_find(s->server, name, device_or_host(device));

	if (!b)
		session_fail(s, -ENOENT, "there is no buffer '%s' on %s", name,
			     device_or_host(device));
	else if (!access_allows(&b->access, &s->peer, want))
		session_fail(s, -EACCES, "uid %u may not %s '%s' (owner uid %u, gid %u, mode %04o)",
			     s->peer.uid, want == ACCESS_READ ? "read" : "write", name,
			     b->access.uid, b->access.gid, b->access.mode);
	else
		return b;
	return NULL;
}

static void on_hello(struct session *s, const struct wire_request *m, const int *fds)
{
	struct wire_reply reply = {0};

	(void)fds;
	if (m->hello.version != WIRE_VERSION) {
		session_fail(s, -EPROTONOSUPPORT,
			     "this weightd speaks version %d of the protocol, the client version %u; "
			     "use the same release of both",
			     WIRE_VERSION, m->hello.version);
		return;
	}
	s->greeted = true;
	log_debug("session of pid %d uid %u: %s", s->peer.pid, s->peer.uid,
		  buffer_name_ok(m->hello.program) ? m->hello.program : "(a program)");
	reply.hello.version = WIRE_VERSION;
	reply.hello.pid = (uint32_t)getpid();
	reply.hello.instance = s->server->instance;
	(void)CODEC_PUT_STRING(reply.hello.release, SERVER_RELEASE);
	(void)session_reply(s, WIRE_HELLO, &reply, NULL, 0);
}

static void on_ping(struct session *s, const struct wire_request *m, const int *fds)
{
	struct server *server = s->server;
	struct wire_reply reply = {
		.ping =
			{
				.instance = server->instance,
				.uptime_ns = num_now_ns() - server->started_ns,
				.n_buffers = server->n_buffers,
				.n_sessions = server->n_sessions,
				.n_leases = server->n_leases,
				.n_bytes = server->n_slot_bytes,
				.pid = (uint32_t)getpid(),
			},
	};

	(void)m;
	(void)fds;
	(void)CODEC_PUT_STRING(reply.ping.release, SERVER_RELEASE);
	(void)session_reply(s, WIRE_PING, &reply, NULL, 0);
}

/* Makes the buffer that a create names and that does not exist. NULL: the client was told why not. */
static struct buffer *make_buffer(struct session *s, const struct wire_create *create)
{
	const char *device = device_or_host(create->device);
	struct access access = {
		.uid = s->peer.uid,
		.gid = s->peer.gid,
		.mode = create->mode ? create->mode & 0666 : (mode_t)s->server->config.mode,
	};
	const struct backend *backend;
	struct buffer *b;
	int r;

	if (!buffer_name_ok(create->name))
		session_fail(s, -EINVAL,
			     "a buffer's name is 1 to 127 of A-Z a-z 0-9 . _ / : - and starts with a "
			     "letter or a digit");
	else if (backend_find(device, &backend) < 0)
		session_fail(s, -ENODEV, "this weightd has no such device; it has: host");
	else if (!access_may_own(&s->peer))
		session_fail(
			s, -EPERM,
			"uid %u stands for every user that this weightd cannot name, and owns nothing",
			s->peer.uid);
	else if ((r = buffer_new(s->server, create->name, device, backend, &access, &b)) == 0)
		return b;
	else if (r == QUOTA_EXCEEDED)
		session_fail(s, -EDQUOT, "uid %u has too many buffers; remove some (weightctl rm)",
			     s->peer.uid);
	else
		session_fail(s, r, "no room for another buffer: %s", strerror(-r));
	return NULL;
}

static void on_create(struct session *s, const struct wire_request *m, const int *fds)
{
	const struct wire_create *create = &m->create;
	const char *device = device_or_host(create->device);
	struct buffer *b = buffer_find(s->server, create->name, device);

	if (b) {
		b = find_for(s, create->name, device, ACCESS_WRITE);
		if (b && b->writer) {
			session_fail(s, -EBUSY, "'%s' on %s is being written by another writer",
				     b->name, b->device);
			return;
		}
	} else {
		b = make_buffer(s, create);
	}
	if (!b)
		return;
	writer_new(s, b, create, fds[0]);
}

static void on_publish(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->publish.writer);

	(void)fds;
	if (w)
		writer_publish(w, &m->publish);
	else
		session_fail(s, -ENOENT, "this connection has no such writer");
}

static void on_abort(struct session *s, const struct wire_request *m, const int *fds)
{
	struct writer *w = writer_find(s, m->abort.id);
	struct wire_reply reply = {0};

	(void)fds;
	if (!w) {
		session_fail(s, -ENOENT, "this connection has no such writer");
		return;
	}
	writer_abandon(w);
	(void)session_reply(s, WIRE_ABORT, &reply, NULL, 0);
}

/* The version an attach asks for. NULL: the client was told why not. */
static struct version *find_version(struct session *s, struct buffer *b,
				    const struct wire_attach *attach)
{
	struct version *v = attach->version ? buffer_version(b, attach->version) : buffer_newest(b);

	if (attach->buffer && attach->buffer != b->id)
		session_fail(s, -ESTALE, "'%s' on %s was removed and made anew", b->name, b->device);
	else if (!v && attach->version)
		session_fail(s, -ENOENT, "'%s' on %s has no version %" PRIu64, b->name, b->device,
			     attach->version);
	else if (!v)
		session_fail(s, -ENODATA, "'%s' on %s has not been published yet", b->name,
			     b->device);
	else if (attach->flags & WIRE_ATTACH_CHECK_LAYOUT &&
		 memcmp(attach->layout_hash, v->layout_hash, WIRE_HASH_SIZE))
		session_fail(s, -EPROTOTYPE,
			     "the layout of '%s@%" PRIu64 "' on %s is not the one asked for",
			     b->name, v->number, b->device);
	else
		return v;
	return NULL;
}

static void on_attach(struct session *s, const struct wire_request *m, const int *fds)
{
	struct buffer *b = find_for(s, m->attach.name, m->attach.device, ACCESS_READ);
	struct version *v = b ? find_version(s, b, &m->attach) : NULL;
	struct wire_reply reply = {0};
	struct lease *lease;
	int out[3];
	int r;

	(void)fds;
	if (!v)
		return;
	r = lease_new(s, v, server_next_id(s->server), &lease);
	if (r != 0) {
		session_fail_quota(s, r, "leases; detach some");
		return;
	}
	reply.attach = (struct wire_attach_reply){
		.lease = lease->id,
		.buffer = b->id,
		.version = v->number,
		.data_size = v->slot->data_size,
		.slot_size = v->slot->size,
		.flags = v->has_digest ? WIRE_VERSION_DIGEST : 0,
	};
	memcpy(reply.attach.layout_hash, v->layout_hash, WIRE_HASH_SIZE);
	memcpy(reply.attach.digest, v->digest, WIRE_HASH_SIZE);
	out[0] = v->layout_fd;
	out[1] = b->head_fd;
	out[2] = v->slot->reader_fd;
	if (session_reply(s, WIRE_ATTACH, &reply, out, 3) < 0)
		lease_free(lease);
}

static void on_detach(struct session *s, const struct wire_request *m, const int *fds)
{
	struct lease *lease = lease_find(s, m->detach.id);
	struct wire_reply reply = {0};

	(void)fds;
	if (!lease) {
		session_fail(s, -ENOENT, "this connection has no such lease");
		return;
	}
	lease_free(lease);
	(void)session_reply(s, WIRE_DETACH, &reply, NULL, 0);
}

static void on_wait(struct session *s, const struct wire_request *m, const int *fds)
{
	struct buffer *b = buffer_find(s->server, m->wait.name, device_or_host(m->wait.device));
	struct version *newest = b ? buffer_newest(b) : NULL;
	struct wire_wait wait = m->wait;
	struct wire_reply reply = {0};
	int r;

	(void)fds;
	if (b && !find_for(s, b->name, b->device, ACCESS_READ))
		return;
	if (newest && newest->number >= m->wait.version) {
		reply.wait.version = newest->number;
		(void)session_reply(s, WIRE_WAIT, &reply, NULL, 0);
		return;
	}
	(void)CODEC_PUT_STRING(wait.device,
			       device_or_host(m->wait.device)); /* it was as long before */
	r = waiter_new(s, &wait);
	if (r < 0)
		session_fail(s, r, "weightd is out of memory");
}

static void fill_buffer_record(const struct buffer *b, struct wire_buffer_record *rec)
{
	const struct version *newest = buffer_newest(b);
	const struct version *v;

	memcpy(rec->name, b->name, sizeof(rec->name));
	memcpy(rec->device, b->device, sizeof(rec->device));
	rec->writing = b->writer != NULL;
	rec->uid = b->access.uid;
	rec->gid = b->access.gid;
	rec->mode = b->access.mode;
	rec->keep = b->keep;
	list_for_each(v, &b->versions, link) {
		rec->n_versions++;
		rec->n_leases += v->n_leases;
		rec->slot_bytes += v->slot->size;
		rec->huge_bytes += v->slot->progress.huge;
	}
	if (!newest)
		return;
	rec->version = newest->number;
	rec->n_tensors = newest->n_tensors;
	rec->data_size = newest->slot->data_size;
	rec->published_ns = newest->published_ns;
	memcpy(rec->layout_hash, newest->layout_hash, WIRE_HASH_SIZE);
	memcpy(rec->digest, newest->digest, WIRE_HASH_SIZE);
}

static void fill_version_record(const struct version *v, struct wire_version_record *rec)
{
	rec->version = v->number;
	rec->n_tensors = v->n_tensors;
	rec->data_size = v->slot->data_size;
	rec->slot_bytes = v->slot->size;
	rec->huge_bytes = v->slot->progress.huge;
	rec->published_ns = v->published_ns;
	rec->n_leases = v->n_leases;
	rec->uid = v->uid;
	rec->current = v == buffer_newest(v->buffer);
	memcpy(rec->layout_hash, v->layout_hash, WIRE_HASH_SIZE);
	memcpy(rec->digest, v->digest, WIRE_HASH_SIZE);
}

/* A page of a list in the making. */
struct page {
	struct wire_reply reply;
	uint64_t last; /* id of the last record in it */
};

static void page_init(struct page *p, size_t record_size)
{
	*p = (struct page){.reply.list.record_size = (uint32_t)record_size};
}

/* Room for the record `id`, zeroed. NULL when the page is full: the list goes on behind the last one. */
static void *page_add(struct page *p, uint64_t id)
{
	struct wire_list_reply *list = &p->reply.list;

	if (list->n_records == sizeof(list->records) / list->record_size) {
		list->next = p->last;
		return NULL;
	}
	p->last = id;
	return list->records + list->n_records++ * (size_t)list->record_size;
}

/* All buffers that the client may read or owns, or those of one name; in the order of their ids. */
static void list_buffers(struct session *s, const struct wire_list *list)
{
	struct wire_buffer_record rec;
	struct buffer *b;
	struct page page;
	void *room;

	page_init(&page, sizeof(rec));
	list_for_each(b, &s->server->buffers, link) {
		if (b->id <= list->after || (list->name[0] && strcmp(b->name, list->name)))
			continue;
		if (!access_allows(&b->access, &s->peer, ACCESS_READ) &&
		    !access_owns(&b->access, &s->peer))
			continue;
		room = page_add(&page, b->id);
		if (!room)
			break;
		rec = (struct wire_buffer_record){0};
		fill_buffer_record(b, &rec);
		memcpy(room, &rec, sizeof(rec));
	}
	(void)session_reply(s, WIRE_LIST, &page.reply, NULL, 0);
}

static void list_versions(struct session *s, const struct wire_list *list)
{
	struct buffer *b = find_for(s, list->name, list->device, ACCESS_READ);
	struct wire_version_record rec;
	struct version *v;
	struct page page;
	void *room;

	if (!b)
		return;
	page_init(&page, sizeof(rec));
	list_for_each(v, &b->versions, link) {
		if (v->number <= list->after)
			continue;
		room = page_add(&page, v->number);
		if (!room)
			break;
		rec = (struct wire_version_record){0};
		fill_version_record(v, &rec);
		memcpy(room, &rec, sizeof(rec));
	}
	(void)session_reply(s, WIRE_LIST, &page.reply, NULL, 0);
}

static void on_list(struct session *s, const struct wire_request *m, const int *fds)
{
	(void)fds;
	if (m->list.kind == WIRE_LIST_BUFFERS)
		list_buffers(s, &m->list);
	else if (m->list.kind == WIRE_LIST_VERSIONS)
		list_versions(s, &m->list);
	else
		session_fail(s, -EINVAL, "there is no list of kind %u", m->list.kind);
}

static void on_drop(struct session *s, const struct wire_request *m, const int *fds)
{
	const char *device = device_or_host(m->drop.device);
	struct buffer *b = buffer_find(s->server, m->drop.name, device);
	struct wire_reply reply = {0};
	struct version *v;

	(void)fds;
	if (!b) {
		session_fail(s, -ENOENT, "there is no buffer '%s' on %s", m->drop.name, device);
		return;
	}
	if (!access_owns(&b->access, &s->peer)) {
		session_fail(s, -EACCES, "uid %u may not remove '%s'; its owner is uid %u",
			     s->peer.uid, b->name, b->access.uid);
		return;
	}
	if (m->drop.version) {
		v = buffer_version(b, m->drop.version);
		if (!v) {
			session_fail(s, -ENOENT, "'%s' on %s has no version %" PRIu64, b->name,
				     b->device, m->drop.version);
			return;
		}
		if (v == buffer_newest(b)) {
			session_fail(s, -EBUSY,
				     "'%s@%" PRIu64
				     "' is what readers attach; publish another version, or "
				     "remove the buffer (weightctl rm %s)",
				     b->name, v->number, b->name);
			return;
		}
		version_drop(v);
	} else {
		log_info("'%s' on %s removed by pid %d uid %u", b->name, b->device, s->peer.pid,
			 s->peer.uid);
		buffer_drop(b);
	}
	(void)session_reply(s, WIRE_DROP, &reply, NULL, 0);
}

static void (*const handlers[WIRE_OP_END])(struct session *, const struct wire_request *,
					   const int *) = {
	[WIRE_HELLO] = on_hello,     [WIRE_PING] = on_ping,   [WIRE_CREATE] = on_create,
	[WIRE_PUBLISH] = on_publish, [WIRE_ABORT] = on_abort, [WIRE_ATTACH] = on_attach,
	[WIRE_DETACH] = on_detach,   [WIRE_WAIT] = on_wait,   [WIRE_LIST] = on_list,
	[WIRE_DROP] = on_drop,
};

int request_handle(struct session *s, const struct wire_request *m, const int *fds)
{
	if (s->greeted == (m->header.op == WIRE_HELLO))
		return -EPROTO; /* hello comes first, and once */
	handlers[m->header.op](s, m, fds);
	return 0;
}
