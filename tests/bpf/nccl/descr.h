/*
 * Descriptors of events, as NCCL passes them to a plug-in of its profiler in each version
 *
 * Each has the layout that its version declares, written once more here after NCCL's own declarations, and exactly
 * that size, in a block of its own, which the caller frees. Members that NCCL does not set are not zero. The version
 * is one from 4 to 7.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	GROUP = 1,
	COLL = 2,
	P2P = 4,
	OP = 8,
	STEP = 16,
	NET = 128,
	CE_COLL = 4096
};

/* The `data` of descr_net(), for a socket or a queue pair. */
struct net_socket {
	uint8_t type;
	union {
		struct {
			int fd, op;
			size_t length;
		} socket;
	};
};

struct net_qp {
	uint8_t type;
	union {
		struct {
			int device;
			uint64_t wr_id;
			int opcode, number;
			size_t length;
		} qp;
	};
};

void *descr_new(int version, uint64_t type, void *parent);
void descr_set_parent(int version, void *d, void *parent);

void *descr_coll(int version, void *parent, const char *func, size_t count, const char *datatype,
		 uint64_t seq);
void *descr_p2p(int version, void *parent, const char *func, size_t count, const char *datatype,
		int peer);
/* The same, by copy engines. */
void *descr_ce(int version);
void *descr_op(int version, void *parent, int peer, bool is_send, pid_t pid);
void *descr_step(int version, void *parent);
void *descr_net(int version, void *parent, int64_t id, void *data);
