/*
 * Exchanges: the numbered transfers of a step between nodes
 *
 * An exchange has a position (control_exchange()), and all that it sends and where it receives follow from the position, the plan
 * and the memory of the job. Each rank receives a message of each other one of its line, if only eight bytes, and publishes
 * `line` when all that it receives is in the memory of the job.
 *
 * So the ranks of a line are never more than one exchange apart: a rank that completes the next one has a message of each other
 * one, which sent it after it had completed this one. What an exchange sends to a node stays as it is until that node has completed
 * it. Where a connection is lost, and made again, the ranks compare positions, and those ahead send the exchange of those
 * behind once more. Nothing is received twice.
 *	AGREE		sends the node's summary, which stays until the step after the next one
 *	FETCH		sends parameters, which the next update changes, after an AGREE
 *	SCATTER		sends REDUCED of other nodes' pieces: sums of the next step, or sums with weights after those of overlap,
 *			follow an AGREE; or STAGED, where the sums of the bucket after the next one follow the SCATTER of the next
 *			one. With sync_every it sends parameters, which GATHER replaces by those of a node that
 *			has received all before it sends them
 *	DECIDE		sends a word of the summary
 *	GATHER		"replicated" and with sync_every, sends sums over nodes from the own range of RECEIVED, where the next SUM
 *			replaces them, after a SCATTER; else parameters, which the next update does, after an AGREE
 *	values		of node 0 are followed by an exchange without bytes, and preceded by one, in which node 0 receives what it
 *			does not have. The one before the first values has no bytes: a rank of node 0 that completed it will not
 *			fill again, and a new job of node 0 that fills otherwise is more than one exchange apart
 *	values		with plan_pools_grads() are in the process of rank 0 of node 0 alone, until it has received a message of
 *			each other one that has them: SENT. Its `line` skips FETCH and SEND, and if it is killed before SENT, it
 *			fetches and sends again. Those ahead go back: they are in KEPT at most, as none completes that one
 *			without a message of node 0, and none uses the values before. Other lines exchange nothing
 * In the end there are two more without bytes: a rank that completed the first one knows that all others have the last GATHER;
 * it waits in the second one, so that its connection remains until they know that, too. That may fail without harm.
 */
#pragma once

#include <stdint.h>

#include "libclient/train/nodes/link.h"
#include "libclient/train/segments.h"
#include "libclient/train/touched.h"

struct plan_op;
struct wait_place;
struct weightd_train;

struct exchange {
	struct link link;
	struct segments segments;
	struct touched touched; /* of the step whose segments are found */
	uint64_t reached; /* the last exchange that this process completed; its successor would have to repeat it */
	uint64_t token, tokens[WEIGHTD_NODES_MAX]; /* where there are no other bytes */
	_Atomic uint64_t n_sent,
		n_sent_replicas; /* bytes, without tokens; part of them: to other replicas */
};

/* Takes what the caller gave, or the environment has. Connects to nobody. */
int exchange_init(struct weightd_train *t, const struct weightd_nodes *given, uint32_t node,
		  uint32_t rank);
void exchange_deinit(struct weightd_train *t);

/* The operation of an exchange of a step, which is complete, or is to be made: control_exchange(). */
const struct plan_op *exchange_op(const struct weightd_train *t, uint64_t position);
/* True: this rank has completed that of an operation in a step. */
bool exchange_is_done(const struct weightd_train *t, const struct plan_op *op, uint64_t step);
/* The exchange of an operation, unless it is complete. 0; errors of waits: the call can be repeated. */
int exchange_step(struct weightd_train *t, struct wait_place *place, const struct plan_op *op,
		  uint64_t step);
/* Likewise one that passes ask for, which has a position of its own: FETCH, or a SCATTER of such a plan. */
int exchange_asked(struct weightd_train *t, struct wait_place *place, const struct plan_op *op,
		   uint64_t position);
/* The beginning of a message of passes, never 0: its operation and its bucket. */
uint64_t exchange_asked_code(const struct plan_op *op);
/* Waits until all ranks of the node have completed it. */
int exchange_wait(struct weightd_train *t, const struct plan_op *op, uint64_t step);

/*
 * Receives PARAM of all other nodes into t->units.caught_up. This rank was started anew, and repeats passes whose exchanges are
 * past. Others send them in whatever exchange they are, or serve.
 */
int exchange_catch_up(struct weightd_train *t);
/*
 * Connects with a line that has lost its connection, and sends what others lack, until is_over(over). While this rank waits for
 * something else, others may need it. `t` is the trainer; another thread of it may use the link, which does no harm. True: a signal
 * ended it, and the trainer is interruptible.
 */
bool exchange_serve(void *t, bool (*is_over)(void *over), void *over);

/*
 * Values of node 0 for all: PARAM, MASTER and FROZEN; each rank its shard, or rank 0 those of all. Number 0 after step 0 are the first values; those of
 * weightd_train_write_end() count from 1 on after each step. exchange_fetch() comes before node 0 writes: it receives what it
 * does not have. Both return once all ranks of the node have theirs. One node: nothing.
 */
int exchange_fetch(struct weightd_train *t, uint64_t step, uint32_t number);
int exchange_values(struct weightd_train *t, uint64_t step, uint32_t number);

/* This rank is done: returns once all others have what it sent last. */
int exchange_end(struct weightd_train *t);
