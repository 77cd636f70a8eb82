/*
 * Collectives
 *
 * What several nodes make together, each from a version of its own, as this node coordinates it: a version of all members
 * of a group here, shards of a model in reshard.h. In it this node is one of them, as a contributor (contributor.h) like the
 * others'.
 */
#pragma once

#include "server/sync/coordinator/sync.h"
#include "server/sync/state/collective_op.h"

struct collective {
	struct sync sync; /* this node is one of its members */
	const struct collective_op *op;
	uint64_t size; /* bytes of all that comes about; 0: not known yet */
	struct flows flows; /* flows of an average, as our engine reports them */
	struct reshard *reshard; /* NULL: it is none */

	/* the epoch: */
	unsigned n_ranks;
	uint64_t moved_ns; /* when any byte of it did last */
	bool stops; /* PHASE_STOP: "stop" was sent to every member */
};

static inline struct collective *collective_of(const struct sync *s)
{
	return container_of(s, struct collective, sync);
}

/* It begins by the next timer. -errno with a sentence. */
int collective_new(struct agent *a, const struct collective_op *op, struct replica *rep,
		   const struct group *g, struct sync **ret, char why[WHY_SIZE]);

/* --- Used by reshard.c ------------------------------------------------------------------------ */

/*
 * It begins by the next timer, in PHASE_ATTACH: whoever asked for it knows its name by then, whatever becomes of it at
 * once.
 */
void collective_arm(struct agent *a, struct sync *s);
/* There is room for it. `name` lives as long as the agent. */
void collective_add_member(struct agent *a, struct sync *s, const char *name);
/* The fields that every JOIN has. */
json_t *collective_invitation(const struct agent *a, const struct sync *s);
/* Reads the address in READY. False: the member was lost for it. */
bool collective_take_address(struct agent *a, struct sync *s, struct member *m,
			     const json_t *message);

/* Rows of struct sync_ops. */
void collective_on_begun(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void collective_move(struct agent *a, struct sync *s);
void collective_step(struct agent *a, struct sync *s);
void collective_on_timer(struct agent *a, struct sync *s, uint64_t now);
void collective_on_lost(struct agent *a, struct sync *s, struct member *m, enum member_state was);
void collective_free(struct agent *a, struct sync *s);
bool collective_is_moved(const struct member *m);
void collective_progress(const struct sync *s, const struct member *m, struct progress *ret);
void collective_describe_bytes(const struct agent *a, const struct sync *s, const struct member *m,
			       char *ret, size_t size);
