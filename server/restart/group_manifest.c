#include "server/restart/group_manifest.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ipc/hash.h"
#include "server/base/fault.h"
#include "server/restart/manifest_memory.h"

static void record_checksum(const struct group_manifest_record *r, uint8_t ret[WIRE_HASH_SIZE])
{
	hash128((const char *)r + sizeof(r->checksum), sizeof(*r) - sizeof(r->checksum), ret);
}

int group_manifest_new(uint64_t group, struct group_manifest **ret, int *ret_fd)
{
	struct group_manifest *m;
	void *memory;
	int r = manifest_memory_new("weightd-job-manifest", GROUP_MANIFEST_SIZE, &memory, ret_fd);

	if (r < 0)
		return r;
	m = memory;
	m->magic = GROUP_MANIFEST_MAGIC;
	m->abi = GROUP_MANIFEST_ABI;
	m->group = group;
	(void)group_manifest_begin(m);
	group_manifest_commit(m);
	*ret = m;
	return 0;
}

struct group_manifest *group_manifest_free(struct group_manifest *m)
{
	manifest_memory_free(m, GROUP_MANIFEST_SIZE);
	return NULL;
}

static bool parts_ok(const struct group_manifest_record *r)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < r->n_parts; i++)
		if (!memchr(r->parts[i].kind, '\0', sizeof(r->parts[i].kind)) || !r->parts[i].size ||
		    __builtin_add_overflow(sum, r->parts[i].size, &sum) || sum > INT64_MAX)
			return false;
	return true;
}

/* Checks what the checksum cannot: that the fields make sense. */
static bool record_ok(const struct group_manifest_record *r)
{
	bool ready = r->flags & GROUP_MANIFEST_READY;

	return r->name[0] && memchr(r->name, '\0', sizeof(r->name)) && r->n_ranks > 0 &&
	       r->n_ranks <= WIRE_JOB_RANKS_MAX && r->linger_ms >= 0 &&
	       r->n_parts <= WIRE_JOB_PARTS_MAX && (!ready || (r->n_parts > 0 && r->description)) &&
	       parts_ok(r);
}

static int manifest_check(const struct group_manifest *m, uint64_t group, uint32_t *ret_abi)
{
	const struct group_manifest_record *r;
	uint8_t sum[WIRE_HASH_SIZE];

	if (m->magic != GROUP_MANIFEST_MAGIC || m->group != group)
		return -EBADMSG;
	if (m->abi != GROUP_MANIFEST_ABI) {
		*ret_abi = m->abi;
		return -EPROTONOSUPPORT;
	}
	r = group_manifest_current(m);
	if (r->serial != atomic_load(&((struct group_manifest *)m)->active))
		return -EBADMSG;
	record_checksum(r, sum);
	return memcmp(sum, r->checksum, sizeof(sum)) || !record_ok(r) ? -EBADMSG : 0;
}

int group_manifest_open(int fd, uint64_t group, struct group_manifest **ret, uint32_t *ret_abi)
{
	void *memory;
	int r = manifest_memory_open(fd, GROUP_MANIFEST_SIZE, &memory);

	if (r < 0)
		return r;
	r = manifest_check(memory, group, ret_abi);
	if (r < 0) {
		(void)group_manifest_free(memory);
		return r;
	}
	*ret = memory;
	return 0;
}

const struct group_manifest_record *group_manifest_current(const struct group_manifest *m)
{
	return &m->records[atomic_load(&((struct group_manifest *)m)->active) & 1];
}

struct group_manifest_record *group_manifest_begin(struct group_manifest *m)
{
	uint64_t serial = group_manifest_current(m)->serial + 1;
	struct group_manifest_record *r = &m->records[serial & 1];

	*r = (struct group_manifest_record){.serial = serial};
	return r;
}

void group_manifest_commit(struct group_manifest *m)
{
	struct group_manifest_record *r = &m->records[(group_manifest_current(m)->serial + 1) & 1];

	fault_point("job-record");
	record_checksum(r, r->checksum);
	fault_point("job-checksum");
	atomic_store(&m->active, r->serial);
	fault_point("job-commit");
}
