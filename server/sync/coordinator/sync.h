/*
 * Syncs
 *
 * A version that members of a group are to have, all of them or as the policy says, as this node coordinates it: phases,
 * the states of members, deadlines, the decision and the end. How its bytes come about is the matter of those that are
 * made of one: a broadcast (broadcast.h) brings what this node has, a collective (collective.h) makes something new.
 */
#pragma once

#include "server/sync/base/ranges.h"
#include "server/sync/base/stripes.h"
#include "server/sync/state/byte_count.h"
#include "server/sync/state/data_way.h"
#include "server/sync/state/replica.h"
#include "server/sync/state/transport.h"

enum phase {
	PHASE_ATTACH, /* the source job borrows the version */
	PHASE_DIGEST, /* and reads it */
	PHASE_PREPARE,
	PHASE_COMPOSE, /* a patch, of several */
	PHASE_OPEN, /* engines of an epoch */
	PHASE_BYTES,
	PHASE_STOP, /* engines of a broken epoch */
	PHASE_VERIFY,
	PHASE_COMMIT, /* decided; the last members answer */
	PHASE_ENDED,
};

enum member_state {
	MEMBER_AWAITED, /* not connected, yet */
	MEMBER_ASKED, /* to prepare */
	MEMBER_READY, /* has memory; its engine moves nothing */
	MEMBER_OPENING,
	MEMBER_OPEN,
	MEMBER_MOVING,
	MEMBER_STOPPING,
	MEMBER_VERIFYING,
	MEMBER_VERIFIED,
	MEMBER_COMMITTING,
	/* These are final. */
	MEMBER_COMMITTED,
	MEMBER_FAILED,
	MEMBER_ABSENT,
	MEMBER_UNKNOWN, /* has COMMIT, and was lost before it answered */
	MEMBER_PLANNED, /* was ready, and nothing more was wanted */
};

#define FAULTS_MAX 3 /* epochs that a member may break by itself */

struct member {
	unsigned peer; /* NO_PEER: no configured one, unless it is us */
	bool is_us;
	const char *name;
	enum member_state state;
	bool is_queued; /* it has others to prepare before, and said so */
	bool had_turn; /* and then began: it is given time for that once */
	unsigned n_accused; /* as the cause that an epoch broke, by others */
	unsigned n_faults; /* epochs that broke by it alone, as by the death of its engine */
	uint64_t version;
	char *why;

	/* this epoch: */
	char address[256];
	uint64_t done;
	uint64_t moved_ns; /* when that grew; 0: it was not told to start */
	uint64_t rate;

	/* Only in broadcasts. */
	struct ranges missing;
	unsigned base; /* the first of the kept patches that it needs; PATCH_CHAIN_MAX: none begins with its version */
	bool by_patch; /* it gets one */
	struct ranges patch_missing; /* its missing bytes of the patch; empty: it has all, or gets none */
	bool is_corrupt; /* has found other bytes, for which nobody was blamed yet */
	unsigned n_corrupt;
	unsigned n_blamed; /* blames for broken links */
	bool is_late; /* others were not to wait for it */
	unsigned n_ways; /* addresses that it has for bytes */
	uint8_t n_torn[STRIPES_MAX]; /* epochs that broke over one of them */
	/* and of its epoch */
	uint64_t port;
	struct data_way ways[STRIPES_MAX]; /* if it has more than that one: all */
	char token[65];
	char hello[TRANSPORT_HELLO_MAX + 1]; /* its engine's, for those of its neighbours; "": none */
	struct member *next; /* in the chain; NULL: this is the last one */
	uint64_t measured; /* bytes/s over all of the epoch; 0: it has not all, yet */

	/* Only in collectives. */
	uint8_t root[32], leaves[32]; /* its result's */
	/* and of its epoch */
	bool is_in_epoch;
	unsigned rank;
	json_t *hellos; /* from its engine, one for each rank */
	uint64_t nccl; /* its version of NCCL; 0: the engine is another one */
	uint64_t expected;
	struct member *accuser; /* the last that named it as the cause of the broken epoch; NULL: only itself */
	bool is_moved; /* it has the result */
	bool has_told; /* why the epoch broke, or that it is over */
};

struct sync_ops;

