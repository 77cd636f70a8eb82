/*
 * The traffic
 *
 * Bytes that a TCP connection carried, counted by the engine and by the kernel, without SYN and
 * FIN. Both counts must be equal at each end of each link. The payload is the part that is not TLS,
 * all of it without TLS, and must equal the plan.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/sync/base/engine_order.h"

struct traffic {
	uint64_t received;
	uint64_t sent;
	uint64_t kernel_received;
	uint64_t kernel_sent;
	uint64_t payload_received;
	uint64_t payload_sent;
};

/* The payload that must go over a connection, both ways. */
struct planned_bytes {
	uint64_t received;
	uint64_t sent;
};

struct tcp_info;

/* Reads TCP_INFO. -errno. */
int traffic_info(int fd, struct tcp_info *ret);
/* The peer has closed its side, or there is no connection left. */
bool traffic_has_peers_fin(const struct tcp_info *info);
bool traffic_is_closed(const struct tcp_info *info);
/* Some of the written bytes are not acknowledged. */
bool traffic_is_queued(int fd);

/* Reads the kernel's count of bytes read and written so far; `is_dialled`: we connected. -errno. */
int traffic_count(int fd, bool is_dialled, struct traffic *ret);
/* -EPROTO with a sentence. */
int traffic_check(const struct traffic *t, const struct planned_bytes *planned,
		  char why[ENGINE_ORDER_WHY_SIZE]);

void traffic_add(struct traffic *sum, const struct traffic *t);
/* One direction, for the agent: {bytes, kernel}, and `payload` if that differs. */
json_t *traffic_describe(const struct traffic *t, bool is_in);
