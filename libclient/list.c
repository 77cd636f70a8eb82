/*
 * Listings: the server's records, copied into structs of this library's release.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/connection/call.h"
#include "libclient/job_token.h"
#include "libclient/target.h"
#include "weightd.h"

struct weightd_list {
	enum wire_list_kind kind;
	size_t n;
	void *records; /* the server's; strings point into it */
	void *infos; /* n of the library's structs */
};

void weightd_list_free(struct weightd_list *l)
{
	if (!l)
		return;
	free(l->records);
	free(l->infos);
	free(l);
}
CLEANUP_POINTER(struct weightd_list, weightd_list_free);

/* Appends the records of a reply to those there are. */
static int list_append_reply(struct weightd_list *l, const struct wire_list_reply *reply,
			     size_t record_size)
{
	char *records = reallocarray(l->records, l->n + reply->n_records + 1, record_size);

	if (!records)
		return -ENOMEM;
	memcpy(records + l->n * record_size, reply->records, reply->n_records * record_size);
	l->records = records;
	l->n += reply->n_records;
	return 0;
}

/* Asks page by page, and collects the records in `l`. */
static int list_fetch(struct weightd *w, enum wire_list_kind kind, uint32_t flags, const char *name,
		      const char *device, size_t record_size, struct weightd_list *l)
{
	uint64_t after = 0;

	do {
		struct client_call call = {
			.op = WIRE_LIST,
			.request.list = {.kind = kind, .flags = flags, .after = after},
		};
		const struct wire_list_reply *reply = &call.reply.list;
		int r = 0;

		if (name)
			r = client_put_target(w, name, device, call.request.list.name,
					      call.request.list.device);
		if (r == 0)
			r = client_call_run(w, &call);
		if (r < 0)
			return r;
		if ((reply->n_records && reply->record_size != record_size) ||
		    (reply->next && reply->next <= after))
			r = -EBADMSG;
		else
			r = list_append_reply(l, reply, record_size);
		if (r < 0)
			return sentence_set(&w->sentence, r, "weightd's list cannot be read: %s",
					    strerror(-r));
		after = reply->next;
	} while (after);
	return 0;
}

/* Terminates a string that the server did not terminate. */
#define END_STRING(field) ((field)[sizeof(field) - 1] = '\0')

static enum weightd_memory memory_of(const struct wire_buffer_record *rec)
{
	if (!strcmp(rec->device, "host"))
		return WEIGHTD_MEMORY_HOST;
	return rec->flags & WIRE_BUFFER_IPC ? WEIGHTD_MEMORY_CUDA_IPC : WEIGHTD_MEMORY_CUDA;
}

static void fill_buffer(void *record, void *ret)
{
	struct wire_buffer_record *rec = record;
	struct weightd_buffer_info *info = ret;

	END_STRING(rec->name);
	END_STRING(rec->device);
	*info = (struct weightd_buffer_info){
		.size = sizeof(*info),
		.name = rec->name,
		.device = rec->device,
		.state = (enum weightd_state)rec->state,
		.writing = rec->writing,
		.uid = rec->uid,
		.gid = rec->gid,
		.mode = rec->mode,
		.keep = rec->keep,
		.n_versions = rec->n_versions,
		.n_readers = rec->n_leases,
		.version = rec->version,
		.n_tensors = rec->n_tensors,
		.n_bytes = rec->data_size,
		.slot_bytes = rec->slot_bytes,
		.huge_bytes = rec->huge_bytes,
		.published_ns = rec->published_ns,
		.newest = rec->newest,
		.exclusive = rec->flags & WIRE_BUFFER_EXCLUSIVE,
		.reusable = rec->flags & WIRE_BUFFER_REUSABLE,
		.memory = memory_of(rec),
	};
	memcpy(info->layout_hash, rec->layout_hash, sizeof(info->layout_hash));
	memcpy(info->digest, rec->digest, sizeof(info->digest));
}

