#include "server/restart/manifest.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ipc/hash.h"
#include "ipc/head.h"
#include "server/base/fault.h"
#include "server/restart/manifest_memory.h"

static void manifest_checksum(const struct manifest_record *r, uint8_t ret[WIRE_HASH_SIZE])
{
	size_t size = offsetof(struct manifest_record, versions) +
		      r->n_versions * sizeof(r->versions[0]);

	hash128((const char *)r + sizeof(r->checksum), size - sizeof(r->checksum), ret);
}

int manifest_new(uint64_t buffer, struct manifest **ret, int *ret_fd)
{
	struct manifest *m;
	void *memory;
	int r = manifest_memory_new("weightd-manifest", MANIFEST_SIZE, &memory, ret_fd);

	if (r < 0)
		return r;
	m = memory;
	m->magic = MANIFEST_MAGIC;
	m->abi = MANIFEST_ABI_FLAT;
	m->buffer = buffer;
	(void)manifest_begin(m);
	manifest_commit(m);
	*ret = m;
	return 0;
}

struct manifest *manifest_free(struct manifest *m)
{
	manifest_memory_free(m, MANIFEST_SIZE);
	return NULL;
}

static bool string_ok(const char *s, size_t size)
{
	return s[0] && memchr(s, '\0', size);
}

/* Checks what the checksum cannot: that the fields make sense. */
static bool record_ok(const struct manifest_record *r)
{
	return string_ok(r->name, sizeof(r->name)) && string_ok(r->device, sizeof(r->device)) &&
	       r->state <= HEAD_GONE && r->current < r->next_version;
}

static int manifest_check(const struct manifest *m, uint64_t buffer, uint32_t *ret_abi)
{
	const struct manifest_record *r;
	uint8_t sum[WIRE_HASH_SIZE];
	uint64_t serial;

	if (m->magic != MANIFEST_MAGIC || m->buffer != buffer)
		return -EBADMSG;
	if (m->abi != MANIFEST_ABI && m->abi != MANIFEST_ABI_FLAT) {
		*ret_abi = m->abi;
		return -EPROTONOSUPPORT;
	}
	serial = atomic_load(&((struct manifest *)m)->active);
	r = &m->records[serial & 1];
	if (r->serial != serial || r->n_versions > MANIFEST_VERSIONS)
		return -EBADMSG;
	manifest_checksum(r, sum);
	return memcmp(sum, r->checksum, sizeof(sum)) || !record_ok(r) ? -EBADMSG : 0;
}

int manifest_open(int fd, uint64_t buffer, struct manifest **ret, uint32_t *ret_abi)
{
	void *memory;
	int r = manifest_memory_open(fd, MANIFEST_SIZE, &memory);

	if (r < 0)
		return r;
	r = manifest_check(memory, buffer, ret_abi);
	if (r < 0) {
		(void)manifest_free(memory);
		return r;
	}
	*ret = memory;
	return 0;
}

const struct manifest_record *manifest_current(const struct manifest *m)
{
	return &m->records[atomic_load(&((struct manifest *)m)->active) & 1];
}

struct manifest_companions manifest_companions(const struct manifest *m,
					       const struct manifest_companions *c)
{
	bool has_them = m->abi != MANIFEST_ABI_FLAT && !(manifest_current(m)->flags & MANIFEST_IPC);

	return has_them ? *c : (struct manifest_companions){0};
}

void manifest_set_companions(struct manifest *m, struct manifest_companions *ret,
			     struct manifest_companions c)
{
	*ret = c;
	if (c.data_offset || c.files || c.other_files)
		m->abi = MANIFEST_ABI; /* before the commit: the record in force has no companions */
}

struct manifest_record *manifest_begin(struct manifest *m)
{
	const struct manifest_record *old = manifest_current(m);
	struct manifest_record *r = &m->records[(old->serial + 1) & 1];

	memcpy(r, old, offsetof(struct manifest_record, n_versions));
	r->serial = old->serial + 1;
	r->n_versions = 0;
	r->writer = (struct manifest_writer){0};
	return r;
}

void manifest_commit(struct manifest *m)
{
	struct manifest_record *r = &m->records[(manifest_current(m)->serial + 1) & 1];

	fault_point("manifest-record");
	manifest_checksum(r, r->checksum);
	fault_point("manifest-checksum");
	atomic_store(&m->active, r->serial);
	fault_point("manifest-commit");
}
