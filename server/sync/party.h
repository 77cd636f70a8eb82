/*
 * Parties
 *
 * This node as a member of one sync that another one coordinates: what it holds for it, and how far it is.
 */
#pragma once

#include "server/sync/base/ranges.h"
#include "server/sync/head.h"
#include "server/sync/tally.h"

#define PARTY_EPOCH_MAX ((uint64_t)1 << 32)

enum party_state {
	PARTY_QUEUED, /* others go first */
	PARTY_WANT, /* layout and leaves are on their way */
	PARTY_CREATE, /* the sink asks the local weightd for memory */
	PARTY_READY, /* no engine runs */
	PARTY_OPENING, /* the engine was told to */
	PARTY_OPEN, /* it listens */
	PARTY_MOVING,
	PARTY_VERIFYING,
	PARTY_VERIFIED,
	PARTY_PUBLISHING, /* the record has it: the coordinator is not needed any more */
	PARTY_ENDED,
};

enum party_blob {
	BLOB_LAYOUT,
	BLOB_LEAVES,
	N_BLOBS
};

struct party {
	struct list link; /* agent::parties */
	char sync[SYNC_ID_SIZE];
	unsigned coordinator; /* a peer */
	bool is_repair;
	enum party_state state;
	enum party_state ended_in;
	struct head *head;
	struct document *document;
	int blob_fds[N_BLOBS];

	struct work sink;
	int memory_fd;
	uint8_t base[32]; /* the root of what the sink begins with */
	struct ranges missing;
	int patch_fd; /* memory for a patch; -1: none was offered */
	uint64_t patch_size;
	struct ranges patch_missing;
	uint64_t changed; /* bytes that were missing when there was memory; UINT64_MAX: not known yet */

	struct work engine;
	uint64_t epoch; /* the last that was opened */
	bool gloo; /* its engine */
	unsigned n_stripes_in, n_stripes_out;
	bool by_patch; /* it carries a patch, and else the version */
	char from[NODE_MAX + 1];
	char to[NODE_MAX + 1]; /* "": the last of the chain */
	struct ranges ranges; /* what the epoch carries */
	uint64_t expected;
	uint64_t done;
	uint64_t rate;
	uint64_t reported; /* of done, to the coordinator */
	uint64_t reported_ns;
	struct tally tally;
	struct metrics_stay stay;

	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t begun_ns; /* CLOCK_MONOTONIC */
	uint64_t whole_ns; /* deadline of all */
	uint64_t idle_ns; /* a repair: when its coordinator has to have told us to do something that helps */
	unsigned n_corrupt; /* times that what had come was wrong */
	uint64_t deadline_ns; /* of what is waited for now; 0: for the coordinator, until whole_ns */
	uint64_t version; /* once published */
	const char *state_name; /* "committed", "planned" or "failed", once ended */
	char *why;
};

struct party *party_find_of_buffer(struct agent *a, const char *buffer);

/* Begins those that may, oldest first. */
void party_begin_next(struct agent *a);

void party_on_prepare(struct agent *a, unsigned peer, const json_t *message);
/* Any other message with a sync: whether it was of one that this node is a member of. */
bool party_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
		      const json_t *message);
void party_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);
uint64_t party_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32]);
void party_on_peer_down(struct agent *a, struct party *p, const char *why);
void party_on_timer(struct agent *a, struct party *p, uint64_t now);
uint64_t party_deadline(const struct party *p);

/* Gives back all that it holds; unless it is publishing, or has ended. */
void party_drop(struct agent *a, struct party *p, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same for a sync of this peer, which the coordinator is told. */
void party_give_way(struct agent *a, struct party *p, unsigned peer);
void party_free(struct agent *a, struct party *p);
const char *party_phase(const struct party *p);
/* The phase in which it ended. */
const char *party_ended_in(const struct party *p);

/* For its own files. Tells the coordinator; steals `fields`, which may be NULL. */
int party_tell(struct agent *a, const struct party *p, const char *type, json_t *fields);
/* 0: no deadline. */
void party_set_state(struct agent *a, struct party *p, enum party_state state, uint64_t wait_ns);
/* A protocol error: hangs up, and drops it. */
void party_out_of_order(struct agent *a, struct party *p, const char *type);