static void fill_version(void *record, void *ret)
{
	const struct wire_version_record *rec = record;
	struct weightd_version_info *info = ret;

	*info = (struct weightd_version_info){
		.size = sizeof(*info),
		.version = rec->version,
		.n_tensors = rec->n_tensors,
		.n_bytes = rec->data_size,
		.slot_bytes = rec->slot_bytes,
		.huge_bytes = rec->huge_bytes,
		.published_ns = rec->published_ns,
		.n_readers = rec->n_leases,
		.uid = rec->uid,
		.current = rec->current,
		.pid = rec->pid,
		.end = (enum weightd_end)rec->why,
		.ended_ns = rec->ended_ns,
		.image = rec->flags & WIRE_VERSION_IMAGE,
		.has_files = rec->flags & WIRE_VERSION_FILES,
	};
	memcpy(info->layout_hash, rec->layout_hash, sizeof(info->layout_hash));
	memcpy(info->digest, rec->digest, sizeof(info->digest));
}

static void fill_slot(void *record, void *ret)
{
	struct wire_slot_record *rec = record;

	END_STRING(rec->name);
	END_STRING(rec->device);
	*(struct weightd_slot_info *)ret = (struct weightd_slot_info){
		.size = sizeof(struct weightd_slot_info),
		.name = rec->name,
		.device = rec->device,
		.slot = rec->slot,
		.version = rec->version,
		.n_bytes = rec->size,
		.allocated = rec->allocated,
		.huge_bytes = rec->huge_bytes,
		.state = (enum weightd_slot_state)rec->state,
		.n_readers = rec->n_leases,
		.uid = rec->uid,
		.removed = rec->removed,
	};
}

static void fill_user(void *record, void *ret)
{
	const struct wire_user_record *rec = record;

	*(struct weightd_user_info *)ret = (struct weightd_user_info){
		.size = sizeof(struct weightd_user_info),
		.uid = rec->uid,
		.n_connections = rec->used[WIRE_CHARGE_CONNECTIONS],
		.max_connections = rec->limit[WIRE_CHARGE_CONNECTIONS],
		.n_readers = rec->used[WIRE_CHARGE_LEASES],
		.max_readers = rec->limit[WIRE_CHARGE_LEASES],
		.n_buffers = rec->used[WIRE_CHARGE_BUFFERS],
		.max_buffers = rec->limit[WIRE_CHARGE_BUFFERS],
		.n_versions = rec->used[WIRE_CHARGE_VERSIONS],
		.max_versions = rec->limit[WIRE_CHARGE_VERSIONS],
		.n_bytes = rec->used[WIRE_CHARGE_BYTES],
		.max_bytes = rec->limit[WIRE_CHARGE_BYTES],
		.n_descriptors = rec->used[WIRE_CHARGE_DESCRIPTORS],
		.max_descriptors = rec->limit[WIRE_CHARGE_DESCRIPTORS],
	};
}

static void fill_device(void *record, void *ret)
{
	struct wire_device_record *rec = record;

	END_STRING(rec->device);
	END_STRING(rec->name);
	END_STRING(rec->why);
	*(struct weightd_device_info *)ret = (struct weightd_device_info){
		.size = sizeof(struct weightd_device_info),
		.device = rec->device,
		.name = rec->name,
		.why = rec->why,
		.total = rec->total,
		.free = rec->free,
		.ours = rec->ours,
		.granularity = rec->granularity,
		.index = rec->index,
		.driver = rec->driver,
		.capability = rec->capability,
		.vmm = rec->flags & WIRE_DEVICE_CUDA,
		.ipc = rec->flags & WIRE_DEVICE_IPC,
		.fabric = rec->flags & WIRE_DEVICE_FABRIC,
		.rdma = rec->flags & WIRE_DEVICE_RDMA,
		.mig = rec->flags & WIRE_DEVICE_MIG,
	};
}

static void fill_job(void *record, void *ret)
{
	struct wire_job_record *rec = record;

	END_STRING(rec->name);
	*(struct weightd_job_info *)ret = (struct weightd_job_info){
		.size = sizeof(struct weightd_job_info),
		.name = rec->name,
		.n_bytes = rec->n_bytes,
		.step = rec->step,
		.created_ns = rec->created_ns,
		.vacant_ns = rec->vacant_ns,
		.linger_ms = rec->linger_ms,
		.uid = rec->uid,
		.gid = rec->gid,
		.n_ranks = rec->n_ranks,
		.n_present = rec->n_present,
		.n_done = rec->n_done,
	};
}

