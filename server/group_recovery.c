#include "server/group_recovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/buffers/buffer.h"
#include "server/groups/group_memory.h"
#include "server/groups/writer_group.h"
#include "server/restart/group_manifest.h"
#include "server/restart/inherit.h"
#include "server/state/audit.h"
#include "server/state/buffer_names.h"
#include "server/state/server.h"

/* A job that is being recovered. Until all is well, the store counts nothing of it. */
struct kept_job {
	struct server *server;
	struct inherit *in;
	const struct group_manifest_record *record;
	struct group_memory *memory;
	struct kept_memfd description;
	bool is_served; /* the result */
};

static void return_fds(struct kept_job *k, int *fds)
{
	for (unsigned i = 0; i < k->record->n_parts; i++)
		if (fds[i] >= 0)
			inherit_give_back(k->in, STORE_PART, k->record->parts[i].id,
					  take_fd(fds[i]));
}

static int take_memory(struct kept_job *k)
{
	struct wire_job_part parts[WIRE_JOB_PARTS_MAX] = {0};
	const struct group_manifest_record *record = k->record;
	uint64_t ids[WIRE_JOB_PARTS_MAX];
	int fds[WIRE_JOB_PARTS_MAX];
	int r = 0;

	for (unsigned i = 0; i < record->n_parts; i++) {
		memcpy(parts[i].kind, record->parts[i].kind, sizeof(parts[i].kind));
		parts[i].size = record->parts[i].size;
		ids[i] = record->parts[i].id;
		fds[i] = inherit_take(k->in, STORE_PART, ids[i]);
		if (fds[i] < 0)
			r = -ENOENT;
	}
	if (r == 0)
		r = group_memory_recover(k->server, record->uid, parts, record->n_parts, ids, fds,
					 &k->memory);
	if (r < 0)
		return_fds(k, fds);
	return r;
}

static void return_memory(struct kept_job *k)
{
	struct group_memory *m = take_ptr(k->memory);

	for (unsigned i = 0; m && i < m->n_parts; i++)
		inherit_give_back(k->in, STORE_PART, m->parts[i].id, take_fd(m->parts[i].probe_fd));
	group_memory_free(m);
}

static int take_description(struct kept_job *k)
{
	uint64_t id = k->record->description;
	int fd = inherit_take(k->in, STORE_DESCRIPTION, id);
	int r;

	if (fd < 0)
		return -ENOENT;
	k->description = (struct kept_memfd){.server = k->server,
					     .kind = STORE_DESCRIPTION,
					     .store_uid = k->record->uid,
					     .id = id,
					     .fd = fd};
	r = kept_memfd_recover(&k->description, k->record->uid);
	if (r < 0) {
		inherit_give_back(k->in, STORE_DESCRIPTION, id, fd);
		k->description = (struct kept_memfd){0};
	}
	return r;
}

static void return_description(struct kept_job *k)
{
	struct kept_memfd *d = &k->description;

	if (d->n_refs == 0)
		return;
	inherit_give_back(k->in, STORE_DESCRIPTION, d->id, take_fd(d->fd));
	d->kept = false;
	(void)kept_memfd_unref(d);
}

static int take_all(struct kept_job *k)
{
	int r = take_description(k);

	return r == 0 ? take_memory(k) : r;
}

static void return_all(struct kept_job *k)
{
	return_description(k);
	return_memory(k);
}

/* Removes what no rank has received, or what was on its way out of the store. */
static void drop_rest(struct kept_job *k)
{
	struct store *store = &k->server->store;

	for (unsigned i = 0; i < k->record->n_parts; i++)
		inherit_drop(k->in, store, k->record->uid, STORE_PART, k->record->parts[i].id);
	if (k->record->description)
		inherit_drop(k->in, store, k->record->uid, STORE_DESCRIPTION,
			     k->record->description);
}

