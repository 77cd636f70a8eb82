/*
 * The future events of a simulated world: one queue, in the order of virtual time, and in the order
 * of insertion at one time.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum event_kind {
	EVENT_MESSAGE,
	EVENT_BLOB,
	EVENT_JOB,
	EVENT_JOB_END,
	EVENT_TIMER,
	EVENT_DOWN,
	EVENT_DIAL,
	EVENT_TICK
};

struct event {
	uint64_t at_ns;
	enum event_kind kind;
	unsigned from, to;
	uint64_t id; /* a job's, or the generation of a link */
	json_t *json;
	void *frame; /* the same, encoded, of `size` bytes */
	int fds[3];
	unsigned n_fds;
	uint8_t hash[32];
	uint64_t size;
};

/* A heap; all zero is empty. */
struct sim_queue {
	struct queued *at;
	size_t n, room;
	uint64_t order;
};

void sim_queue_deinit(struct sim_queue *q);
/* Takes the resources of the event. */
void sim_queue_push(struct sim_queue *q, struct event e);
/* The first event; the queue must not be empty. */
const struct event *sim_queue_peek(const struct sim_queue *q);
struct event sim_queue_pop(struct sim_queue *q);
void sim_event_deinit(struct event *e);
