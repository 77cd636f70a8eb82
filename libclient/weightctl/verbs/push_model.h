/*
 * Model of a push
 *
 * The duration of a push to all nodes of a group, and its bytes on each link, by schedule. Pure arithmetic, without
 * clocks or sockets. Times are in seconds, rates in bytes a second.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* So that no number of bytes overflows. */
#define PUSH_MODEL_NODES_MAX 100000
#define PUSH_MODEL_BYTES_MAX UINT64_C(50000000000000)
#define PUSH_MODEL_FAILURES_MAX 7 /* a push is given up after 8 epochs */

struct push_model_cluster {
	uint64_t n_nodes; /* the publisher's included: 2 to PUSH_MODEL_NODES_MAX */
	uint64_t n_bytes; /* bytes of the version: 1 to PUSH_MODEL_BYTES_MAX */
	double rate; /* bytes per second that a node sends, and receives at the same time; > 0 */
	double digest_rate; /* bytes per second that a node digests; > 0 */
	uint64_t chunk; /* bytes of a piece that a node must have before it forwards it, 1 at least */
	double latency_s; /* from one node to the next */
	uint64_t n_stragglers; /* fewer than n_nodes */
	double slowness; /* so many times slower than `rate` they are; 1 at least */
	uint64_t n_failures; /* nodes that go silent, one after the other; fewer than n_nodes - 1, up to PUSH_MODEL_FAILURES_MAX */
	double stall_s; /* until that is noticed */
};

struct push_model {
	double moves_s; /* until the last node has all bytes */
	double others_s; /* until all that are no stragglers have */
	double total_s; /* until they can be read: with the publisher's digest before, and the nodes' after */
	double root_bytes; /* that the publisher sends; these three without what failures cost */
	double link_bytes; /* most bytes from one node to another */
	double all_bytes; /* over all links */
	uint64_t n_links;
	double again_bytes; /* sent to nodes that had them, or in vain, as others failed */
};

struct push_model_schedule {
	const char *name; /* NULL ends the list */
	bool runs; /* it is what weightd-sync does */
	void (*fill)(const struct push_model_cluster *c, struct push_model *ret);
};

extern const struct push_model_schedule push_model_schedules[];

void push_model_make(const struct push_model_schedule *s, const struct push_model_cluster *c,
		     struct push_model *ret);