static void fill_cost(void *record, void *ret)
{
	const struct wire_cost_record *rec = record;

	*(struct weightd_cost_info *)ret = (struct weightd_cost_info){
		.size = sizeof(struct weightd_cost_info),
		.uid = rec->uid,
		.n_spans = WIRE_COST_SPANS,
		.n_requests = rec->n_requests,
		.loop_ns = rec->loop_ns,
		.worker_ns = rec->worker_ns,
		.longest_ns = rec->longest_ns,
		.held_bytes = rec->held_bytes,
		.checking_bytes = rec->checking_bytes,
		.n_refused = rec->n_refused,
		.span_ns = WIRE_COST_SPAN_NS,
		.answered = rec->answered,
	};
}

static int by_name_and_device(const void *a, const void *b)
{
	const struct wire_buffer_record *x = a, *y = b;
	int order = strncmp(x->name, y->name, sizeof(x->name));

	return order ? order : strncmp(x->device, y->device, sizeof(x->device));
}

static int by_version(const void *a, const void *b)
{
	const struct wire_version_record *x = a, *y = b;

	return x->version < y->version ? -1 : x->version > y->version;
}

static int by_name(const void *a, const void *b)
{
	const struct wire_job_record *x = a, *y = b;

	return strncmp(x->name, y->name, sizeof(x->name));
}

static void fill_holder(void *record, void *ret)
{
	struct wire_holder_record *rec = record;

	END_STRING(rec->name);
	END_STRING(rec->device);
	*(struct weightd_holder_info *)ret = (struct weightd_holder_info){
		.size = sizeof(struct weightd_holder_info),
		.uid = rec->uid,
		.n_versions = rec->n_versions,
		.n_bytes = rec->n_bytes,
		.max_bytes = rec->limit,
		.over = rec->over,
		.name = rec->name,
		.device = rec->device,
		.version = rec->version,
		.pid = rec->pid,
		.since_ns = rec->since_ns,
	};
}

static const struct {
	size_t record_size, info_size;
	void (*fill)(void *record, void *ret);
	int (*order)(const void *a, const void *b); /* order of the records; NULL: the server's */
} kinds[] = {
	[WIRE_LIST_BUFFERS] = {sizeof(struct wire_buffer_record),
			       sizeof(struct weightd_buffer_info), fill_buffer, by_name_and_device},
	[WIRE_LIST_VERSIONS] = {sizeof(struct wire_version_record),
				sizeof(struct weightd_version_info), fill_version, by_version},
	[WIRE_LIST_HISTORY] = {sizeof(struct wire_version_record),
			       sizeof(struct weightd_version_info), fill_version, by_version},
	[WIRE_LIST_SLOTS] = {sizeof(struct wire_slot_record), sizeof(struct weightd_slot_info),
			     fill_slot, NULL},
	[WIRE_LIST_USERS] = {sizeof(struct wire_user_record), sizeof(struct weightd_user_info),
			     fill_user, NULL},
	[WIRE_LIST_DEVICES] = {sizeof(struct wire_device_record),
			       sizeof(struct weightd_device_info), fill_device, NULL},
	[WIRE_LIST_JOBS] = {sizeof(struct wire_job_record), sizeof(struct weightd_job_info),
			    fill_job, by_name},
	[WIRE_LIST_HOLDERS] = {sizeof(struct wire_holder_record),
			       sizeof(struct weightd_holder_info), fill_holder, NULL},
	[WIRE_LIST_COSTS] = {sizeof(struct wire_cost_record), sizeof(struct weightd_cost_info),
			     fill_cost, NULL},
};

/* False for a list that an earlier server does not have, and that would be empty there. */
static bool is_answered(const struct weightd *w, enum wire_list_kind kind)
{
	if (kind == WIRE_LIST_COSTS)
		return w->has_costs;
	return kind != WIRE_LIST_HOLDERS || w->has_holders;
}

