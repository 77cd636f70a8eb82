/*
 * A link: this rank's connection to the same rank of the other nodes
 *
 * It is made when an exchange needs it, and made again after it was lost. Where they meet, the ranks send each other the
 * exchange that each completed last (struct control_rank.line) and the one that each is in: see libclient/train/exchange.h.
 *
 * One thread at a time uses it: the one that has the lock.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "libclient/train/nodes/engine.h"
#include "libclient/train/nodes/meet.h"
#include "libclient/train/plan/plan.h"

#define LINK_WORD_MAX                                                                              \
	(72 + ENGINE_HELLO_MAX) /* the largest word with which ranks begin in a meeting */

struct link_peer {
	uint64_t done,
		doing; /* exchanges; as it sent them when the link was made, and as far as this rank can conclude since */
	bool lacks; /* parameters of its step: it was started anew, and `doing` is not true yet */
	bool serves; /* it is in no exchange, and `doing` is a guess */
};

struct link {
	const struct weightd_plan *plan;
	uint32_t node, n_nodes;
	uint32_t line; /* rank of each node */
	char *address; /* of node 0; NULL: unknown, with an engine of the caller */
	uint16_t port; /* of this line */
	struct weightd_engine given; /* of the caller, which cannot be made again; given.exchange NULL: none */
	int given_result; /* it failed for good: -errno */
	char *given_error; /* and its sentence */
	const struct engine *engine;
	void *state; /* of the engine */
	bool is_connected;
	struct meet *meet; /* while this rank meets the others */
	struct link_peer *peers; /* by node */
	uint64_t number; /* of the next exchange of this connection */
	char lost[ENGINE_WHY_SIZE]; /* the sentence of link_watch(), for the next exchange; "": none */
	_Atomic uint64_t
		n_lost; /* connections that another rank closed: it was killed, or gave up an exchange */
	pthread_mutex_t lock; /* held for an exchange, or with `side` by what gives way to one */
	pthread_mutex_t side;
	_Atomic uint32_t n_wanted; /* threads that wait for `side` to begin an exchange */
};

/* Resolves where to meet: what the caller gave, or the environment has. Connects to nobody. One node: nothing. */
int link_init(struct link *l, const struct weightd_plan *plan, const struct weightd_nodes *given,
	      uint32_t node, uint32_t rank);
/* A link of zeros is fine. */
void link_deinit(struct link *l);

/*
 * Connects, and compares the plans. 0; -EPIPE: one of the nodes was lost meanwhile, call it again; -EPROTOTYPE: another plan or
 * release; what `check` returned; all with a sentence. `deadline_ms` is for the engine of the caller, which has no check.
 */
int link_connect(struct link *l, const struct link_peer *own, engine_check *check, void *data,
		 int deadline_ms);
/* Another connection can be made, but not of the caller's engine. */
void link_close(struct link *l);
/* Transfers, with all nodes. -EPIPE with a sentence: the connection is closed, and another one can be made. Errors as above. */
int link_exchange(struct link *l, const struct weightd_transfer *transfers, uint32_t n,
		  engine_check *check, void *data, int deadline_ms);
/*
 * True: it is the word of a rank that meets others in its link, and has this plan. `ret_done`: the exchange it completed last.
 */
bool link_has_sent(const struct meet_word *word, const uint8_t plan[16], uint64_t *ret_done);
/* Takes the lock for an exchange. Waits for what gives way; false: another exchange has it. */
bool link_take(struct link *l);
void link_give(struct link *l);
/* Takes the lock for what gives way: it ends soon once link_is_wanted(). False: it is in use. */
bool link_take_aside(struct link *l);
void link_give_aside(struct link *l);
static inline bool link_is_wanted(const struct link *l)
{
	return atomic_load(&l->n_wanted) != 0;
}
/* Closes the connection, if it is lost and no thread uses it. For waits in which it is idle. */
void link_watch(struct link *l);
/* Likewise for the thread that has the lock. */
void link_look(struct link *l);
/* -EPIPE with a sentence, once after link_watch() has closed the connection. */
int link_check(struct link *l);
/* A connection that was lost can be made again: it is not the caller's. */
static inline bool link_can_reconnect(const struct link *l)
{
	return !l->given.exchange;
}
/* A node that this rank waits for now; its own: unknown. */
uint32_t link_missing(const struct link *l);
/* A number that changes while bytes move. */
uint64_t link_moved(const struct link *l);
