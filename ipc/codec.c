/*
 * Every message is a row: its size, its descriptors, and what of it can be wrong by itself.
 */
#include "ipc/codec.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/num.h"

static bool is_zero(const void *data, size_t size)
{
	const char *p = data;

	for (size_t i = 0; i < size; i++)
		if (p[i])
			return false;
	return true;
}

/* Terminated, and nothing behind the terminator. */
static bool string_ok(const char *field, size_t size)
{
	size_t n = strnlen(field, size);

	return n < size && is_zero(field + n, size - n);
}

#define STRING_OK(field) string_ok(field, sizeof(field))

static bool target_ok(const char name[WIRE_NAME_SIZE], const char device[WIRE_DEVICE_SIZE])
{
	return string_ok(name, WIRE_NAME_SIZE) && string_ok(device, WIRE_DEVICE_SIZE);
}

static bool greeting_ok(const struct wire_hello *hello)
{
	return STRING_OK(hello->program) && !hello->pad;
}

static bool hello_ok(const struct wire_request *m)
{
	return greeting_ok(&m->hello);
}

static bool create_ok(const struct wire_request *m)
{
	return target_ok(m->create.name, m->create.device) && m->create.cookie &&
	       m->create.timeout_ms <= INT32_MAX && m->create.policy <= WIRE_POLICY_KILL &&
	       !(m->create.flags &
		 ~(WIRE_CREATE_NEW_LAYOUT | WIRE_CREATE_EXCLUSIVE | WIRE_CREATE_REUSABLE |
		   WIRE_CREATE_REPLACE | WIRE_CREATE_IPC | WIRE_CREATE_EARLY));
}

static bool create_image_ok(const struct wire_request *m)
{
	uint64_t offset = m->create_image.data_offset;

	return create_ok(m) && offset > 0 && offset <= WIRE_DATA_OFFSET_MAX;
}

static bool create_owned_ok(const struct wire_request *m)
{
	return create_ok(m) && !m->create_owned.data_offset && !m->create_owned.pad;
}

static bool create_image_owned_ok(const struct wire_request *m)
{
	return create_image_ok(m) && !m->create_owned.pad;
}

static bool files_ok(const struct wire_request *m)
{
	return target_ok(m->files.name, m->files.device);
}

static bool publish_ok(const struct wire_request *m)
{
	return !m->publish.pad && !(m->publish.flags & ~WIRE_PUBLISH_DIGEST);
}

static bool attach_ok(const struct wire_request *m)
{
	return target_ok(m->attach.name, m->attach.device) &&
	       !(m->attach.flags & ~(WIRE_ATTACH_CHECK_LAYOUT | WIRE_ATTACH_OWNER)) &&
	       (m->attach.flags & WIRE_ATTACH_OWNER || !m->attach.owner);
}

static bool hello_attach_ok(const struct wire_request *m)
{
	return attach_ok(m) && greeting_ok(&m->hello_attach.hello);
}

static bool wait_ok(const struct wire_request *m)
{
	return target_ok(m->wait.name, m->wait.device) && m->wait.timeout_ms <= INT32_MAX;
}

static bool list_ok(const struct wire_request *m)
{
	return target_ok(m->list.name, m->list.device) && !(m->list.flags & ~WIRE_LIST_KNOWN);
}

static bool drop_ok(const struct wire_request *m)
{
	return target_ok(m->drop.name, m->drop.device);
}

static bool rollback_ok(const struct wire_request *m)
{
	return target_ok(m->rollback.name, m->rollback.device);
}

static bool access_ok(const struct wire_request *m)
{
	return target_ok(m->access.name, m->access.device) &&
	       !(m->access.flags & ~(WIRE_ACCESS_MODE | WIRE_ACCESS_UID | WIRE_ACCESS_GID));
}

static bool pause_ok(const struct wire_request *m)
{
	return m->pause.timeout_ms <= INT32_MAX;
}