static int list_new(struct weightd *w, enum wire_list_kind kind, uint32_t flags, const char *name,
		    const char *device, struct weightd_list **ret)
{
	cleanup(weightd_list_freep) struct weightd_list *l = calloc(1, sizeof(*l));
	const size_t record_size = kinds[kind].record_size, info_size = kinds[kind].info_size;
	int r;

	if (!l)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	l->kind = kind;
	r = is_answered(w, kind) ? list_fetch(w, kind, flags, name, device, record_size, l) : 0;
	if (r < 0)
		return r;
	l->infos = calloc(l->n + 1, info_size);
	if (!l->infos)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	if (kinds[kind].order)
		qsort(l->records, l->n, record_size, kinds[kind].order);
	for (size_t i = 0; i < l->n; i++)
		kinds[kind].fill((char *)l->records + i * record_size,
				 (char *)l->infos + i * info_size);
	*ret = take_ptr(l);
	return 0;
}

int weightd_list(struct weightd *w, const char *name, struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_BUFFERS, 0, name, NULL, ret);
}

int weightd_list_versions(struct weightd *w, const char *name, const char *device,
			  struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_VERSIONS, 0, name, device, ret);
}

int weightd_list_history(struct weightd *w, const char *name, const char *device,
			 struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_HISTORY, 0, name, device, ret);
}

int weightd_list_slots(struct weightd *w, const char *name, struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_SLOTS, 0, name, NULL, ret);
}

int weightd_list_users(struct weightd *w, struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_USERS, 0, NULL, NULL, ret);
}

int weightd_list_costs(struct weightd *w, struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_COSTS, 0, NULL, NULL, ret);
}

int weightd_list_holders(struct weightd *w, struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_HOLDERS, 0, NULL, NULL, ret);
}

int weightd_list_devices(struct weightd *w, bool now, struct weightd_list **ret)
{
	return list_new(w, WIRE_LIST_DEVICES, now ? 0 : WIRE_LIST_KNOWN, NULL, NULL, ret);
}

int weightd_list_jobs(struct weightd *w, struct weightd_list **ret)
{
	int r = job_check_server(w);

	return r < 0 ? r : list_new(w, WIRE_LIST_JOBS, 0, NULL, NULL, ret);
}

size_t weightd_list_count(const struct weightd_list *l)
{
	return l->n;
}

/* NULL where there is none, of a list of other records too. */
static const void *info_at(const struct weightd_list *l, enum wire_list_kind kind, size_t i)
{
	if (kinds[l->kind].fill != kinds[kind].fill || i >= l->n)
		return NULL;
	return (const char *)l->infos + i * kinds[kind].info_size;
}

const struct weightd_buffer_info *weightd_list_buffer(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_BUFFERS, i);
}

const struct weightd_version_info *weightd_list_version(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_VERSIONS, i);
}

const struct weightd_slot_info *weightd_list_slot(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_SLOTS, i);
}

const struct weightd_user_info *weightd_list_user(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_USERS, i);
}

const struct weightd_cost_info *weightd_list_cost(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_COSTS, i);
}

const struct weightd_holder_info *weightd_list_holder(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_HOLDERS, i);
}

const struct weightd_device_info *weightd_list_device(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_DEVICES, i);
}

const struct weightd_job_info *weightd_list_job(const struct weightd_list *l, size_t i)
{
	return info_at(l, WIRE_LIST_JOBS, i);
}

const char *weightd_end_name(enum weightd_end end)
{
	static const char *const names[] = {
		[WEIGHTD_END_NONE] = "",
		[WEIGHTD_END_KEEP] = "keep",
		[WEIGHTD_END_MEMORY] = "memory",
		[WEIGHTD_END_DROPPED] = "dropped",
		[WEIGHTD_END_REWRITTEN] = "rewritten",
		[WEIGHTD_END_LOST] = "lost",
	};

	return (unsigned)end < ARRAY_LEN(names) ? names[end] : NULL;
}
