/*
 * Engine orders
 *
 * What the agent tells an engine: which epoch it is, which memory, who is before it, and, later, who is next.
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
#define ENGINE_ORDER_RATE_MIN                                                                      \
	65536 /* slower than this, a stream at its rate would look like one that stalls */

struct address {
	struct sockaddr_storage at;
	socklen_t size;
};

enum engine_order_operation {
	ENGINE_ORDER_BROADCAST, /* the ranges go from one node to others */
	ENGINE_ORDER_AVERAGE, /* of tensors, by all nodes */
	ENGINE_ORDER_EXCHANGE, /* of what a plan says, between any nodes */
	ENGINE_ORDER_OPERATIONS,
};

struct engine_order {
	enum engine_order_operation operation;
	char node[PREAMBLE_NAME_SIZE];
	char from[PREAMBLE_NAME_SIZE]; /* "": the source, or no broadcast */
	uint8_t sync[PREAMBLE_SYNC_SIZE];
	uint64_t epoch;
	struct address address; /* with port 0 */
	struct address addresses[STRIPES_MAX]; /* all of this node, of which that is the first */
	unsigned n_addresses; /* 0: none was said */
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t n_bytes; /* of the memory */
	uint64_t result_bytes; /* of that of an exchange's result */
	char gpu[ENGINE_ORDER_GPU_SIZE]; /* "": host memory; else the memory is an allocation of this GPU's */
	uint64_t map_size; /* of that, all of it */
	struct ranges ranges;
	uint64_t total; /* bytes in the ranges */
	uint64_t chunk; /* bytes that one direction moves before the other has its turn */
	uint64_t stall_ns;
	bool tls;
	bool is_traced; /* the agent wants to be given what bytes go over */
	int memory_fd; /* an exchange may have none */
	int result_fd; /* of an average or exchange, -1 otherwise; `memory_fd` is only read then */
	int tensors_fd; /* of an average */
	int plan_fd; /* of an exchange */
	int pem_fds[3]; /* CA, certificate, key; -1 without TLS */
};

struct next {
	char node[PREAMBLE_NAME_SIZE]; /* "": this engine is the last one */
	struct address address;
	struct way {
		struct address to;
		unsigned from; /* of order::addresses, if that is bound */
	} ways[STRIPES_MAX]; /* a stripe each */
	unsigned n_ways; /* 0: one stream to `address`, from whatever address of ours */
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t max_rate; /* bytes a second, 0: as fast as it goes */
};

/* The place of a node among all that work together, where it is not a chain. */
struct place {
	unsigned rank; /* 0: the source */
	unsigned n_ranks;
	uint8_t id[ENGINE_ORDER_ID_SIZE]; /* what the source said as its hello */
	uint64_t max_rate; /* bytes a second, 0: as fast as it goes */
};

void engine_order_init(struct engine_order *o);
void engine_order_deinit(struct engine_order *o);

/* Why an engine does not do what it was told: these are its sentences. -EBADMSG, -ENOMEM. */
int engine_order_wrong(char why[ENGINE_ORDER_WHY_SIZE], const char *what);
int engine_order_no_memory(char why[ENGINE_ORDER_WHY_SIZE]);

/* Reads "open", and takes the descriptors. -EBADMSG with a sentence. */
int engine_order_read(struct json_packet *t, struct engine_order *ret,
		      char why[ENGINE_ORDER_WHY_SIZE]);
/* Digits in a field of an object. -EBADMSG. */
int engine_order_read_address(const json_t *o, const char *key, uint64_t port, struct address *ret);
/* Reads "start". */
int engine_order_read_next(const json_t *message, struct next *ret, char why[ENGINE_ORDER_WHY_SIZE]);
/* The same, of an engine without a chain. */
int engine_order_read_place(const json_t *message, struct place *ret,
			    char why[ENGINE_ORDER_WHY_SIZE]);
/* Reads "rate", and that of a "start". */
int engine_order_read_rate(const json_t *message, uint64_t *ret, char why[ENGINE_ORDER_WHY_SIZE]);
