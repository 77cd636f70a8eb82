/*
 * Sums: bytes of a communicator that a socket, a queue pair, or the proxy to a peer carried one way
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/nccl/ring.h"

struct sum {
	enum record_kind kind; /* RECORD_OP, _SOCKET or _QP */
	bool is_send;
	bool is_refused; /* the tracer does not take this socket */
	uint16_t comm;
	int32_t peer;
	int32_t fd, device;
	uint64_t number;
	uint64_t bytes, n;
	uint64_t n_reported;
	uint64_t reported_ns; /* the last time */
	uint64_t first_ns, last_ns;
	uint64_t tagged; /* the connection to the tracer by which it was */
};

#define SUMS_MAX 6144
#define SUM_BUCKETS 8192

/* All zero is none. */
struct sums {
	struct sum of[SUMS_MAX];
	unsigned n;
	uint16_t buckets[SUM_BUCKETS]; /* number of the sum, from 1 on; 0: none */
	uint64_t lost; /* records for which there was no room */
};

void sums_add(struct sums *s, const struct record *r);
/* Those of a communicator go; the others move up. */
void sums_drop(struct sums *s, uint16_t comm);

/*
 * From this one on: the first with bytes that were not reported since `reported_ns`, or NULL. `comm` < 0: of any.
 */
struct sum *sums_next_unreported(struct sums *s, unsigned from, int comm, uint64_t reported_ns);
/* A socket that was not tagged by this connection. */
struct sum *sums_next_untagged(struct sums *s, uint64_t connection);
/* Sockets that carry both ways, or to two peers, have several sums. */
void sums_set_tagged(struct sums *s, uint64_t cookie, uint64_t connection, bool is_refused);
/* A new tracer has had no report. */
void sums_forget_reported(struct sums *s);
