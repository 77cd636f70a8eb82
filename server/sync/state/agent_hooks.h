/*
 * Hooks
 *
 * Calls of the roles to the agent as a whole, and the only ones: agent.c installs the one table of
 * them. Neither role accesses the struct of the other one.
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
	 * Called for history.h: a member of a sync of this node has advanced, or this node as a
	 * member.
	 */
	void (*on_member)(struct agent *a, const struct sync *s, const struct member *m);
	void (*on_participant)(struct agent *a, const struct participant *p);
	void (*on_sync_end)(struct agent *a, const struct sync *s, bool committed);
	void (*on_participant_end)(struct agent *a, const struct participant *p);
	void (*on_traced)(struct agent *a, enum metrics_role role, const char *sync,
			  uint64_t n_bytes);

	/* The same as admission_refusal() and admission_refusal_of_contributor(). */
	const char *(*refuse_receiver)(struct agent *a, unsigned peer, const struct document *d,
				       bool is_dry, struct replica **ret_replica,
				       char why[WHY_SIZE]);
	const char *(*refuse_contributor)(struct agent *a, unsigned peer_or_self,
					  const struct invitation *i, struct replica **ret_replica,
					  char why[WHY_SIZE]);

	/* This node coordinates a running sync of this id. */
	bool (*coordinates)(struct agent *a, const char *sync);
	/* Any sync here, running or ended, is of this replica. */
	bool (*is_in_sync)(const struct agent *a, const struct replica *rep);
	/*
	 * The layout that this node contributes to a sync. False: it contributes to none of this
	 * id.
	 */
	bool (*find_layout)(const struct agent *a, const char *sync, int *ret_fd);
	/* Requests the return of the memory that a repair of it may have on loan. */
	void (*on_loan_unwanted)(struct agent *a, const struct replica *rep);
};
