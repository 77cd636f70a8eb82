/*
 * Hooks
 *
 * What the roles report to the agent as a whole, and ask it, of which they know nothing else: agent.c installs the one
 * table of them. Neither role looks into the struct of the other one.
 */
#pragma once

#include "server/sync/state/agent_state.h"

struct document;
struct invitation;
struct member;
struct participant;
struct sync;

struct agent_hooks {
	/*
	 * Reports to history.h: a member of a sync that this node coordinates went a step on, or
	 * this node as a member.
	 */
	void (*on_member)(struct agent *a, const struct sync *s, const struct member *m);
	void (*on_participant)(struct agent *a, const struct participant *p);
	void (*on_sync_end)(struct agent *a, const struct sync *s, bool committed);
	void (*on_participant_end)(struct agent *a, const struct participant *p);
	void (*on_traced)(struct agent *a, enum metrics_role role, const char *sync,
			  uint64_t n_bytes);

	/* As admission_refusal() and admission_refusal_of_contributor(). */
	const char *(*refuse_receiver)(struct agent *a, unsigned peer, const struct document *d,
				       bool is_dry, struct replica **ret_replica,
				       char why[WHY_SIZE]);
	const char *(*refuse_contributor)(struct agent *a, unsigned peer_or_self,
					  const struct invitation *i, struct replica **ret_replica,
					  char why[WHY_SIZE]);

	/* Returns whether this node coordinates a sync of this id, which goes on. */
	bool (*coordinates)(struct agent *a, const char *sync);
	/* Returns whether any sync here, which may have ended, is of this replica. */
	bool (*is_in_sync)(const struct agent *a, const struct replica *rep);
	/* The layout that this node contributes to a sync. False: it contributes to none of this id. */
	bool (*find_layout)(const struct agent *a, const char *sync, int *ret_fd);
	/* Memory that a repair of it may have on loan is wanted back. */
	void (*on_loan_unwanted)(struct agent *a, const struct replica *rep);
};