struct sync {
	struct list link; /* agent::syncs */
	const struct sync_ops *ops;
	enum sync_kind kind;
	char id[SYNC_ID_SIZE];
	bool is_dry; /* ends once it is planned */
	bool is_planned; /* and did */
	enum phase phase;
	enum phase ended_in;
	struct replica *replica;
	const struct group *group;
	enum policy policy;
	unsigned n_least; /* members that have to commit, where each may */
	uint64_t max_rate; /* out of each node */
	struct document *document;
	uint64_t version; /* in the local weightd, if this node has it already */
	struct member *members; /* in the order of the group */
	unsigned n_members;
	struct member *us; /* NULL: this node has it already, and is none of them */
	bool counts_us; /* it is one of the group all the same */
	bool decided;
	bool is_left; /* whoever waits for nobody slow was told that it is committed */
	bool has_told; /* the members that have it, while it continued for slow ones */

	uint64_t epoch;
	uint64_t changed; /* bytes that had to come to any of them; UINT64_MAX: not known yet */
	char broke_why[2 * WHY_SIZE]; /* the last epoch */

	struct byte_count byte_count; /* the sum over all members */
	struct metrics_stay stay;
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t deadline_ns; /* end of the phase */
	uint64_t answer_ns; /* deadline of members that verify or commit before others are that far; 0: none ever did */
	uint64_t whole_ns; /* when all have to have their bytes */
	char *why;
};

struct sync_message {
	const char *type;
	bool of_epoch; /* dropped where its epoch is another one */
	void (*fn)(struct agent *a, struct sync *s, struct member *m, const json_t *message);
};

#define SYNC_STALE_NS (2 * SECOND) /* a rate that was reported so long ago means nothing any more */

/* Progress of a member, or of this node if it is none, for people. */
struct progress {
	uint64_t done;
	uint64_t expected;
	uint64_t size; /* bytes of the version, or of all that comes about; 0: not known yet */
	uint64_t patch; /* bytes of the patch that it gets; 0: it gets none */
	uint64_t n_differ; /* bytes of elements that this changes; UINT64_MAX: not known here */
};

/* The operations of a kind of sync. Functions may be NULL where that is said. */
struct sync_ops {
	const char *ask; /* the message that asks a member to prepare */
	json_t *(*ask_fields)(const struct agent *a, const struct sync *s);
	const char *ready; /* the thing that a ready member waits for, for sentences */
	struct sync_message messages[12]; /* that members send, beside those that are common to all */

	/* Returns how long it may take as a whole, once all are prepared. */
	uint64_t (*time_to_move)(const struct agent *a, const struct sync *s);
	/* All that can are ready. */
	void (*move)(struct agent *a, struct sync *s);
	/* A state has changed in a phase that is not common to all: whether that is over. */
	void (*step)(struct agent *a, struct sync *s);
	/* The deadline of such a phase. */
	void (*on_timer)(struct agent *a, struct sync *s, uint64_t now);
	/* It took longer than it may as a whole. NULL, or false: so all of it fails. */
	bool (*on_late)(struct agent *a, struct sync *s);
	/* A member was lost that was in this state; others are enough. */
	void (*on_lost)(struct agent *a, struct sync *s, struct member *m, enum member_state was);
	/* Makes it durable before anybody is told; false: it failed for it. */
	bool (*decide)(struct agent *a, struct sync *s);
	json_t *(*commit_fields)(const struct sync *s, const struct member *m);
	/* Ends in sync_end(). */
	void (*end)(struct agent *a, struct sync *s, bool committed);
	void (*free)(struct agent *a, struct sync *s);

	bool (*is_moved)(const struct member *m);
	void (*progress)(const struct sync *s, const struct member *m_or_null, struct progress *ret);
	/* The node that sends to it, and whether others wait because of it; NULL: all do. */
	const char *(*from)(const struct agent *a, const struct sync *s, const struct member *m);
	bool (*is_slow)(const struct agent *a, const struct sync *s, const struct member *m);
	/* " (a -> b, 312 of 1024 MiB)", or nothing, for a member with an engine. */
	void (*describe_bytes)(const struct agent *a, const struct sync *s, const struct member *m,
			       char *ret, size_t size);
	/* "while it is cut", where the phase is not all that there is to say; false: it is. */
	bool (*describe_phase)(const struct agent *a, const struct sync *s, char *ret, size_t size);
	/* Describes the version that is served after a failure before the decision. */
	void (*describe_kept)(const struct sync *s, char *ret, size_t size);
};

static inline bool sync_is_repair(const struct sync *s)
{
	return s->kind == KIND_REPAIR;
}