static bool events_ok(const struct wire_request *m)
{
	return m->events.timeout_ms <= INT32_MAX;
}

static bool layout_ok(const struct wire_request *m)
{
	return target_ok(m->layout.name, m->layout.device);
}

static bool job_create_ok(const struct wire_request *m)
{
	return STRING_OK(m->job_create.name) && !m->job_create.pad;
}

/* The caller must check the contents of kinds and the sizes. */
static bool job_join_ok(const struct wire_request *m)
{
	const struct wire_job_join *join = &m->job_join;
	size_t used = (size_t)join->n_parts * sizeof(join->parts[0]);

	if (!STRING_OK(join->name) || join->n_parts > WIRE_JOB_PARTS_MAX)
		return false;
	for (unsigned i = 0; i < join->n_parts; i++)
		if (!STRING_OK(join->parts[i].kind))
			return false;
	return is_zero((const char *)join->parts + used, sizeof(join->parts) - used);
}

static bool job_part_ok(const struct wire_request *m)
{
	return !m->job_part.pad;
}

static bool job_description_ok(const struct wire_request *m)
{
	return STRING_OK(m->job_description.name);
}

static bool job_leave_ok(const struct wire_request *m)
{
	return !m->job_leave.pad && !(m->job_leave.flags & ~WIRE_LEAVE_DONE);
}

static bool job_remove_ok(const struct wire_request *m)
{
	return STRING_OK(m->job_remove.name);
}

static bool job_view_ok(const struct wire_request *m)
{
	return STRING_OK(m->job_view.name);
}

/* The caller must check the nodes. */
static bool numa_ok(const struct wire_request *m)
{
	bool has_nodes = !is_zero((const char *)m->numa.nodes, sizeof(m->numa.nodes));

	return !m->numa.pad && m->numa.mode < WIRE_NUMA_END &&
	       (has_nodes ? m->numa.mode != WIRE_NUMA_DEFAULT
			  : m->numa.mode == WIRE_NUMA_DEFAULT ||
				    m->numa.mode == WIRE_NUMA_INTERLEAVE);
}

