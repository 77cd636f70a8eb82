/*
 * libnccl: communicators, from their beginning to their end, and how much they are used
 *
 * A trainer calls thousands of operations a second: they are counted. ncclBcast() calls ncclBroadcast(), which is
 * counted.
 *
 * A communicator has an address in its process and, if its beginning was seen, a number that all its ranks share: a
 * hash of its id, which stays secret.
 */
#include <stdio.h>

#include "bpf/event/event.h"
#include "bpf/probe/site.h"
#include "ipc/base/num.h"

#define ID_SIZE 128 /* ncclUniqueId */
#define IN_PROGRESS 7 /* result for a communicator that does not block */

/* An id is passed by value, which is on the stack of some machines, and then no argument. */
#if defined(__x86_64__)
#define RANK_ARG 2
#else
#define RANK_ARG 3
#endif

/* FNV-1a, of 64 bits: a name, and no secret. */
static void set_id(json_t *event, const uint8_t *id)
{
	uint64_t hash = 0xcbf29ce484222325u;
	char text[17];

	for (size_t i = 0; i < ID_SIZE; i++)
		hash = (hash ^ id[i]) * 0x100000001b3u;
	(void)snprintf(text, sizeof(text), "%016llx", (unsigned long long)hash);
	(void)json_object_set_new(event, "id", json_string(text));
}

static bool comm_begin(const struct probe_call *c, json_t *event, int rank)
{
	event_set_number(event, "ranks", (uint64_t)(int64_t)(int)c->args[1]);
	event_set_number(event, "rank", (uint64_t)(int64_t)rank);
	if (c->has_data)
		set_id(event, c->data);
	if (c->has_out)
		event_set_number(event, "communicator", c->out);
	return true;
}

static bool comm_begin_rank(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	return comm_begin(c, event, (int)c->args[RANK_ARG]);
}

static bool comm_begin_scalable(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	return comm_begin(c, event, (int)c->args[2]);
}

/* All of its ranks are in this process. */
static bool comm_begin_all(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "ranks", (uint64_t)(int64_t)(int)c->args[1]);
	return true;
}

static bool comm_split(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "parent", c->args[0]);
	if (c->has_out)
		event_set_number(event, "communicator", c->out);
	return true;
}

static bool comm_shrink(struct site_state *s, const struct probe_call *c, json_t *event)
{
	event_set_number(event, "excluded", (uint64_t)(int64_t)(int)c->args[2]);
	return comm_split(s, c, event);
}

/* Old ranks have no rank in the arguments, and all but one of them no id. */
static bool comm_grow(struct site_state *s, const struct probe_call *c, json_t *event)
{
	int rank = (int)c->args[3];

	(void)s;
	(void)comm_begin(c, event, rank);
	if (rank < 0)
		(void)json_object_del(event, "rank");
	if (c->args[0])
		event_set_number(event, "parent", c->args[0]);
	return true;
}

static bool comm_end(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "communicator", c->args[0]);
	return true;
}

static bool memory_allocate(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	if (c->has_out)
		event_set_number(event, "address", c->out);
	event_set_number(event, "bytes", c->args[1]);
	return true;
}

static bool memory_free(struct site_state *s, const struct probe_call *c, json_t *event)
{
	(void)s;
	event_set_number(event, "address", c->args[0]);
	return true;
}

static bool memory_register(struct site_state *s, const struct probe_call *c, json_t *event)
{
	event_set_number(event, "address", c->args[1]);
	event_set_number(event, "bytes", c->args[2]);
	if (c->has_out)
		event_set_number(event, "registration", c->out);
	return comm_end(s, c, event);
}

static bool memory_deregister(struct site_state *s, const struct probe_call *c, json_t *event)
{
	event_set_number(event, "registration", c->args[1]);
	return comm_end(s, c, event);
}

