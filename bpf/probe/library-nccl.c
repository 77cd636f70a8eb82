/*
 * libnccl: communicators, from their beginning to their end, and how much is asked of them
 *
 * A trainer asks for thousands of operations a second: they are counted. ncclBcast() calls ncclBroadcast(), where it is.
 *
 * A communicator is told by an address of its process and, as far as its beginning was seen, by a number that all of its
 * ranks have: made of its id, which is not told.
 */
#include <stdio.h>

#include "bpf/event/event.h"
#include "bpf/probe/probes.h"
#include "bpf/probe/site.h"
#include "ipc/base/num.h"

#define ID_SIZE 128 /* ncclUniqueId */
#define IN_PROGRESS 7 /* of a communicator that does not block */

/* An id is passed by value, which is on the stack of some machines, and then no argument. */
#if defined(__x86_64__)
#define RANK_ARG 2
#else
#define RANK_ARG 3
#endif

/* FNV-1a, of 64 bits: a name, and no secret. */
static void set_id(json_t *act, const uint8_t *id)
{
	uint64_t hash = 0xcbf29ce484222325u;
	char text[17];

	for (size_t i = 0; i < ID_SIZE; i++)
		hash = (hash ^ id[i]) * 0x100000001b3u;
	(void)snprintf(text, sizeof(text), "%016llx", (unsigned long long)hash);
	(void)json_object_set_new(act, "id", json_string(text));
}

static bool begin(const struct probe_call *c, json_t *act, int rank)
{
	act_set_number(act, "ranks", (uint64_t)(int64_t)(int)c->args[1]);
	act_set_number(act, "rank", (uint64_t)(int64_t)rank);
	if (c->has_data)
		set_id(act, c->data);
	if (c->has_out)
		act_set_number(act, "communicator", c->out);
	return true;
}

static bool begin_rank(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	return begin(c, act, (int)c->args[RANK_ARG]);
}

static bool begin_scalable(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	return begin(c, act, (int)c->args[2]);
}

/* All of its ranks are in this process. */
static bool begin_all(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	act_set_number(act, "ranks", (uint64_t)(int64_t)(int)c->args[1]);
	return true;
}

static bool split(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	act_set_number(act, "parent", c->args[0]);
	if (c->has_out)
		act_set_number(act, "communicator", c->out);
	return true;
}

static bool shrink(struct probes *p, const struct probe_call *c, json_t *act)
{
	act_set_number(act, "excluded", (uint64_t)(int64_t)(int)c->args[2]);
	return split(p, c, act);
}

/* Those that were in it already have no rank to say, and all but one of them no id. */
static bool grow(struct probes *p, const struct probe_call *c, json_t *act)
{
	int rank = (int)c->args[3];

	(void)p;
	(void)begin(c, act, rank);
	if (rank < 0)
		(void)json_object_del(act, "rank");
	if (c->args[0])
		act_set_number(act, "parent", c->args[0]);
	return true;
}

static bool end(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	act_set_number(act, "communicator", c->args[0]);
	return true;
}

static bool allocate(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	if (c->has_out)
		act_set_number(act, "address", c->out);
	act_set_number(act, "bytes", c->args[1]);
	return true;
}

static bool free_memory(struct probes *p, const struct probe_call *c, json_t *act)
{
	(void)p;
	act_set_number(act, "address", c->args[0]);
	return true;
}

static bool register_memory(struct probes *p, const struct probe_call *c, json_t *act)
{
	act_set_number(act, "address", c->args[1]);
	act_set_number(act, "bytes", c->args[2]);
	if (c->has_out)
		act_set_number(act, "registration", c->out);
	return end(p, c, act);
}

static bool deregister(struct probes *p, const struct probe_call *c, json_t *act)
{
	act_set_number(act, "registration", c->args[1]);
	return end(p, c, act);
}

#define BEGIN                                                                                      \
	{                                                                                          \
		.take = TAKE_VALUE, .take_arg = 2, .take_size = ID_SIZE, .out = 8,                 \
		.also_done = IN_PROGRESS                                                           \
	}
#define COUNTED(count, type)                                                                       \
	{                                                                                          \
		.also_done = IN_PROGRESS, .is_tallied = 1, .counts = 1, .count_arg = (count),      \
		.type_arg = (type)                                                                 \
	}

/* clang-format off */
static const struct site sites[] = {
	{"ncclCommInitRank", "nccl_init", BEGIN, .tell = begin_rank},
	{"ncclCommInitRankConfig", "nccl_init", BEGIN, .tell = begin_rank},
	{"ncclCommInitRankScalable", "nccl_init",
	 {.take = TAKE_AT_CALL, .take_arg = 4, .take_size = ID_SIZE, .out = 8, .also_done = IN_PROGRESS},
	 .tell = begin_scalable},
	{"ncclCommInitAll", "nccl_init", {}, .tell = begin_all},
	{"ncclCommSplit", "nccl_split", {.out = 8, .out_arg = 3, .also_done = IN_PROGRESS}, .tell = split},
	{"ncclCommShrink", "nccl_shrink", {.out = 8, .out_arg = 3, .also_done = IN_PROGRESS}, .tell = shrink},
	{"ncclCommGrow", "nccl_grow",
	 {.take = TAKE_AT_CALL, .take_arg = 2, .take_size = ID_SIZE, .out = 8, .out_arg = 4, .also_done = IN_PROGRESS},
	 .tell = grow},
	{"ncclCommRevoke", "nccl_revoke", {.also_done = IN_PROGRESS}, .tell = end},
	{"ncclCommFinalize", "nccl_finalize", {.also_done = IN_PROGRESS}, .tell = end},
	{"ncclCommAbort", "nccl_abort", {.also_done = IN_PROGRESS}, .tell = end},
	{"ncclCommDestroy", "nccl_destroy", {.also_done = IN_PROGRESS}, .tell = end},
	{"ncclMemAlloc", "nccl_alloc", {.out = 8}, .tell = allocate},
	{"ncclMemFree", "nccl_free", {}, .tell = free_memory},
	{"ncclCommRegister", "nccl_register", {.out = 8, .out_arg = 3}, .tell = register_memory},
	{"ncclCommWindowRegister", "nccl_register", {.out = 8, .out_arg = 3, .also_done = IN_PROGRESS},
	 .tell = register_memory},
	{"ncclCommDeregister", "nccl_deregister", {}, .tell = deregister},
	{"ncclCommWindowDeregister", "nccl_deregister", {.also_done = IN_PROGRESS}, .tell = deregister},
	{"ncclAllReduce", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclBroadcast", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclReduce", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclAllGather", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclReduceScatter", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclAlltoAll", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclGather", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclScatter", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclAllReduceConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclBroadcastConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclReduceConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclAllGatherConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclReduceScatterConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclAlltoAllConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclGatherConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclScatterConfig", "nccl_calls", COUNTED(2, 3), .tell = NULL},
	{"ncclSend", "nccl_calls", COUNTED(1, 2), .tell = NULL},
	{"ncclRecv", "nccl_calls", COUNTED(1, 2), .tell = NULL},
	{"ncclPutSignal", "nccl_calls", COUNTED(1, 2), .tell = NULL},
	{"ncclGroupEnd", "nccl_calls", {.also_done = IN_PROGRESS, .is_tallied = 1}, .tell = NULL},
};
/* clang-format on */

/* ncclDataType_t, from ncclInt8 on */
const uint8_t nccl_type_sizes[TYPES_MAX] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

const struct library library_nccl = {
	.name = "libnccl.so.",
	.sites = sites,
	.n_sites = ARRAY_LEN(sites),
};
