/*
 * Host memory: a memfd, mapped shared. It has no streams: its operations are done when they return.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/mapping.h"
#include "ipc/digest.h"
#include "libclient/version/memory.h"

static int host_say(struct sentence *s, int r)
{
	return r < 0 ? sentence_set(s, r, "%s", strerror(-r)) : r;
}

/*
 * Bytes that are mapped in front of the data, because a mapping begins with a page: the end of an image's header.
 * Without any data, a page of it, since no mapping is empty.
 */
static uint64_t lead_of(const struct memory *m)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), lead = m->offset % page;

	return lead == 0 && m->size == 0 ? page : lead;
}

static void *start_of(const struct memory *m)
{
	return m->data ? (char *)m->data - lead_of(m) : NULL;
}

/* At the address that there is, over what is mapped there, else where there is room. */
static int map_at(struct memory *m, const struct memory_request *q)
{
	bool is_writable = q->access == MEMORY_WRITE;
	uint64_t file_size, lead = lead_of(m);
	void *start;
	int r = fd_size(q->fd, &file_size);

	/* A file shorter than the server's size would fault on reading. */
	if (r == 0 && (file_size < q->offset || file_size - q->offset < m->size))
		r = -EBADMSG;
	if (r == 0)
		r = mapping_new_part(q->fd, q->offset - lead, lead + m->size,
				     PROT_READ | (is_writable ? PROT_WRITE : 0), start_of(m),
				     &start);
	if (r == 0)
		m->data = (char *)start + lead;
	return r;
}

/* In the mapping of a child the bytes would stay writable, and publish would find them so. */
static int keep_from_children(const struct memory *m)
{
	return madvise(start_of(m), lead_of(m) + m->size, MADV_DONTFORK) < 0 ? -errno : 0;
}

static void host_unmap(struct memory *m)
{
	mapping_free(start_of(m), lead_of(m) + m->size);
}

static int host_map(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	int r = map_at(m, q);

	if (r == 0 && q->access == MEMORY_WRITE) {
		r = keep_from_children(m);
		if (r < 0)
			host_unmap(m);
	}
	return host_say(s, r);
}

static int host_replace(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	int r = map_at(m, q);

	if (r == 0 && q->access == MEMORY_WRITE)
		r = keep_from_children(m);
	return host_say(s, r);
}

static int host_let_go(struct memory *m, struct sentence *s)
{
	void *p = mmap(start_of(m), lead_of(m) + m->size, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return host_say(s, p == MAP_FAILED ? -errno : 0);
}

static int host_read(const struct memory *m, uint64_t offset, void *to, uint64_t n,
		     struct sentence *s)
{
	(void)s;
	memcpy(to, (const char *)m->data + offset, n);
	return 0;
}

static int host_write(struct memory *m, uint64_t offset, const void *from, uint64_t n,
		      struct sentence *s)
{
	if (m->access != MEMORY_WRITE)
		return host_say(s, -EACCES);
	memcpy((char *)m->data + offset, from, n);
	return 0;
}

static int host_digest(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		       uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	(void)s;
	for (uint64_t i = 0; i < n; i++)
		digest_leaf(m->data, data_size, first + i, ret[i]);
	return 0;
}

static int host_synchronize(const struct memory *m, void *stream, struct sentence *s)
{
	(void)m;
	(void)stream;
	(void)s;
	return 0;
}

static int host_mark(struct memory *m, void *stream, struct sentence *s)
{
	return host_synchronize(m, stream, s);
}

static bool host_has_passed(const struct memory *m, bool wait)
{
	(void)m;
	(void)wait;
	return true;
}

const struct memory_kind host_memory = {
	.map = host_map,
	.replace = host_replace,
	.protect = host_replace,
	.let_go = host_let_go,
	.unmap = host_unmap,
	.read = host_read,
	.write = host_write,
	.digest = host_digest,
	.synchronize = host_synchronize,
	.mark = host_mark,
	.has_passed = host_has_passed,
};
