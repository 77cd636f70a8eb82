/*
 * libcuda: handles of memory and events, by which a process shares what it has on a GPU
 *
 * The runtime finds these functions by itself (cuGetProcAddress) and calls the same ones. A handle of the older kind
 * is 64 bytes and found by them; one of the newer kind is a descriptor, found by its open file, however it was passed
 * to the other process.
 */
#include <string.h>

#include "bpf/event/event.h"
#include "bpf/event/event_cause.h"
#include "bpf/probe/gpu_handle.h"
#include "bpf/probe/site.h"
#include "ipc/base/num.h"

#define HANDLE_SIZE 64 /* CUipcMemHandle, CUipcEventHandle, CUmemFabricHandle */
#define TYPE_DESCRIPTOR 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define TYPE_FABRIC 8

enum kind {
	KIND_MEMORY = 1,
	KIND_EVENT,
	KIND_FABRIC,
	KIND_FILE,
	KIND_ALLOCATION, /* an allocation of a process, with its size */
};

static struct gpu_handle_key key_of_handle(enum kind kind, const struct probe_call *c)
{
	struct gpu_handle_key key = {.kind = kind};

	memcpy(key.bytes, c->data, HANDLE_SIZE);
	return key;
}

static struct gpu_handle_key key_of_numbers(enum kind kind, uint64_t a, uint64_t b)
{
	const uint64_t numbers[] = {a, b};
	struct gpu_handle_key key = {.kind = kind};

	memcpy(key.bytes, numbers, sizeof(numbers));
	return key;
}

static struct gpu_handle export_of(struct site_state *s, const struct probe_call *c,
				   struct gpu_handle_key key)
{
	return (struct gpu_handle){.key = key,
				   .cause = event_cause_of(s->event, c->ns, (pid_t)c->tgid, c->comm),
				   .size = UINT64_MAX,
				   .uid = c->uid};
}

static json_t *size_json(uint64_t size)
{
	return size == UINT64_MAX ? json_null() : json_integer((json_int_t)size);
}

/* Adds the export that is opened here. */
static const struct gpu_handle *set_from(struct site_state *s, json_t *event,
					 const struct gpu_handle_key *key)
{
	const struct gpu_handle *exported = gpu_handles_find(&s->exports, key);

	(void)json_object_set_new(event, "bytes", size_json(exported ? exported->size : UINT64_MAX));
	event_cause_set(event, exported ? &exported->cause : NULL);
	return exported;
}

static bool memory_export(struct site_state *s, const struct probe_call *c, json_t *event)
{
	struct gpu_handle exported = export_of(s, c, key_of_handle(KIND_MEMORY, c));

	event_set_number(event, "address", c->args[1]);
	(void)json_object_set_new(event, "bytes", json_null());
	if (c->has_data && !(int)c->result)
		gpu_handles_add(&s->exports, &exported);
	return true;
}

static bool memory_open(struct site_state *s, const struct probe_call *c, json_t *event)
{
	const struct gpu_handle_key key = key_of_handle(KIND_MEMORY, c);

	if (c->has_out && !(int)c->result)
		event_set_number(event, "address", c->out);
	(void)set_from(s, event, &key);
	return true;
}

static bool memory_close(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "address", c->args[0]);
	return true;
}

static bool event_export(struct site_state *s, const struct probe_call *c, json_t *event)
{
	struct gpu_handle exported = export_of(s, c, key_of_handle(KIND_EVENT, c));

	(void)event;
	if (c->has_data && !(int)c->result)
		gpu_handles_add(&s->exports, &exported);
	return true;
}

static bool event_open(struct site_state *s, const struct probe_call *c, json_t *event)
{
	const struct gpu_handle_key key = key_of_handle(KIND_EVENT, c);

	(void)set_from(s, event, &key);
	(void)json_object_del(event, "bytes");
	return true;
}

/* A handle is a number of its process, which may have stood for another allocation before. */
static void allocation_note_size(struct site_state *s, const struct probe_call *c, uint64_t handle,
				 uint64_t size)
{
	struct gpu_handle allocation = export_of(s, c,
						 key_of_numbers(KIND_ALLOCATION, c->tgid, handle));

	allocation.size = size;
	gpu_handles_add(&s->allocations, &allocation);
}