/* The group gets what was taken, and the store counts it. */
static void give_all(struct kept_job *k, struct writer_group *g)
{
	store_adopt(&k->server->store);
	if (!k->memory)
		return;
	for (unsigned i = 0; i < k->memory->n_parts; i++) {
		k->memory->parts[i].memory.progress.huge = k->record->parts[i].huge_bytes;
		store_adopt(&k->server->store);
	}
	store_adopt(&k->server->store);
	k->memory->kept = true;
	g->memory = take_ptr(k->memory);
	g->description = k->description;
	g->ready = true;
	if (g->removed)
		group_memory_mark_removed(g->memory); /* the last server may have died before it did */
}

/* 0, or what is wrong with it: then nothing of it was taken. */
static int recover_group(struct kept_job *k, uint64_t id, struct group_manifest *m)
{
	bool is_removed = k->record->flags & GROUP_MANIFEST_REMOVED;
	bool is_ready = k->record->flags & GROUP_MANIFEST_READY;
	struct writer_group *g;
	int r = is_ready ? take_all(k) : 0;

	if (r == -ENOENT && is_removed) {
		return_all(k);
		r = 0; /* it was being freed */
	}
	if (r == 0)
		r = writer_group_recover(k->server, id, m, &g);
	if (r < 0) {
		return_all(k);
		return r;
	}
	give_all(k, g);
	if (!g->ready)
		drop_rest(k);
	fault_point("job-recovered");
	writer_group_settle(g);
	writer_group_save(g);
	if (g->removed) {
		writer_group_reap(g);
		return 0;
	}
	k->is_served = true;
	audit(&(struct audit){.action = AUDIT_RECOVER, .job = g->name});
	return 0;
}

static int recover_manifest(struct kept_job *k, uint64_t id, struct group_manifest *m)
{
	k->record = group_manifest_current(m);
	if (k->record->flags & GROUP_MANIFEST_REMOVED)
		return recover_group(k, id, m);
	if (!buffer_name_ok(k->record->name))
		return -EBADMSG;
	if (writer_group_find(k->server, k->record->name))
		return -EEXIST;
	return recover_group(k, id, m);
}

static void group_quarantine(uint64_t id, const char *name, int r, uint32_t abi)
{
	audit(&(struct audit){.action = AUDIT_QUARANTINE, .job = name, .result = r});
	if (r == -EPROTONOSUPPORT)
		log_error("a job's manifest (%016" PRIx64
			  ") has format %u and this weightd supports %d: it is kept and not "
			  "served; start the release that wrote it",
			  id, abi, GROUP_MANIFEST_ABI);
	else if (name)
		log_error("job '%s' (%016" PRIx64 ") is kept and not served: %s", name, id,
			  r == -ENOENT
				  ? "the service manager has not kept all of its memory; check if "
				    "its store's size (FileDescriptorStoreMax=) was lowered"
			  : r == -EBADMSG ? "its memory or description is not what the manifest has"
			  : r == -EEXIST  ? "another job has that name"
					  : strerror(-r));
	else
		log_error("a job's manifest (%016" PRIx64 ") is kept and not served: %s", id,
			  r == -EBADMSG ? "it is damaged" : strerror(-r));
}

/* True if the job is served. */
static bool recover_job(struct server *server, struct inherit *in, uint64_t id, int fd)
{
	struct kept_job k = {.server = server, .in = in};
	struct group_manifest *m = NULL;
	uint32_t abi = 0;
	int r = group_manifest_open(fd, id, &m, &abi);

	if (r == 0)
		r = recover_manifest(&k, id, m);
	if (r == 0) {
		(void)fd_close(fd);
		return k.is_served;
	}
	group_quarantine(id, m ? group_manifest_current(m)->name : NULL, r, abi);
	(void)group_manifest_free(m);
	inherit_give_back(in, STORE_GROUP, id, fd);
	return false;
}

unsigned group_recovery_run(struct server *server, struct inherit *in)
{
	unsigned n = 0;

	for (unsigned i = 0; i < in->n; i++) {
		enum store_kind kind;
		uint64_t id;

		if (in->items[i].fd < 0 || !store_parse_name(in->items[i].name, &kind, &id) ||
		    kind != STORE_GROUP)
			continue;
		fault_point("recovery-job");
		n += recover_job(server, in, id, take_fd(in->items[i].fd));
	}
	return n;
}
