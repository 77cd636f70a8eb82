/*
 * Participants
 *
 * What this node does as a member of a sync, whoever coordinates it: how far it is, the sink that has the memory for
 * the version, the engine that fills it, and the end. What it has to do depends on the sync: it is a receiver (receiver.h) of
 * a broadcast, or is a contributor (contributor.h) in a collective.
 */
#pragma once

#include "server/sync/state/byte_count.h"
#include "server/sync/state/replica.h"

#define EPOCH_MAX ((uint64_t)1 << 32)

enum participant_state {
	PARTICIPANT_QUEUED, /* others go first */
	PARTICIPANT_WANT, /* it lacks the layout and leaves, or our own version: they are on their way */
	PARTICIPANT_CREATE, /* the sink asks the local weightd for memory */
	PARTICIPANT_READY, /* no engine moves anything */
	PARTICIPANT_OPENING, /* the engine was told to */
	PARTICIPANT_OPEN, /* it listens */
	PARTICIPANT_MOVING,
	PARTICIPANT_VERIFYING,
	PARTICIPANT_VERIFIED,
	PARTICIPANT_RECORDING, /* it is decided, and cannot be recorded: that is tried again, with the bytes as they are */
	PARTICIPANT_PUBLISHING, /* the commit log has it: the coordinator is not needed any more */
	PARTICIPANT_ENDED,
};

struct participant_ops;

struct participant {
	struct list link; /* agent::participants */
	const struct participant_ops *ops;
	enum sync_kind kind;
	char sync[SYNC_ID_SIZE];
	unsigned coordinator; /* a peer, or AGENT_SELF */
	enum participant_state state;
	enum participant_state ended_in;
	struct replica *replica;
	const char *group;
	struct version_id version_id; /* the version, or the future one */
	uint64_t n_bytes; /* 0: unknown yet */
	bool is_own; /* it is this node's alone, and no version of the group: the replica does not hear of it */

	struct work sink;
	int memory_fd;
	uint64_t data_offset; /* where its bytes begin in `memory_fd`: behind the header of a file */
	uint64_t changed; /* bytes of it that have to come; UINT64_MAX: not known yet */
	struct document *decided; /* to be recorded again; NULL: no attempt ever failed */
	uint64_t patch_size; /* size of a patch that is received instead; 0: none is */

	struct work engine;
	uint64_t open_ns, stall_ns; /* that it may take to open, and to move anything */
	uint64_t epoch; /* the last that was opened */
	bool is_broken; /* its engine said why, and keeps its sockets until all are told to stop */
	bool is_moved; /* all is there, and the engine still is */
	char from[NODE_MAX + 1]; /* "": all others */
	uint64_t expected;
	uint64_t done;
	uint64_t rate;
	uint64_t reported; /* the value of `done` that the coordinator has */
	uint64_t reported_ns;
	struct byte_count byte_count;
	struct metrics_stay stay;

	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t whole_ns; /* deadline of all */
	uint64_t idle_ns; /* a repair: when its coordinator has to have told us to do something that helps */
	uint64_t deadline_ns; /* deadline of the current wait; 0: for the coordinator, until whole_ns */
	uint64_t version; /* once published */
	const char *state_name; /* "committed", "planned" or "failed", once ended */
	char *why;
};

struct participant_message {
	const char *type;
	bool of_epoch; /* dropped where its epoch is another one */
	void (*fn)(struct agent *a, struct participant *p, const json_t *message);
};

/* The operations of a kind of participant. */
struct participant_ops {
	const char *want, *ready; /* its activity in these states, for sentences */
	bool wants_of_coordinator; /* and not of the local weightd */
	struct participant_message messages[7]; /* from the coordinator, beside those that are common to all */

	/* The sink has made memory, or says something that is not common to all; false: nobody knows that. */
	bool (*on_sink)(struct agent *a, struct participant *p, const char *op,
			const json_t *message, int *fds, unsigned n_fds);
	/* Messages of the engine. */
	void (*on_opened)(struct agent *a, struct participant *p, const json_t *message);
	void (*on_done)(struct agent *a, struct participant *p, const json_t *message);
	void (*on_broken)(struct agent *a, struct participant *p, const json_t *message);
	/* It ended. */
	void (*on_engine_end)(struct agent *a, struct participant *p, const char *why);
	/* It did not open, or moves nothing. */
	void (*on_stalled)(struct agent *a, struct participant *p, const char *why);
	/* The local weightd serves it. */
	void (*on_published)(struct agent *a, struct participant *p);
	/* Ends in participant_end(). */
	void (*end)(struct agent *a, struct participant *p, const char *state_name, const char *why);
	void (*free)(struct agent *a, struct participant *p);
};

