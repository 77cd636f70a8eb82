#include "server/groups/group_memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/restart/store.h"
#include "server/state/server.h"

#define PAGE 4096u
/* Or a rank could seal a part, and no other could write it any more. */
#define NO_MORE_SEALS F_SEAL_SEAL

static void memory_close(struct group_memory *m)
{
	/* The last close frees the pages. */
	for (unsigned i = 0; i < m->n_parts; i++) {
		m->parts[i].memory.fd = fd_close(m->parts[i].memory.fd);
		m->parts[i].probe_fd = fd_close(m->parts[i].probe_fd);
	}
}

static void memory_destroy(struct group_memory *m)
{
	memory_close(m);
	quota_refund(&m->charge);
	quota_refund(&m->descriptors);
	free(m);
}
CLEANUP_POINTER(struct group_memory, memory_destroy);

/* Parts in whole pages, all together. False: it does not fit in the size of a file. */
static bool sum_pages(const struct wire_job_part *parts, unsigned n_parts, uint64_t *ret)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < n_parts; i++) {
		uint64_t size;

		if (!num_align_up(parts[i].size, PAGE, &size) ||
		    __builtin_add_overflow(sum, size, &sum) || sum > INT64_MAX)
			return false;
	}
	*ret = sum;
	return true;
}

static int memory_blank(struct server *server, const struct wire_job_part *parts, unsigned n_parts,
			struct group_memory **ret)
{
	struct group_memory *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->server = server;
	m->n_parts = n_parts;
	for (unsigned i = 0; i < n_parts; i++) {
		struct group_part *p = &m->parts[i];

		memcpy(p->kind, parts[i].kind, sizeof(p->kind));
		p->memory =
			(struct backend_memory){.server = server, .size = parts[i].size, .fd = -1};
		p->probe_fd = -1;
		m->size += parts[i].size;
	}
	*ret = m;
	return 0;
}

typedef int (*charge_fn)(struct quota *, uid_t, enum quota_kind, uint64_t, struct charge *);

static int memory_charge(struct group_memory *m, uid_t uid, uint64_t pages, charge_fn fn)
{
	struct quota *q = &m->server->quota;
	int r = fn(q, uid, QUOTA_BYTES, pages, &m->charge);

	m->uid = uid;
	return r == 0 ? fn(q, uid, QUOTA_DESCRIPTORS, m->n_parts, &m->descriptors) : r;
}

/* /proc shows the name of the job and the kind of each part that a process has. */
static int part_allocate(struct group_part *p, const char *name)
{
	char label[sizeof("weightd-job::") + WIRE_NAME_SIZE + WIRE_KIND_SIZE];
	int r;

	(void)snprintf(label, sizeof(label), "weightd-job:%s:%s", name, p->kind);
	p->memory.label = label;
	r = backend_host.allocate(&p->memory, NULL);
	p->memory.label = NULL;
	if (r == 0 && fcntl(p->memory.fd, F_ADD_SEALS, NO_MORE_SEALS) < 0)
		r = -errno;
	return r;
}

int group_memory_new(struct server *server, uid_t uid, const char *name,
		     const struct wire_job_join *join, struct group_memory **ret)
{
	cleanup(memory_destroyp) struct group_memory *m = NULL;
	uint64_t pages;
	int r;

	if (!sum_pages(join->parts, join->n_parts, &pages))
		return -EOVERFLOW;
	r = memory_blank(server, join->parts, join->n_parts, &m);
	if (r == 0)
		r = memory_charge(m, uid, pages, quota_charge);
	for (unsigned i = 0; r == 0 && i < m->n_parts; i++) {
		m->parts[i].id = server_next_id(server);
		r = part_allocate(&m->parts[i], name);
	}
	if (r != 0)
		return r;
	server->n_slot_bytes += m->size;
	*ret = take_ptr(m);
	return 0;
}

/* Holes are its ranks' to make, and no reason to lose the rest. */
static bool part_ok(int fd, uint64_t size)
{
	uint64_t there, allocated;
	bool sealed;

	return backend_host.describe(fd, &there, &allocated, &sealed) == 0 && there == size &&
	       !sealed;
}

int group_memory_recover(struct server *server, uid_t uid, const struct wire_job_part *parts,
			 unsigned n_parts, const uint64_t *ids, int *fds, struct group_memory **ret)
{
	cleanup(memory_destroyp) struct group_memory *m = NULL;
	uint64_t pages;
	int r;

	if (!sum_pages(parts, n_parts, &pages))
		return -EBADMSG;
	for (unsigned i = 0; i < n_parts; i++)
		if (!part_ok(fds[i], parts[i].size))
			return -EBADMSG;
	r = memory_blank(server, parts, n_parts, &m);
	if (r == 0)
		r = memory_charge(m, uid, pages, quota_charge_anyway);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < n_parts; i++) {
		m->parts[i].id = ids[i];
		m->parts[i].probe_fd = take_fd(fds[i]);
		m->parts[i].memory.progress.done = parts[i].size;
	}
	m->provided = true;
	server->n_slot_bytes += m->size;
	*ret = take_ptr(m);
	return 0;
}

