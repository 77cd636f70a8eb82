/*
 * Checks common to all kinds: no operation on unmapped memory, or beyond its end.
 */
#include "libclient/version/memory.h"

#include <errno.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "ipc/digest.h"

static const struct memory_kind *const kinds[] = {
	[WIRE_MEMORY_HOST] = &host_memory,
	[WIRE_MEMORY_CUDA] = &cuda_memory,
	[WIRE_MEMORY_CUDA_IPC] = &cuda_ipc_memory,
};

static const struct memory_kind *kind_of(const struct wire_location *location)
{
	return location->memory < ARRAY_LEN(kinds) ? kinds[location->memory] : NULL;
}

int memory_map(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	struct memory fresh = {
		.kind = kind_of(&q->location),
		.location = q->location,
		.offset = q->offset,
		.size = q->size,
		.access = q->access,
		.device = -1,
	};
	int r;

	if (!fresh.kind || (q->offset && fresh.kind != &host_memory))
		return sentence_set(s, -EOPNOTSUPP,
				    "this libweightd does not support its kind of memory");
	r = fresh.kind->map(&fresh, q, s);
	if (r < 0)
		return r;
	fresh.is_mapped = true;
	*m = fresh;
	return 0;
}

bool memory_is_congruent(const struct memory *m, uint64_t offset)
{
	return !m->offset == !offset && (m->offset - offset) % (uint64_t)sysconf(_SC_PAGESIZE) == 0;
}

int memory_replace(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	int r;

	if (q->location.memory != m->location.memory || q->size != m->size ||
	    !memory_is_congruent(m, q->offset))
		return sentence_set(s, -EBADMSG, "its size or kind has changed");
	r = m->kind->replace(m, q, s);
	if (r < 0)
		return r;
	m->location = q->location;
	m->offset = q->offset;
	m->access = q->access;
	m->is_mapped = true;
	return 0;
}

int memory_check(const struct memory *m, struct sentence *s)
{
	if (!m->is_mapped)
		return sentence_set(s, -EADDRNOTAVAIL,
				    "its memory was released; reacquire it first");
	return m->kind->check ? m->kind->check(m, s) : 0;
}

static int check_range(const struct memory *m, uint64_t offset, uint64_t n, struct sentence *s)
{
	uint64_t end;
	int r = memory_check(m, s);

	if (r < 0)
		return r;
	if (__builtin_add_overflow(offset, n, &end) || end > m->size)
		return sentence_set(s, -ERANGE, "not within its bytes");
	return 0;
}

int memory_protect(struct memory *m, const struct memory_request *q, struct sentence *s)
{
	int r = memory_check(m, s);

	if (r == 0)
		r = m->kind->protect(m, q, s);
	if (r == 0)
		m->access = q->access;
	return r;
}

int memory_let_go(struct memory *m, struct sentence *s)
{
	int r;

	if (!m->is_mapped)
		return 0;
	r = m->kind->let_go(m, s);
	if (r == 0)
		m->is_mapped = false;
	return r;
}

void memory_unmap(struct memory *m)
{
	if (m->kind)
		m->kind->unmap(m);
	*m = (struct memory){0};
}

int memory_read(const struct memory *m, uint64_t offset, void *to, uint64_t n, struct sentence *s)
{
	int r = check_range(m, offset, n, s);

	return r < 0 || n == 0 ? r : m->kind->read(m, offset, to, n, s);
}

int memory_write(struct memory *m, uint64_t offset, const void *from, uint64_t n, struct sentence *s)
{
	int r = check_range(m, offset, n, s);

	return r < 0 || n == 0 ? r : m->kind->write(m, offset, from, n, s);
}

int memory_digest(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		  uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	uint64_t end;
	int r = check_range(m, 0, data_size, s);

	if (r < 0 || n == 0)
		return r;
	if (__builtin_add_overflow(first, n, &end) || end > digest_n_leaves(data_size))
		return sentence_set(s, -ERANGE, "not within its bytes");
	return m->kind->digest(m, data_size, first, n, ret, s);
}

int memory_synchronize(const struct memory *m, void *stream, struct sentence *s)
{
	return m->is_mapped ? m->kind->synchronize(m, stream, s) : 0;
}

int memory_mark(struct memory *m, void *stream, struct sentence *s)
{
	return m->is_mapped ? m->kind->mark(m, stream, s) : 0;
}

bool memory_has_passed(const struct memory *m, bool wait)
{
	return !m->is_mapped || m->kind->has_passed(m, wait);
}