static const struct {
	uint32_t size;
	uint32_t n_fds;
	bool (*ok)(const struct wire_request *m);
} requests[WIRE_OP_END] = {
	[WIRE_HELLO] = {sizeof(struct wire_hello), 0, hello_ok},
	[WIRE_PING] = {0, 0, NULL},
	[WIRE_CREATE] = {sizeof(struct wire_create), 1, create_ok},
	[WIRE_PUBLISH] = {sizeof(struct wire_publish), 0, publish_ok},
	[WIRE_ABORT] = {sizeof(struct wire_id), 0, NULL},
	[WIRE_ATTACH] = {sizeof(struct wire_attach), 0, attach_ok},
	[WIRE_DETACH] = {sizeof(struct wire_id), 0, NULL},
	[WIRE_WAIT] = {sizeof(struct wire_wait), 0, wait_ok},
	[WIRE_LIST] = {sizeof(struct wire_list), 0, list_ok},
	[WIRE_DROP] = {sizeof(struct wire_drop), 0, drop_ok},
	[WIRE_RESUME] = {sizeof(struct wire_id), 0, NULL},
	[WIRE_RENEW] = {sizeof(struct wire_renew), 0, NULL},
	[WIRE_ROLLBACK] = {sizeof(struct wire_rollback), 0, rollback_ok},
	[WIRE_ACCESS] = {sizeof(struct wire_access), 0, access_ok},
	[WIRE_PAUSE] = {sizeof(struct wire_pause), 0, pause_ok},
	[WIRE_EVENTS] = {sizeof(struct wire_events), 0, events_ok},
	[WIRE_STAT] = {0, 0, NULL},
	[WIRE_LAYOUT] = {sizeof(struct wire_layout), 0, layout_ok},
	[WIRE_CREATE_IMAGE] = {sizeof(struct wire_create_image), 1, create_image_ok},
	[WIRE_PROOF] = {sizeof(struct wire_id), 0, NULL},
	[WIRE_SET_FILES] = {sizeof(struct wire_id), 1, NULL},
	[WIRE_FILES] = {sizeof(struct wire_files), 0, files_ok},
	[WIRE_JOB_CREATE] = {sizeof(struct wire_job_create), 0, job_create_ok},
	[WIRE_JOB_JOIN] = {sizeof(struct wire_job_join), 1, job_join_ok},
	[WIRE_JOB_PART] = {sizeof(struct wire_job_index), 0, job_part_ok},
	[WIRE_JOB_DESCRIPTION] = {sizeof(struct wire_job_key), 0, job_description_ok},
	[WIRE_JOB_LEAVE] = {sizeof(struct wire_job_leave), 0, job_leave_ok},
	[WIRE_JOB_REMOVE] = {sizeof(struct wire_job_remove), 0, job_remove_ok},
	[WIRE_JOB_VIEW] = {sizeof(struct wire_job_view), 0, job_view_ok},
	[WIRE_CREATE_OWNED] = {sizeof(struct wire_create_owned), 1, create_owned_ok},
	[WIRE_CREATE_IMAGE_OWNED] = {sizeof(struct wire_create_owned), 1, create_image_owned_ok},
	[WIRE_HELLO_ATTACH] = {sizeof(struct wire_hello_attach), 0, hello_attach_ok},
	[WIRE_PROVIDE] = {sizeof(struct wire_provide), 0, NULL},
	[WIRE_PUBLISH_SHARED] = {sizeof(struct wire_publish_shared), 0, NULL},
	[WIRE_NUMA] = {sizeof(struct wire_numa), 0, numa_ok},
};

static bool error_reply_ok(const struct wire_reply *m)
{
	return STRING_OK(m->error.text) && !m->error.pad && m->error.error < 0 &&
	       m->error.error > -4096;
}

static bool hello_reply_ok(const struct wire_reply *m)
{
	return STRING_OK(m->hello.release);
}

static bool ping_reply_ok(const struct wire_reply *m)
{
	return STRING_OK(m->ping.release) && !m->ping.pad;
}

static bool location_ok(const struct wire_location *l, uint64_t slot_size)
{
	if (l->memory >= WIRE_MEMORY_END || l->pad || l->map_size < slot_size)
		return false;
	if (l->memory != WIRE_MEMORY_CUDA_IPC && !is_zero(l->handle, sizeof(l->handle)))
		return false;
	return l->memory != WIRE_MEMORY_HOST || is_zero(l->uuid, sizeof(l->uuid));
}

static bool buffer_flags_ok(uint32_t flags)
{
	return !(flags & ~(WIRE_BUFFER_EXCLUSIVE | WIRE_BUFFER_REUSABLE | WIRE_BUFFER_IPC));
}

static bool create_reply_ok(const struct wire_reply *m)
{
	return m->create.n_parts <= m->create.slot_size / WIRE_PART_SIZE &&
	       location_ok(&m->create.location, m->create.slot_size) &&
	       buffer_flags_ok(m->create.flags);
}

static bool layout_reply_ok(const struct wire_reply *m)
{
	return m->layout.data_offset <= WIRE_DATA_OFFSET_MAX && buffer_flags_ok(m->layout.flags);
}

static bool version_flags_ok(uint32_t flags)
{
	return !(flags & ~(WIRE_VERSION_DIGEST | WIRE_VERSION_MUTABLE | WIRE_VERSION_IMAGE |
			   WIRE_VERSION_FILES));
}

static bool attach_reply_ok(const struct wire_reply *m)
{
	return location_ok(&m->attach.location, m->attach.slot_size) &&
	       version_flags_ok(m->attach.flags) && m->attach.data_size <= m->attach.slot_size;
}

