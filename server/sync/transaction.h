/*
 * Transactions
 *
 * One version on its way from this node to members of a group: all of them for a push, a single one for a
 * repair. This node coordinates it and is the source of its bytes.
 */
#pragma once

#include "server/sync/base/ranges.h"
#include "server/sync/base/stripes.h"
#include "server/sync/head.h"
#include "server/sync/patches.h"
#include "server/sync/tally.h"

#define EPOCHS_MAX 8 /* each further one begins with the loss of a member */
#define BLAMED_MAX 2 /* links that may break at a member before others come first */
#define FAULTS_MAX 3 /* epochs that a member may break by itself */
#define CORRUPT_MAX 3 /* times that a member may find other bytes than were signed */

enum phase {
	PHASE_ATTACH, /* the source job borrows the version */
	PHASE_DIGEST, /* and reads it */
	PHASE_PREPARE,
	PHASE_COMPOSE, /* a patch, of several */
	PHASE_OPEN, /* engines of an epoch */
	PHASE_BYTES,
	PHASE_STOP, /* of an epoch that broke */
	PHASE_VERIFY,
	PHASE_COMMIT, /* decided; the last members answer */
	PHASE_ENDED,
};

enum member_state {
	MEMBER_AWAITED, /* not connected, yet */
	MEMBER_ASKED, /* has PREPARE */
	MEMBER_READY, /* has memory; in no epoch */
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

#define HELLO_MAX 1024 /* of what engines have to know of each other, beside the address */

struct member {
	unsigned peer; /* NO_PEER: no configured one */
	const char *name;
	enum member_state state;
	bool is_queued; /* it has others to prepare before, and said so */
	bool had_turn; /* and then began: it is given time for that once */
	struct ranges missing;
	unsigned base; /* of the kept patches, the first that it needs; PATCHES_MAX: what it has none begins with */
	bool by_patch; /* it gets one */
	struct ranges patch_missing; /* of that; empty: it has all, or gets none */
	unsigned n_corrupt;
	unsigned n_blamed; /* for links that broke */
	unsigned n_accused; /* as the sender of one */
	unsigned n_faults; /* epochs that it broke alone, as by the death of its engine */
	uint64_t version;
	char *why;

	unsigned n_ways; /* addresses that it has for bytes */
	uint8_t n_torn[STRIPES_MAX]; /* epochs that broke over one of them */

	/* of this epoch */
	char address[256];
	uint64_t port;
	struct data_way {
		char address[46];
		uint64_t port;
	} ways[STRIPES_MAX]; /* if it has more than that one: all */
	char token[65];
	char hello[HELLO_MAX + 1]; /* what its neighbours' engines have to know of its one; "": nothing */
	struct member *next; /* of the chain; NULL: the last one */
	uint64_t done;
	uint64_t moved_ns; /* when that grew; 0: it was not told to start */
	uint64_t rate;
	uint64_t measured; /* bytes/s over all of the epoch; 0: it has not all, yet */
};

/* The version as a patch: see delta.h. */
struct delta {
	struct patches patches; /* that this node keeps, and that end with the version */
	unsigned first; /* of those that are needed */
	bool is_composing;
	int fd; /* what travels; -1: nothing does, or not yet */
	uint64_t size;
	uint64_t changed; /* bytes of elements that it changes */
};

struct loan;

struct transaction {
	struct list link; /* agent::transactions */
	char sync[SYNC_ID_SIZE];
	bool is_repair;
	bool is_dry; /* ends once it is planned */
	bool is_planned; /* and did */
	enum phase phase;
	enum phase ended_in;
	struct head *head;
	const struct group *group;
	enum policy policy;
	uint64_t max_rate;
	struct document *document;
	struct pair before; /* what this node had committed then: what stays after a failure */
	struct member *members; /* without this node */
	unsigned n_members;
	bool counts_us; /* as a member */
	bool decided;

	struct loan *loan;
	uint64_t version; /* of the local weightd */
	bool is_gone; /* which somebody removed on purpose meanwhile; the source still has the memory */
	bool is_unwanted; /* that memory is wanted back */
	int layout_fd;
	int data_fd;
	int leaves_fd;

