/*
 * Joint syncs
 *
 * A version that the members of a group make together, each from its own newest one, as this node coordinates it. In
 * it this node is one of them, by a share (share.h) like the others'.
 */
#pragma once

#include "server/sync/operation.h"
#include "server/sync/share.h"
#include "server/sync/transaction.h"

struct part {
	unsigned peer; /* NO_PEER: no configured one, unless it is us */
	bool is_us;
	const char *name;
	enum member_state state;
	bool is_queued; /* it has others to prepare before, and said so */
	bool had_turn; /* and then began: it is given time for that once */
	uint64_t version;
	unsigned n_faults; /* epochs that broke by it */
	unsigned n_accused; /* times that another one named it in the epoch that broke */
	char *why;

	char address[256]; /* where its engine listens */
	uint8_t root[32], leaves[32]; /* of its result */

	/* of this epoch */
	bool is_in_epoch;
	unsigned rank;
	json_t *hellos; /* of its engine, one for each rank */
	bool is_moved; /* it has the result */
	bool has_told; /* why the epoch broke, or that it is over */
	uint64_t done, expected, rate, moved_ns;
};

struct joint {
	struct list link; /* agent::joints */
	char sync[SYNC_ID_SIZE];
	const struct operation *operation;
	bool is_dry; /* ends once it is planned */
	bool is_planned; /* and did */
	enum phase phase; /* never PHASE_DIGEST */
	enum phase ended_in;
	struct head *head;
	const struct group *group;
	enum policy policy;
	uint64_t max_rate; /* out of each node */
	struct document *document;
	struct part *parts; /* in the order of the group, this node among them */
	unsigned n_parts;
	struct part *us;
	bool decided;

	uint64_t epoch;
	unsigned n_ranks;
	struct owned owned; /* as our engine says */
	uint64_t moved_ns; /* when any byte of the epoch did last */
	bool stops; /* of PHASE_STOP: all were told to */
	char broke_why[2 * WHY_SIZE];

	struct tally tally; /* of all parts */
	struct metrics_stay stay;
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t deadline_ns; /* of the phase */
	uint64_t whole_ns;
	char *why;
};

struct joint *joint_find(struct agent *a, const char *sync);
struct joint *joint_find_of_buffer(struct agent *a, const char *buffer);

/* -errno with a sentence. */
int joint_new(struct agent *a, const struct operation *op, struct head *h, const struct group *g,
	      struct joint **ret, char why[WHY_SIZE]);
void joint_free(struct agent *a, struct joint *j);

/* From any node with a sync that this node coordinates: whether it was one. */
bool joint_on_message(struct agent *a, unsigned peer_or_self, const char *sync, const char *type,
		      const json_t *message);
void joint_on_peer_up(struct agent *a, struct joint *j, unsigned peer);
void joint_on_peer_down(struct agent *a, struct joint *j, unsigned peer, const char *why);
void joint_on_timer(struct agent *a, struct joint *j, uint64_t now);
uint64_t joint_deadline(const struct joint *j);

/* Ends it, for a reason; what was decided stays decided. */
void joint_fail(struct agent *a, struct joint *j, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

const char *part_phase(const struct part *p);

/* For its own files. */
void part_fail(struct agent *a, struct joint *j, struct part *p, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void part_set_state(struct agent *a, struct joint *j, struct part *p, enum member_state state);
/* Steals `fields`, which may be NULL. */
int part_tell(struct agent *a, struct joint *j, struct part *p, const char *type, json_t *fields);
/* A protocol error: hangs up, and it is lost to this sync. */
void part_is_wrong(struct agent *a, struct joint *j, struct part *p, const char *type);
unsigned joint_count(const struct joint *j, enum member_state state);
/* What a line of the log is about: see agent_log_of(). */
json_t *joint_about(const struct joint *j, const char *what);
/* As planned, all that can be known before anything moves: nobody keeps anything. */
void joint_end_planned(struct agent *a, struct joint *j);
