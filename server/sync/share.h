/*
 * Shares
 *
 * This node's part in a version that several make together: the version that it gives, the memory that the result
 * comes to, and the engine between them. Who coordinates has one as well, and talks to it like to any other.
 */
#pragma once

#include "server/sync/head.h"
#include "server/sync/operation.h"
#include "server/sync/tally.h"

enum share_state {
	SHARE_QUEUED, /* others go first */
	SHARE_ATTACH, /* the source job borrows our newest version */
	SHARE_MAKE, /* the sink asks the local weightd for memory */
	SHARE_READY, /* no engine moves anything */
	SHARE_OPENING,
	SHARE_OPEN, /* it waits to be told of the others */
	SHARE_MOVING,
	SHARE_BROKEN, /* it said why, and keeps its sockets until all are told to stop */
	SHARE_VERIFYING,
	SHARE_VERIFIED,
	SHARE_PUBLISHING, /* the record has it: the coordinator is not needed any more */
	SHARE_ENDED,
};

/* What a coordinator asks to take part in. */
struct invitation {
	char sync[SYNC_ID_SIZE];
	const struct operation *operation;
	char group[GROUP_MAX + 1];
	char buffer[BUFFER_MAX + 1];
	struct pair pair; /* of the version to be */
	uint64_t time_ns;
	bool has_layout; /* false: whatever we have is what the others are asked for */
	uint64_t n_bytes;
	uint64_t layout_bytes;
	uint8_t layout[32];
};

struct share {
	struct list link; /* agent::shares */
	struct invitation invitation;
	unsigned coordinator; /* a peer, or AGENT_SELF */
	enum share_state state;
	bool had_to_wait; /* for its turn, and said so */
	enum share_state ended_in;
	struct head *head;

	struct work source;
	uint64_t lent; /* version of the local weightd */
	uint64_t n_bytes;
	uint64_t layout_bytes;
	uint8_t layout[32];
	int layout_fd, data_fd, tensors_fd;

	struct work sink;
	int memory_fd;
	uint8_t root[32], leaves[32]; /* of the result, once it is verified */
	int leaves_fd;

	struct work engine;
	uint64_t epoch; /* the last that was opened */
	json_t *nodes; /* of it, by rank */
	unsigned rank;
	struct owned owned;
	uint64_t expected, done, rate;
	uint64_t reported; /* of done, to the coordinator */
	uint64_t reported_ns;
	bool is_moved; /* the result is there */
	struct tally tally;
	struct metrics_stay stay;

	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t whole_ns; /* deadline of all */
	uint64_t deadline_ns; /* of what is waited for now; 0: for the coordinator, until whole_ns */
	uint64_t version; /* once published */
	const char *state_name; /* "committed", "planned" or "failed", once ended */
	char *why;
};

struct share *share_find_of_buffer(struct agent *a, const char *buffer);

/* Begins those that may, oldest first. */
void share_begin_next(struct agent *a);

void share_on_join(struct agent *a, unsigned peer_or_self, const json_t *message);
/* Any other message with a sync: whether it was of one that this node has a share in. */
bool share_on_message(struct agent *a, unsigned peer_or_self, const char *sync, const char *type,
		      const json_t *message);
void share_on_peer_down(struct agent *a, struct share *s, const char *why);
void share_on_timer(struct agent *a, struct share *s, uint64_t now);
uint64_t share_deadline(const struct share *s);

/* Gives back all that it holds, for another sync of this peer; unless it is publishing, or has ended. */
void share_give_way(struct agent *a, struct share *s, unsigned peer);
void share_free(struct agent *a, struct share *s);
const char *share_phase(const struct share *s);
/* The phase in which it ended. */
const char *share_ended_in(const struct share *s);
/* Its state as metrics.h counts them: that of a party that does as much. */
unsigned share_stay(const struct share *s);
