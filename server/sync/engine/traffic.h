/*
 * The traffic
 *
 * What a TCP connection carried, as the engine counted it and as the kernel did, without SYN and FIN. Each end of each
 * link has to find both equal. Of that, the payload is what is not TLS, all of it where there is none, and has to be
 * equal to the plan.
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

/* The payload that has to go over a connection, both ways. */
struct planned_bytes {
	uint64_t received;
	uint64_t sent;
};

struct tcp_info;

/* TCP_INFO. -errno. */
int traffic_info(int fd, struct tcp_info *ret);
/* The other end hung up; or there is no connection left. */
bool traffic_has_peers_fin(const struct tcp_info *info);
bool traffic_is_closed(const struct tcp_info *info);
/* Whether some of what was written is not acknowledged. */
bool traffic_is_queued(int fd);

/* What the kernel counted of what was read and written so far; we dialled, or were dialled. -errno. */
int traffic_count(int fd, bool is_dialled, struct traffic *ret);
/* -EPROTO with a sentence. */
int traffic_check(const struct traffic *t, const struct planned_bytes *planned,
		  char why[ENGINE_ORDER_WHY_SIZE]);

void traffic_add(struct traffic *sum, const struct traffic *t);
/* Of one direction, for the agent: {bytes, kernel}, and `payload` where that is not all of them. */
json_t *traffic_describe(const struct traffic *t, bool is_in);