static bool hello_attach_reply_ok(const struct wire_reply *m)
{
	return attach_reply_ok(m) && STRING_OK(m->hello_attach.hello.release);
}

static bool hello_error_ok(const struct wire_reply *m)
{
	return error_reply_ok(m) && STRING_OK(m->hello_error.hello.release);
}

static bool pause_reply_ok(const struct wire_reply *m)
{
	return !m->pause.pad && version_flags_ok(m->pause.flags);
}

static bool list_reply_ok(const struct wire_reply *m)
{
	uint64_t used = (uint64_t)m->list.n_records * m->list.record_size;

	return used <= sizeof(m->list.records) && !(m->list.n_records && !m->list.record_size) &&
	       is_zero(m->list.records + used, sizeof(m->list.records) - used);
}

static bool job_view_reply_ok(const struct wire_reply *m)
{
	return !m->job_view.pad && m->job_view.n_ranks >= 1 &&
	       m->job_view.n_ranks <= WIRE_JOB_RANKS_MAX;
}

struct reply_row {
	uint32_t size;
	uint32_t n_fds;
	bool (*ok)(const struct wire_reply *m);
};

static const struct reply_row replies[WIRE_OP_END] = {
	[WIRE_HELLO] = {sizeof(struct wire_hello_reply), 0, hello_reply_ok},
	[WIRE_PING] = {sizeof(struct wire_ping_reply), 0, ping_reply_ok},
	[WIRE_CREATE] = {sizeof(struct wire_create_reply), 2, create_reply_ok},
	[WIRE_PUBLISH] = {sizeof(struct wire_publish_reply), 0, NULL},
	[WIRE_ABORT] = {0, 0, NULL},
	[WIRE_ATTACH] = {sizeof(struct wire_attach_reply), 3, attach_reply_ok},
	[WIRE_DETACH] = {0, 0, NULL},
	[WIRE_WAIT] = {sizeof(struct wire_wait_reply), 0, NULL},
	[WIRE_LIST] = {sizeof(struct wire_list_reply), 0, list_reply_ok},
	[WIRE_DROP] = {0, 0, NULL},
	[WIRE_RESUME] = {sizeof(struct wire_resume_reply), 0, NULL},
	[WIRE_RENEW] = {sizeof(struct wire_renew_reply), 0, NULL},
	[WIRE_ROLLBACK] = {sizeof(struct wire_rollback_reply), 0, NULL},
	[WIRE_ACCESS] = {0, 0, NULL},
	[WIRE_PAUSE] = {sizeof(struct wire_pause_reply), 0, pause_reply_ok},
	[WIRE_EVENTS] = {sizeof(struct wire_list_reply), 0, list_reply_ok},
	[WIRE_STAT] = {sizeof(struct wire_stat_reply), 0, NULL},
	[WIRE_LAYOUT] = {sizeof(struct wire_layout_reply), 1, layout_reply_ok},
	[WIRE_CREATE_IMAGE] = {sizeof(struct wire_create_reply), 3, create_reply_ok},
	[WIRE_PROOF] = {0, 2, NULL},
	[WIRE_SET_FILES] = {0, 0, NULL},
	[WIRE_FILES] = {sizeof(struct wire_files_reply), 1, NULL},
	[WIRE_JOB_CREATE] = {0, 0, NULL},
	[WIRE_JOB_JOIN] = {sizeof(struct wire_job_join_reply), 0, NULL},
	[WIRE_JOB_PART] = {0, 1, NULL},
	[WIRE_JOB_DESCRIPTION] = {0, 1, NULL},
	[WIRE_JOB_LEAVE] = {0, 0, NULL},
	[WIRE_JOB_REMOVE] = {0, 0, NULL},
	[WIRE_JOB_VIEW] = {sizeof(struct wire_job_view_reply), 2, job_view_reply_ok},
	[WIRE_CREATE_OWNED] = {sizeof(struct wire_create_reply), 2, create_reply_ok},
	[WIRE_CREATE_IMAGE_OWNED] = {sizeof(struct wire_create_reply), 3, create_reply_ok},
	[WIRE_HELLO_ATTACH] = {sizeof(struct wire_hello_attach_reply), 3, hello_attach_reply_ok},
	[WIRE_PROVIDE] = {sizeof(struct wire_provide_reply), 0, NULL},
	[WIRE_PUBLISH_SHARED] = {sizeof(struct wire_publish_reply), 0, NULL},
	[WIRE_NUMA] = {0, 0, NULL},
};