	struct delta delta;

	struct work engine;
	char engine_hello[HELLO_MAX + 1];
	uint64_t epoch;
	struct member *first; /* of the last epoch's chain */
	uint64_t changed; /* bytes that any member lacked once all had prepared; UINT64_MAX: not known yet */
	bool by_patch; /* the epoch carries the patch, and else the version */
	struct ranges ranges; /* of what it carries */
	uint64_t expected;
	bool engine_is_open;
	bool engine_is_done;
	uint64_t engine_done; /* bytes */
	uint64_t epoch_ns; /* when its bytes began to move */
	uint64_t moved_ns; /* when any did last */
	char broke_why[WHY_SIZE];
	char broke_link[2 * NODE_MAX + 8]; /* "a -> b" */
	struct culprit {
		struct member *by; /* who told; NULL: nobody did */
		bool is_link; /* or itself */
		struct member *ends[2]; /* NULL: this node */
		unsigned place; /* of the link in the chain */
	} culprit; /* of the epoch that broke */
	struct broken {
		const struct member *ends[2];
		unsigned n_times;
	} broken[EPOCHS_MAX]; /* links, of all epochs */
	unsigned n_broken;
	struct {
		struct member *from, *to; /* `to` NULL: none broke */
		unsigned place;
	} torn; /* the stripe over which the epoch broke */
	uint8_t n_torn[STRIPES_MAX]; /* the same as member::n_torn, of this node */

	struct tally tally; /* of all members */
	struct metrics_stay stay;
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t deadline_ns; /* of the phase */
	uint64_t whole_ns;
	char *why;
};

struct transaction *transaction_find(struct agent *a, const char *sync);
struct transaction *transaction_find_of_buffer(struct agent *a, const char *buffer);

/*
 * A push, or a repair of the one peer, whose document is the head's. `version` is the local weightd's, 0 the
 * newest. -errno with a sentence.
 */
int transaction_new(struct agent *a, struct head *h, const struct group *g, unsigned repair_of,
		    uint64_t version, struct transaction **ret, char why[WHY_SIZE]);
void transaction_free(struct agent *a, struct transaction *t);

/* From any member with a sync that this node coordinates: whether it was one. */
bool transaction_on_message(struct agent *a, unsigned peer, const char *sync, const char *type,
			    const json_t *message);
void transaction_on_peer_up(struct agent *a, struct transaction *t, unsigned peer);
void transaction_on_peer_down(struct agent *a, struct transaction *t, unsigned peer,
			      const char *why);
void transaction_on_timer(struct agent *a, struct transaction *t, uint64_t now);
uint64_t transaction_deadline(const struct transaction *t);

/* Ends it, for a reason; what was decided stays decided. */
void transaction_fail(struct agent *a, struct transaction *t, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* A member is lost to it. */
void member_fail(struct agent *a, struct transaction *t, struct member *m, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void member_set_state(struct agent *a, struct transaction *t, struct member *m,
		      enum member_state state);
int member_tell(struct agent *a, struct transaction *t, struct member *m, const char *type,
		json_t *fields);
bool member_is_final(const struct member *m);
const char *member_phase(const struct member *m);
/* A protocol error: hangs up, and it is lost to this sync. */
void member_is_wrong(struct agent *a, struct transaction *t, struct member *m, const char *type);

/* What a line of the log is about: see agent_log_of(). `peer` may be NULL. */
json_t *transaction_about(const struct transaction *t, const char *what, const char *peer);
unsigned transaction_count(const struct transaction *t, enum member_state state);
/* Goes to whatever follows from the states of its members. */
void transaction_step(struct agent *a, struct transaction *t);
/* Its bytes are there, and it is signed: asks its members to prepare. */
void transaction_prepare(struct agent *a, struct transaction *t);
void transaction_set_phase(struct agent *a, struct transaction *t, enum phase phase,
			   uint64_t wait_ns);