#define BEGIN                                                                                      \
	{                                                                                          \
		.take = TAKE_VALUE, .take_arg = 2, .take_size = ID_SIZE, .out = 8,                 \
		.also_done = IN_PROGRESS                                                           \
	}
#define COUNTED(count, type)                                                                       \
	{                                                                                          \
		.also_done = IN_PROGRESS, .is_counted = 1, .counts = 1, .count_arg = (count),      \
		.type_arg = (type)                                                                 \
	}

/* clang-format off */
static const struct site sites[] = {
	{"ncclCommInitRank", "nccl_init", BEGIN, .fill = comm_begin_rank},
	{"ncclCommInitRankConfig", "nccl_init", BEGIN, .fill = comm_begin_rank},
	{"ncclCommInitRankScalable", "nccl_init",
	 {.take = TAKE_AT_CALL, .take_arg = 4, .take_size = ID_SIZE, .out = 8, .also_done = IN_PROGRESS},
	 .fill = comm_begin_scalable},
	{"ncclCommInitAll", "nccl_init", {}, .fill = comm_begin_all},
	{"ncclCommSplit", "nccl_split", {.out = 8, .out_arg = 3, .also_done = IN_PROGRESS}, .fill = comm_split},
	{"ncclCommShrink", "nccl_shrink", {.out = 8, .out_arg = 3, .also_done = IN_PROGRESS}, .fill = comm_shrink},
	{"ncclCommGrow", "nccl_grow",
	 {.take = TAKE_AT_CALL, .take_arg = 2, .take_size = ID_SIZE, .out = 8, .out_arg = 4, .also_done = IN_PROGRESS},
	 .fill = comm_grow},
	{"ncclCommRevoke", "nccl_revoke", {.also_done = IN_PROGRESS}, .fill = comm_end},
	{"ncclCommFinalize", "nccl_finalize", {.also_done = IN_PROGRESS}, .fill = comm_end},
	{"ncclCommAbort", "nccl_abort", {.also_done = IN_PROGRESS}, .fill = comm_end},
	{"ncclCommDestroy", "nccl_destroy", {.also_done = IN_PROGRESS}, .fill = comm_end},
	{"ncclMemAlloc", "nccl_alloc", {.out = 8}, .fill = memory_allocate},
	{"ncclMemFree", "nccl_free", {}, .fill = memory_free},
	{"ncclCommRegister", "nccl_register", {.out = 8, .out_arg = 3}, .fill = memory_register},
	{"ncclCommWindowRegister", "nccl_register", {.out = 8, .out_arg = 3, .also_done = IN_PROGRESS},
	 .fill = memory_register},
	{"ncclCommDeregister", "nccl_deregister", {}, .fill = memory_deregister},
	{"ncclCommWindowDeregister", "nccl_deregister", {.also_done = IN_PROGRESS}, .fill = memory_deregister},
	{"ncclAllReduce", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclBroadcast", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclReduce", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclAllGather", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclReduceScatter", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclAlltoAll", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclGather", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclScatter", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclAllReduceConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclBroadcastConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclReduceConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclAllGatherConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclReduceScatterConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclAlltoAllConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclGatherConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclScatterConfig", "nccl_calls", COUNTED(2, 3), .fill = NULL},
	{"ncclSend", "nccl_calls", COUNTED(1, 2), .fill = NULL},
	{"ncclRecv", "nccl_calls", COUNTED(1, 2), .fill = NULL},
	{"ncclPutSignal", "nccl_calls", COUNTED(1, 2), .fill = NULL},
	{"ncclGroupEnd", "nccl_calls", {.also_done = IN_PROGRESS, .is_counted = 1}, .fill = NULL},
};
/* clang-format on */

/* ncclDataType_t, from ncclInt8 on */
const uint8_t nccl_type_sizes[TYPES_MAX] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

const struct library library_nccl = {
	.name = "libnccl.so.",
	.sites = sites,
	.n_sites = ARRAY_LEN(sites),
};
