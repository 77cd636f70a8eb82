/*
 * Records that callbacks write, and the sender reads: fixed in number and size
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum record_kind {
	RECORD_TASK, /* a collective or a p2p call has stopped: `task`, a struct slot, is the reader's now */
	RECORD_OP, /* the proxy carried `bytes` */
	RECORD_SOCKET, /* `bytes` go over `fd`, which is the socket `number` */
	RECORD_QP, /* the same for queue pair `number` of `device`; received bytes are unknown */
};

struct record {
	enum record_kind kind;
	uint16_t comm;
	bool is_send;
	int32_t peer; /* its rank; -1: unknown */
	int32_t fd, device;
	uint64_t number;
	uint64_t bytes;
	uint64_t ns;
	struct slot *task;
};

/* False: there is no room, which is counted. Any thread. */
bool ring_write(const struct record *r);
uint64_t ring_lost(void);
/* False: there is none. One thread. */
bool ring_read(struct record *ret);