/* A row, also for the replies that say that a request failed. */
static const struct reply_row *reply_row(unsigned op)
{
	static const struct reply_row error = {sizeof(struct wire_error), 0, error_reply_ok};
	static const struct reply_row hello_error = {sizeof(struct wire_hello_error), 0,
						     hello_error_ok};

	if (op == WIRE_ERROR)
		return &error;
	if (op == WIRE_HELLO_ERROR)
		return &hello_error;
	return op >= WIRE_HELLO && op < WIRE_OP_END ? &replies[op] : NULL;
}

int codec_decode_request(const void *data, size_t size, unsigned n_fds, struct wire_request *ret)
{
	struct wire_request m = {0};

	if (size < sizeof(m.header) || size > sizeof(m))
		return -EBADMSG;
	memcpy(&m, data, size);
	if (m.header.size != size || m.header.n_fds != n_fds)
		return -EBADMSG;
	if (m.header.op < WIRE_HELLO || m.header.op >= WIRE_OP_END)
		return -EBADMSG;
	if (size != sizeof(m.header) + requests[m.header.op].size ||
	    n_fds != requests[m.header.op].n_fds)
		return -EBADMSG;
	if (requests[m.header.op].ok && !requests[m.header.op].ok(&m))
		return -EBADMSG;
	*ret = m;
	return 0;
}

int codec_decode_reply(const void *data, size_t size, unsigned n_fds, struct wire_reply *ret)
{
	const struct reply_row *row;
	struct wire_reply m = {0};

	if (size < sizeof(m.header) || size > sizeof(m))
		return -EBADMSG;
	memcpy(&m, data, size);
	if (m.header.size != size || m.header.n_fds != n_fds || !(m.header.op & WIRE_REPLY))
		return -EBADMSG;
	row = reply_row(m.header.op & (unsigned)~WIRE_REPLY);
	if (!row || size != sizeof(m.header) + row->size || n_fds != row->n_fds)
		return -EBADMSG;
	if (row->ok && !row->ok(&m))
		return -EBADMSG;
	*ret = m;
	return 0;
}

size_t codec_seal_request(struct wire_request *m, enum wire_op op, uint64_t serial)
{
	assert(op >= WIRE_HELLO && op < WIRE_OP_END);
	m->header = (struct wire_header){
		.size = (uint32_t)sizeof(m->header) + requests[op].size,
		.op = (uint16_t)op,
		.n_fds = (uint16_t)requests[op].n_fds,
		.serial = serial,
	};
	return m->header.size;
}

size_t codec_seal_reply(struct wire_reply *m, enum wire_op op, uint64_t serial)
{
	const struct reply_row *row = reply_row(op);

	assert(row);
	m->header = (struct wire_header){
		.size = (uint32_t)sizeof(m->header) + row->size,
		.op = (uint16_t)((unsigned)op | WIRE_REPLY),
		.n_fds = (uint16_t)row->n_fds,
		.serial = serial,
	};
	return m->header.size;
}

int codec_put_string(char *field, size_t field_size, const char *s)
{
	size_t n = strlen(s);

	if (n >= field_size)
		return -ENAMETOOLONG;
	memset(field, 0, field_size);
	memcpy(field, s, n);
	return 0;
}
