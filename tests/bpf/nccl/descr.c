#include "tests/bpf/nccl/descr.h"

#include <stdlib.h>
#include <string.h>

#define COLL_V4                                                                                    \
	uint64_t seq;                                                                              \
	const char *func;                                                                          \
	void const *send;                                                                          \
	void *receive;                                                                             \
	size_t count;                                                                              \
	int root;                                                                                  \
	const char *datatype;                                                                      \
	uint8_t channels;                                                                          \
	uint8_t warps;                                                                             \
	const char *algo;                                                                          \
	const char *proto
#define P2P_V4                                                                                     \
	const char *func;                                                                          \
	void *buffer;                                                                              \
	const char *datatype;                                                                      \
	size_t count;                                                                              \
	int peer;                                                                                  \
	uint8_t channels
#define OTHERS                                                                                     \
	struct {                                                                                   \
		pid_t pid;                                                                         \
		uint8_t channel;                                                                   \
		int peer, steps, chunk_size, is_send;                                              \
	} op;                                                                                      \
	struct {                                                                                   \
		int step;                                                                          \
	} step;                                                                                    \
	struct {                                                                                   \
		uint8_t channel;                                                                   \
		uint64_t timer;                                                                    \
	} kernel;                                                                                  \
	struct {                                                                                   \
		int64_t id;                                                                        \
		void *data;                                                                        \
	} net
#define CE_COLL_V6                                                                                 \
	uint64_t seq;                                                                              \
	const char *func;                                                                          \
	void const *send;                                                                          \
	void *receive;                                                                             \
	size_t count;                                                                              \
	int root;                                                                                  \
	const char *datatype, *strategy;                                                           \
	bool is_within;                                                                            \
	uint32_t size, n, seq_of_ce;                                                               \
	void *stream

struct v4 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
		} coll;
		struct {
			P2P_V4;
		} p2p;
		OTHERS;
	};
};

struct v5 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
			void *group;
		} coll;
		struct {
			P2P_V4;
			void *group;
		} p2p;
		OTHERS;
	};
};

struct v6 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
			void *group;
		} coll;
		struct {
			P2P_V4;
			void *group;
		} p2p;
		OTHERS;
		struct {
			CE_COLL_V6;
		} ce_coll;
	};
};

struct v7 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			COLL_V4;
			void *group;
			const char *variant;
			bool is_symmetric;
			uint64_t tag;
		} coll;
		struct {
			P2P_V4;
			void *group;
			uint64_t tag;
		} p2p;
		OTHERS;
		struct {
			CE_COLL_V6;
			uint64_t tag;
		} ce_coll;
	};
};

#define AS(type_, d, action)                                                                       \
	do {                                                                                       \
		struct type_ *v = (d);                                                             \
		action;                                                                            \
	} while (0)

#define SINCE_V6(d, action)                                                                        \
	do {                                                                                       \
		if (version == 6)                                                                  \
			AS(v6, d, action);                                                         \
		else if (version == 7)                                                             \
			AS(v7, d, action);                                                         \
	} while (0)

#define SINCE_V5(d, action)                                                                        \
	do {                                                                                       \
		if (version == 5)                                                                  \
			AS(v5, d, action);                                                         \
		SINCE_V6(d, action);                                                               \
	} while (0)

#define OF_VERSION(d, action)                                                                      \
	do {                                                                                       \
		if (version == 4)                                                                  \
			AS(v4, d, action);                                                         \
		SINCE_V5(d, action);                                                               \
	} while (0)

void *descr_new(int version, uint64_t type, void *parent)
{
	static const size_t sizes[] = {sizeof(struct v4), sizeof(struct v5), sizeof(struct v6),
				       sizeof(struct v7)};
	size_t size = sizes[version - 4];
	void *d = malloc(size);

	if (!d)
		abort();
	memset(d, 0xa5, size);
	OF_VERSION(d, v->type = (__typeof__(v->type))type; v->parent = parent; v->rank = 0);
	return d;
}

void descr_set_parent(int version, void *d, void *parent)
{
	OF_VERSION(d, v->parent = parent);
}

void *descr_coll(int version, void *parent, const char *func, size_t count, const char *datatype,
		 uint64_t seq)
{
	void *d = descr_new(version, COLL, parent);

	OF_VERSION(d, v->coll.seq = seq; v->coll.func = func; v->coll.count = count;
		   v->coll.root = 0; v->coll.datatype = datatype; v->coll.channels = 2;
		   v->coll.algo = "RING"; v->coll.proto = "SIMPLE");
	SINCE_V5(d, v->coll.group = parent; v->parent = NULL);
	return d;
}

void *descr_p2p(int version, void *parent, const char *func, size_t count, const char *datatype,
		int peer)
{
	void *d = descr_new(version, P2P, parent);

	OF_VERSION(d, v->p2p.func = func; v->p2p.count = count; v->p2p.datatype = datatype;
		   v->p2p.peer = peer; v->p2p.channels = 1);
	SINCE_V5(d, v->p2p.group = parent; v->parent = NULL);
	return d;
}

void *descr_ce(int version)
{
	void *d = descr_new(version, CE_COLL, NULL);

	SINCE_V6(d, v->ce_coll.seq = 5; v->ce_coll.func = "AllGather"; v->ce_coll.count = 10;
		 v->ce_coll.root = 0; v->ce_coll.datatype = "ncclBfloat16");
	return d;
}

void *descr_op(int version, void *parent, int peer, bool is_send, pid_t pid)
{
	void *d = descr_new(version, OP, parent);

	OF_VERSION(d, v->op.pid = pid; v->op.channel = 0; v->op.peer = peer; v->op.steps = 1;
		   v->op.is_send = is_send);
	return d;
}

void *descr_step(int version, void *parent)
{
	void *d = descr_new(version, STEP, parent);

	OF_VERSION(d, v->step.step = 0);
	return d;
}

void *descr_net(int version, void *parent, int64_t id, void *data)
{
	void *d = descr_new(version, NET, parent);

	OF_VERSION(d, v->net.id = id; v->net.data = data);
	return d;
}