static int memory_free_step(struct job *job)
{
	memory_close(container_of(job, struct group_memory, job));
	return JOB_DONE;
}

static void memory_free_done(struct job *job, int r)
{
	struct group_memory *m = container_of(job, struct group_memory, job);
	struct server *server = m->server;

	(void)r; /* closing does not fail */
	server->n_slot_bytes -= m->size;
	freeing_end(&m->freeing);
	memory_destroy(m);
	freeings_wake(&server->freeings);
}

void group_memory_free(struct group_memory *m)
{
	if (!m)
		return;
	for (unsigned i = 0; m->kept && i < m->n_parts; i++)
		store_remove(&m->server->store, m->uid, STORE_PART, m->parts[i].id);
	/* A request that comes later waits for the freeing before it makes memory. */
	quota_refund(&m->charge);
	quota_refund(&m->descriptors);
	freeing_begin(&m->server->freeings, &m->freeing, m->uid, "host");
	worker_submit(&m->server->freer, &m->job, m->uid, memory_free_step, memory_free_done);
}

/* --- providing --- */

static uint64_t bytes_left(const struct group_memory *m)
{
	uint64_t left = 0;

	for (unsigned i = 0; i < m->n_parts; i++)
		left += m->parts[i].memory.size - m->parts[i].memory.progress.done;
	return left;
}

static struct group_part *next_part(struct group_memory *m)
{
	for (unsigned i = 0; i < m->n_parts; i++)
		if (m->parts[i].memory.progress.done < m->parts[i].memory.size)
			return &m->parts[i];
	return NULL;
}

/* The backend would admit each part for itself, and the last one would find out too late. */
static int memory_admit(struct group_memory *m, struct backend_memory *memory)
{
	uint64_t left = bytes_left(m), n_free;
	int r;

	if (host_has_looked(memory))
		return 0;
	r = backend_host.measure(memory, &n_free);
	if (r < 0)
		return r;
	memcpy(m->limit, memory->limit, sizeof(m->limit));
	if (n_free >= left)
		return 0;
	m->n_free = n_free + (m->size - left);
	m->missing = left - n_free;
	return -ENOMEM;
}

/* Afterwards weightd has no descriptor that can write the memory. */
static int memory_finish(struct group_memory *m)
{
	for (unsigned i = 0; i < m->n_parts; i++) {
		struct group_part *p = &m->parts[i];
		int r = backend_host.reader(p->memory.fd, &p->probe_fd);

		if (r < 0)
			return r;
		p->memory.fd = fd_close(p->memory.fd);
	}
	return JOB_DONE;
}

int group_memory_provide(struct group_memory *m)
{
	struct group_part *p = next_part(m);
	int r;

	assert(p); /* no part is empty, and memory that is whole is not provided */
	r = memory_admit(m, &p->memory);
	if (r < 0)
		return r;
	r = backend_host.provide(&p->memory);
	if (r == -ENOMEM) { /* it was taken since */
		m->missing = p->memory.progress.missing;
		m->n_free = m->size > m->missing ? m->size - m->missing : 0;
	}
	if (r != JOB_DONE)
		return r;
	return next_part(m) ? JOB_AGAIN : memory_finish(m);
}

void group_memory_keep(struct group_memory *m)
{
	m->kept = true;
	for (unsigned i = 0; i < m->n_parts; i++)
		(void)store_put(&m->server->store, m->uid, STORE_PART, m->parts[i].id,
				m->parts[i].probe_fd); /* the barrier after it reports errors */
}

/* --- for ranks --- */

bool group_memory_has(const struct group_memory *m, const struct wire_job_part *parts,
		      unsigned n_parts)
{
	if (m->n_parts != n_parts)
		return false;
	for (unsigned i = 0; i < n_parts; i++)
		if (m->parts[i].memory.size != parts[i].size ||
		    strcmp(m->parts[i].kind, parts[i].kind) != 0)
			return false;
	return true;
}

int group_memory_open(const struct group_memory *m, unsigned part, int *ret_fd)
{
	return backend_host.writable(m->parts[part].probe_fd, ret_fd);
}

int group_memory_view(const struct group_memory *m, int *ret_fd)
{
	return backend_host.reader(m->parts[0].probe_fd, ret_fd);
}

uint64_t group_memory_step(const struct group_memory *m)
{
	uint64_t step = 0;

	/* A part of fewer bytes has no step. */
	return pread(m->parts[0].probe_fd, &step, sizeof(step), 0) == sizeof(step) ? step : 0;
}

void group_memory_mark_removed(const struct group_memory *m)
{
	/* Read permission stays: leases of group_memory_in_use() need it. */
	(void)fchmod(m->parts[0].probe_fd, S_ISVTX | 0400);
}

bool group_memory_in_use(const struct group_memory *m)
{
	for (unsigned i = 0; i < m->n_parts; i++)
		if (backend_host.in_use(m->parts[i].probe_fd) > 0)
			return true;
	return false;
}
