/*
 * The interface between NCCL and a plug-in of its profiler, as NCCL's src/include/plugin/profiler declares it
 *
 * NCCL 2.27 introduced profiler_v4.h, 2.28 _v5 and 2.29 _v6; 2.31 has _v7. A newer descriptor only adds members
 * behind those of an older one, and larger ones to the union: one declaration, the newest, reads all of them, as far
 * as they reach. Two things differ. In v4 the type is one byte, and the seven behind it may hold anything; and a
 * collective's parent is its group there, which is `group` since v5. The arguments of a state are 8 bytes in each.
 * The asserts at the end have the offsets; tests/lint/test_profiler_header.py compares with NCCL's headers if these
 * are there.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	API_OLDEST = 4,
	API_NEWEST = 7,
	N_APIS = API_NEWEST - API_OLDEST + 1,
};

#define ABI_OK 0

/* Types of events, each a bit of the mask of those that a plug-in asks for. */
enum {
	EVENT_GROUP = 1 << 0,
	EVENT_COLL = 1 << 1,
	EVENT_P2P = 1 << 2,
	EVENT_PROXY_OP = 1 << 3,
	EVENT_PROXY_STEP = 1 << 4,
	EVENT_PROXY_CTRL = 1 << 5,
	EVENT_KERNEL_CH = 1 << 6,
	EVENT_NET = 1 << 7,
	/* Since v5. */
	EVENT_GROUP_API = 1 << 8,
	EVENT_COLL_API = 1 << 9,
	EVENT_P2P_API = 1 << 10,
	EVENT_KERNEL_LAUNCH = 1 << 11,
	/* Since v6. */
	EVENT_CE_COLL = 1 << 12,
	EVENT_CE_SYNC = 1 << 13,
	EVENT_CE_BATCH = 1 << 14,
	/* Since v7. */
	EVENT_KERNEL_PHASE = 1 << 15,
};

/* States of a step from which on its size is set. */
enum {
	STATE_SEND_WAIT = 9,
	STATE_RECV_FLUSH_WAIT = 11,
	STATE_RECV_GPU_WAIT = 12,
	STATE_LAST_V4 = 22, /* v4 ends here, v5 has two more */
	STATE_LAST_V5 = 24,
	STATE_LAST_V6 = 30,
};

struct descr {
	union {
		uint64_t type;
		uint8_t type_v4;
	};
	void *parent;
	int rank;
	union {
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *receive;
			size_t count;
			int root;
			const char *datatype;
			uint8_t n_channels;
			uint8_t n_warps;
			const char *algo;
			const char *proto;
			void *group; /* since v5 */
			const char *variant; /* since v7, and what follows */
			bool is_symmetric;
			uint64_t tag;
		} coll;
		struct {
			const char *func;
			void *buffer;
			const char *datatype;
			size_t count;
			int peer;
			uint8_t n_channels;
			void *group; /* since v5 */
			uint64_t tag; /* since v7 */
		} p2p;
		struct {
			int pid; /* owner of the context and the parent; may be another process */
			uint8_t channel;
			int peer;
			int n_steps;
			int chunk_size;
			int is_send;
		} proxy_op;
		struct {
			int64_t id;
			void *data;
		} net;
		struct {
			uint64_t seq;
			const char *func;
			const void *send;
			void *receive;
			size_t count;
			int root;
			const char *datatype;
			const char *strategy;
			bool is_synced_within;
			uint32_t batch_size;
			uint32_t n_batches;
			uint32_t ce_seq;
			void *stream;
			uint64_t tag; /* since v7 */
		} ce_coll;
	};
};

/* The size of a descriptor, by its version. */
#define DESCR_SIZE_V4 104
#define DESCR_SIZE_V5 112
#define DESCR_SIZE_V6 112

union state_args {
	size_t size; /* bytes of a step */
	void *data;
	uint64_t timer;
};

/* net.id: the transport of the event, and the version of its declaration. */
#define NET_VERSION_MASK 0xffff
#define NET_TYPE_IB (1 << 16)
#define NET_TYPE_SOCKET (2 << 16)
#define NET_VERSION 1

#define NET_EVENT 1 /* net_qp::type and net_socket::type */

/*
 * net_ib_v1.h; all members but the type are in a union, and aligned; the size of a receive is not set yet.
 */
struct net_qp {
	uint8_t type;
	_Alignas(8) int device;
	uint64_t wr_id;
	int opcode;
	int qp;
	size_t length;
};

/* net_socket_v1.h */
struct net_socket {
	uint8_t type;
	_Alignas(8) int fd;
	int op;
	size_t length;
};

#define NET_OP_SEND 0
#define NET_OP_RECEIVE 1

/* nccl_common.h: a level, of which these are two, and the subsystem, a bit. */
typedef void (*log_fn)(int level, unsigned long flags, const char *file, int line,
		       const char *format, ...);
#define LOG_WARN 2
#define LOG_INIT 1

/* v5 and later. */
struct api {
	const char *name;
	int (*init)(void **context, uint64_t hash, int *mask, const char *comm_name, int n_nodes,
		    int n_ranks, int rank, log_fn log);
	int (*start_event)(void *context, void **handle, struct descr *descr);
	int (*stop_event)(void *handle);
	int (*record_event_state)(void *handle, int state, union state_args *args);
	int (*finalize)(void *context);
	const void *more[4]; /* none: other people's NCCLs have had more functions here */
};

struct api_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *comm_name, uint64_t hash, int n_nodes,
		    int n_ranks, int rank, log_fn log);
	int (*start_event)(void *context, void **handle, struct descr *descr);
	int (*stop_event)(void *handle);
	int (*record_event_state)(void *handle, int state, union state_args *args);
	int (*finalize)(void *context);
};

#define AT(member, offset)                                                                         \
	_Static_assert(offsetof(struct descr, member) == (offset), "NCCL has " #member " elsewhere")

AT(parent, 8);
AT(rank, 16);
AT(coll.seq, 24);
AT(coll.func, 32);
AT(coll.count, 56);
AT(coll.root, 64);
AT(coll.datatype, 72);
AT(coll.n_channels, 80);
AT(coll.algo, 88);
AT(coll.proto, 96);
AT(coll.group, DESCR_SIZE_V4);
AT(coll.variant, DESCR_SIZE_V5);
AT(p2p.func, 24);
AT(p2p.datatype, 40);
AT(p2p.count, 48);
AT(p2p.peer, 56);
AT(p2p.n_channels, 60);
AT(p2p.group, 64);
AT(proxy_op.pid, 24);
AT(proxy_op.channel, 28);
AT(proxy_op.peer, 32);
AT(proxy_op.is_send, 44);
AT(net.id, 24);
AT(net.data, 32);
AT(ce_coll.func, 32);
AT(ce_coll.datatype, 72);
AT(ce_coll.batch_size, 92);
AT(ce_coll.tag, DESCR_SIZE_V6);

#undef AT

_Static_assert(sizeof(struct descr) == 136, "NCCL's v7 has another size");
_Static_assert(sizeof(union state_args) == 8, "NCCL has another size");
_Static_assert(offsetof(struct net_qp, device) == 8 && offsetof(struct net_qp, length) == 32,
	       "NCCL has it elsewhere");
_Static_assert(offsetof(struct net_socket, fd) == 8 && offsetof(struct net_socket, length) == 16,
	       "NCCL has it elsewhere");