struct sync *sync_find(struct agent *a, const char *id);
struct sync *sync_find_of_buffer(struct agent *a, const char *buffer);

/* One of `n_members` to come, of which the caller fills in the names. Without a document and lists: -ENOMEM. */
int sync_init(struct agent *a, struct sync *s, const struct sync_ops *ops, enum sync_kind kind,
	      struct replica *rep, const struct group *g, unsigned n_members);
/* All that members do not hold for their kind. */
void sync_deinit(struct sync *s);

/* From any node with a sync that this node coordinates: whether it was one. */
bool sync_on_message(struct agent *a, unsigned peer_or_self, const char *id, const char *type,
		     const json_t *message);
void sync_on_peer_up(struct agent *a, struct sync *s, unsigned peer);
void sync_on_peer_down(struct agent *a, struct sync *s, unsigned peer, const char *why);
void sync_on_timer(struct agent *a, struct sync *s, uint64_t now);
uint64_t sync_deadline(const struct sync *s);

/* Ends it, for a reason; what was decided stays decided. */
void sync_fail(struct agent *a, struct sync *s, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

const char *member_phase(const struct sync *s, const struct member *m);
/* Its last reported rate in bytes/s; 0 once the report is stale. */
uint64_t member_rate(const struct agent *a, const struct member *m);
bool member_is_stale(const struct agent *a, const struct member *m);

/* --- Used by the kinds of syncs ----------------------------------------------------------------- */

/* A member is lost to it. */
void member_fail(struct agent *a, struct sync *s, struct member *m, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void member_set_state(struct agent *a, struct sync *s, struct member *m, enum member_state state);
/* Steals `fields`, which may be NULL. */
int member_tell(struct agent *a, struct sync *s, struct member *m, const char *type, json_t *fields);
/* A protocol error: hangs up, and it is lost to this sync. */
void member_is_wrong(struct agent *a, struct sync *s, struct member *m, const char *type);
/* Failed or absent. */
bool member_is_lost(const struct member *m);
/* "while bytes moved (a -> b, 312 of 1024 MiB)" */
void member_describe(const struct agent *a, const struct sync *s, const struct member *m, char *ret,
		     size_t size);
/* Counts on it no more than once: it has begun what it was asked for. */
void member_begins(struct agent *a, struct sync *s, struct member *m);
/* Handles its refusal to prepare, but for what is special to the kind. */
void member_on_refuse(struct agent *a, struct sync *s, struct member *m, const json_t *message);

void sync_set_phase(struct agent *a, struct sync *s, enum phase phase, uint64_t wait_ns);
/* NULL, too, for no name. */
struct member *sync_find_member(struct sync *s, const char *name);
unsigned sync_count(const struct sync *s, enum member_state state);
/* Loses all in a state that did not answer for so long, but those that wait for their turn. */
void sync_lose_all_in(struct agent *a, struct sync *s, enum member_state state, uint64_t wait_ns);
/* Goes to whatever follows from the states of its members. */
void sync_step(struct agent *a, struct sync *s);
/* Asks its members to prepare, once the version is known. */
void sync_prepare(struct agent *a, struct sync *s);
/* It has all bytes. */
void member_verify(struct agent *a, struct sync *s, struct member *m);
/* Those that are ready have, and nobody else is to get any. */
void sync_verify(struct agent *a, struct sync *s);
/* One verified: once those that did are enough, decides, and tells them. */
void sync_vote(struct agent *a, struct sync *s);
/* None are left that verify. */
void sync_commit(struct agent *a, struct sync *s);
/*
 * Returns whether it is decided, and only continues for slow members: another sync may begin without waiting for it.
 */
bool sync_is_only_slow(const struct sync *s);
/* The same, once this member has shown to be slow: others were not to wait for it. */
bool sync_is_late(const struct sync *s, const struct member *m);
bool sync_is_left_to_late(const struct sync *s);
void sync_end(struct agent *a, struct sync *s, bool committed);
/* As planned, all that can be known before anything moves: nobody keeps anything. */
void sync_end_planned(struct agent *a, struct sync *s);
/*
 * Returns how long a member may take, beside what it says of its weightd, which has to arrive as it
 * knows more.
 */
uint64_t sync_time_to_prepare(const struct agent *a, const struct sync *s);
uint64_t sync_time_to_commit(const struct agent *a, const struct sync *s);

/* The fields of a line of the log: see agent_log_of(). `peer` may be NULL. */
json_t *sync_about(const struct sync *s, const char *what, const char *peer);