static inline bool participant_is_repair(const struct participant *p)
{
	return p->kind == KIND_REPAIR;
}

/*
 * Returns how many bytes the layout and the leaves of a version may have: of all there may be twice
 * as many here.
 */
uint64_t participant_blobs_max(const struct agent *a);

struct participant *participant_find_of_buffer(struct agent *a, const char *buffer);

/* Any message with a sync: whether it was of one that this node has a participant in. */
bool participant_on_message(struct agent *a, unsigned peer_or_self, const char *sync,
			    const char *type, const json_t *message);
void participant_on_peer_down(struct agent *a, struct participant *p, const char *why);
void participant_on_timer(struct agent *a, struct participant *p, uint64_t now);
uint64_t participant_deadline(const struct participant *p);

/*
 * The id that a coordinator gives to a sync. -EBADMSG: it is none, or that of another sync here: what is told of the two
 * could not be told apart, least of all by whoever asked for one of them.
 */
int participant_read_sync(struct agent *a, unsigned peer_or_self, const json_t *message,
			  const char **ret);

static inline bool participant_has_begun(const struct participant *p)
{
	return p->state != PARTICIPANT_QUEUED && p->state != PARTICIPANT_ENDED;
}

/*
 * Returns whether a queued one may begin, where `max` of its kind may be under way: whoever
 * coordinates some leaves as many to others, however long its own take.
 */
bool participant_has_turn(const struct agent *a, const struct participant *p, unsigned max);

/* Gives back all that it holds; unless it is publishing, or has ended. */
void participant_drop(struct agent *a, struct participant *p, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same for a sync of this peer, which the coordinator is told. */
void participant_give_way(struct agent *a, struct participant *p, unsigned peer);

const char *participant_phase(const struct participant *p);
/* The phase in which it ended. */
const char *participant_ended_in(const struct participant *p);

/* --- Used by the kinds of participants ---------------------------------------------------------- */

/*
 * Initializes a new one, which is zeroed. Its ops, `group`, `version_id` and `n_bytes` are the
 * caller's.
 */
void participant_init(struct agent *a, struct participant *p, unsigned coordinator,
		      const char *sync, struct replica *rep);
void participant_deinit(struct agent *a, struct participant *p);
void participant_end(struct agent *a, struct participant *p, const char *state_name,
		     const char *why);
/* Drops it and tells the coordinator: before READY by a refusal, and later by `failed`. */
void participant_give_up(struct agent *a, struct participant *p, const char *code, const char *why);
/* A protocol error: hangs up, and drops it. */
void participant_out_of_order(struct agent *a, struct participant *p, const char *type);
/* Refuses a sync before there is a participant, with what this node knows of the buffer: `rep` may be NULL. */
void participant_refuse(struct agent *a, unsigned peer_or_self, const char *sync, const char *code,
			const struct replica *rep, const char *why);
/* Tells the coordinator; steals `fields`, which may be NULL. */
int participant_tell(struct agent *a, const struct participant *p, const char *type, json_t *fields);
/* 0: no deadline. */
void participant_set_state(struct agent *a, struct participant *p, enum participant_state state,
			   uint64_t wait_ns);

/* Starts the sink, which makes memory. Steals `message`. */
void participant_create(struct agent *a, struct participant *p, json_t *message, const int *fds,
			unsigned n_fds);
void participant_sink_failed(struct agent *a, struct participant *p, const char *code,
			     const char *why);
/* Another one, of which nothing is done. */
void participant_take_epoch(struct participant *p, uint64_t epoch);
/* 0: it runs; else -errno with a sentence. */
int participant_start_engine(struct agent *a, struct participant *p, enum job_kind kind,
			     char why[WHY_SIZE]);
/* Returns whether an engine runs that may still do what it was told to. */
bool participant_is_under_way(const struct participant *p);
/*
 * Records the commit, unless this node decided it or the version is its own (NULL), and publishes.
 */
void participant_publish(struct agent *a, struct participant *p, const struct document *document);