static bool allocation_create(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)event;
	if (c->has_out && !(int)c->result)
		allocation_note_size(s, c, c->out, c->args[1]);
	return false;
}

static void set_type(json_t *event, int type)
{
	(void)json_object_set_new(event, "type",
				  json_string(type == TYPE_DESCRIPTOR ? "fd"
					      : type == TYPE_FABRIC   ? "fabric"
								      : "other"));
}

static struct gpu_handle_key key_of_shareable(const struct probe_call *c, int type)
{
	return type == TYPE_FABRIC ? key_of_handle(KIND_FABRIC, c)
				   : key_of_numbers(KIND_FILE, c->file, c->inode);
}

static bool is_known(const struct probe_call *c, int type)
{
	return type == TYPE_FABRIC ? c->has_data : type == TYPE_DESCRIPTOR && c->file;
}

static bool shareable_export(struct site_state *s, const struct probe_call *c, json_t *event)
{
	const struct gpu_handle_key allocation = key_of_numbers(KIND_ALLOCATION, c->tgid,
								c->args[1]);
	const struct gpu_handle *known = gpu_handles_find(&s->allocations, &allocation);
	int type = (int)c->args[2];
	struct gpu_handle exported = export_of(s, c, key_of_shareable(c, type));

	exported.size = known ? known->size : UINT64_MAX;
	set_type(event, type);
	if (type == TYPE_DESCRIPTOR && c->has_out && !(int)c->result)
		(void)json_object_set_new(event, "fd", json_integer((int)c->out));
	(void)json_object_set_new(event, "bytes", size_json(exported.size));
	if (is_known(c, type) && !(int)c->result)
		gpu_handles_add(&s->exports, &exported);
	return true;
}

static bool shareable_import(struct site_state *s, const struct probe_call *c, json_t *event)
{
	int type = (int)c->args[2];
	const struct gpu_handle_key key = key_of_shareable(c, type);
	const struct gpu_handle_key unknown = {};
	const struct gpu_handle *exported;

	set_type(event, type);
	if (type == TYPE_DESCRIPTOR)
		(void)json_object_set_new(event, "fd", json_integer((int)c->args[1]));
	exported = set_from(s, event, is_known(c, type) ? &key : &unknown);
	if (c->has_out && !(int)c->result)
		allocation_note_size(s, c, c->out, exported ? exported->size : UINT64_MAX);
	return true;
}

#define HANDLE_OUT                                                                                 \
	{                                                                                          \
		.take = TAKE_AT_RETURN, .take_size = HANDLE_SIZE                                   \
	}
#define HANDLE_IN                                                                                  \
	{                                                                                          \
		.take = TAKE_VALUE, .take_arg = 1, .take_size = HANDLE_SIZE, .out = 8              \
	}

/* clang-format off */
static const struct site sites[] = {
	{"cuIpcGetMemHandle", "cuda_ipc_export", HANDLE_OUT, .fill = memory_export},
	{"cuIpcOpenMemHandle", "cuda_ipc_open", HANDLE_IN, .fill = memory_open},
	{"cuIpcOpenMemHandle_v2", "cuda_ipc_open", HANDLE_IN, .fill = memory_open},
	{"cuIpcCloseMemHandle", "cuda_ipc_close", {}, .fill = memory_close},
	{"cuIpcGetEventHandle", "cuda_event_export", HANDLE_OUT, .fill = event_export},
	{"cuIpcOpenEventHandle", "cuda_event_open", HANDLE_IN, .fill = event_open},
	{"cuMemCreate", NULL, {.out = 8}, .fill = allocation_create},
	{"cuMemExportToShareableHandle", "cuda_vmm_export",
	 {.take = TAKE_AT_RETURN, .take_size = HANDLE_SIZE, .file = FILE_OUT, .out = 4}, .fill = shareable_export},
	{"cuMemImportFromShareableHandle", "cuda_vmm_import",
	 {.take = TAKE_AT_CALL, .take_arg = 1, .take_size = HANDLE_SIZE, .file = FILE_IN, .file_arg = 1, .out = 8},
	 .fill = shareable_import},
};
/* clang-format on */

const struct library library_cuda = {
	.name = "libcuda.so.",
	.sites = sites,
	.n_sites = ARRAY_LEN(sites),
};
