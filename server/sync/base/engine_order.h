/*
 * Engine orders
 *
 * Messages from the agent to an engine: the epoch, the memory and the previous node, and later the
 * next node.
 */
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "server/sync/base/json_packet.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/ranges.h"
#include "server/sync/base/stripes.h"

#define ENGINE_ORDER_WHY_SIZE 512
#define ENGINE_ORDER_GPU_SIZE 64
#define ENGINE_ORDER_ID_SIZE 128
#define ENGINE_ORDER_RATE_MIN 65536 /* at a lower rate, a stream would look stalled */

struct address {
	struct sockaddr_storage at;
	socklen_t size;
};

enum engine_order_operation {
	ENGINE_ORDER_BROADCAST, /* sends the ranges from one node to others */
	ENGINE_ORDER_AVERAGE, /* averages tensors of all nodes */
	ENGINE_ORDER_EXCHANGE, /* moves bytes between any nodes by a plan */
	ENGINE_ORDER_OPERATIONS,
};

struct engine_order {
	enum engine_order_operation operation;
	char node[PREAMBLE_NAME_SIZE];
	char from[PREAMBLE_NAME_SIZE]; /* "": the source, or no broadcast */
	uint8_t sync[PREAMBLE_SYNC_SIZE];
	uint64_t epoch;
	struct address address; /* with port 0 */
	/* All addresses of this node; `address` is the first. */
	struct address addresses[STRIPES_MAX];
	unsigned n_addresses; /* 0: the order has none */
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t n_bytes; /* size of the memory */
	uint64_t data_offset; /* where it begins in `memory_fd`: behind the header of a file, or 0 */
	uint64_t result_bytes; /* size of an exchange's result */
	uint64_t result_offset; /* the same in `result_fd` */
	/* "": host memory; else the memory is an allocation on this GPU */
	char gpu[ENGINE_ORDER_GPU_SIZE];
	uint64_t map_size; /* all of that allocation */
	uint64_t result_map_size; /* all of the result's, on the same GPU */
	struct ranges ranges;
	uint64_t total; /* bytes in the ranges */
	uint64_t chunk; /* bytes that one direction moves before the other has its turn */
	uint64_t stall_ns;
	bool tls;
	bool is_traced; /* the agent wants each socket, to have its bytes traced */
	int memory_fd; /* an exchange may have none */
	int result_fd; /* an average's or exchange's, which only reads `memory_fd`; otherwise -1 */
	int tensors_fd; /* an average's */
	int plan_fd; /* an exchange's */
	int pem_fds[3]; /* CA, certificate, key; -1 without TLS */
};

struct next {
	char node[PREAMBLE_NAME_SIZE]; /* "": this engine is the last one */
	struct address address;
	struct way {
		struct address to;
		unsigned from; /* index in engine_order::addresses, if that is bound */
	} ways[STRIPES_MAX]; /* one stripe each */
	unsigned n_ways; /* 0: one stream to `address`, from any address of this node */
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t max_rate; /* bytes per second, 0: no limit */
};

/* The rank of a node in an operation that is no chain. */
struct place {
	unsigned rank; /* 0: the source */
	unsigned n_ranks;
	uint8_t id[ENGINE_ORDER_ID_SIZE]; /* the `hello` of the source */
	uint64_t max_rate; /* bytes per second, 0: no limit */
};

void engine_order_init(struct engine_order *o);
void engine_order_deinit(struct engine_order *o);

/* Write the reason why an engine refuses an order. Return -EBADMSG, -ENOMEM. */
int engine_order_wrong(char why[ENGINE_ORDER_WHY_SIZE], const char *what);
int engine_order_no_memory(char why[ENGINE_ORDER_WHY_SIZE]);

/* Reads "open", and takes the descriptors. -EBADMSG with a sentence. */
int engine_order_read(struct json_packet *t, struct engine_order *ret,
		      char why[ENGINE_ORDER_WHY_SIZE]);
/* Reads an address in digits from a field of an object. -EBADMSG. */
int engine_order_read_address(const json_t *o, const char *key, uint64_t port, struct address *ret);
/* Reads "start". */
int engine_order_read_next(const json_t *message, struct next *ret, char why[ENGINE_ORDER_WHY_SIZE]);
/* Reads "start" of an engine without a chain. */
int engine_order_read_place(const json_t *message, struct place *ret,
			    char why[ENGINE_ORDER_WHY_SIZE]);
/* Reads "rate", and the rate in "start". */
int engine_order_read_rate(const json_t *message, uint64_t *ret, char why[ENGINE_ORDER_WHY_SIZE]);
