/*
 * A star: streams between rank i of node 0 and the ranks i of the other nodes, for checkpoints
 *
 * It has a port of its own (star_place()), so that a thread can use it while the trainer exchanges steps through its link. A
 * lost connection ends the star: the caller decides if it opens another one.
 *
 * Loads meet where links do: no link is in use then, and a rank of node 0 that was killed may find others past the load, in
 * their first step. They have the values.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/nodes/meet.h"
#include "libclient/train/plan/plan.h"

struct link;

struct star {
	struct meet *meet; /* NULL: not connected */
	struct meet_place place;
	const char *what; /* the ranks do it together: "save", "load" */
	uint64_t step; /* of the checkpoint; a load: 0 */
	int deadline_ms; /* of each byte, and of all meetings until one is received; < 0: none */
	engine_check *check; /* of the caller */
	void *data;
	uint64_t waited_ms; /* since the last byte */
	uint64_t met_ms; /* of meetings since the last byte was received; the caller keeps it when it opens another one */
	bool is_load;
	uint64_t past; /* a load of node 0: the exchange that a rank behind it has completed */
	bool is_past[WEIGHTD_NODES_MAX]; /* nodes behind the load: they are not connected */
};

/*
 * The place of this rank: that of its link for a load, otherwise at a port behind those of the links of all ranks. -EINVAL,
 * with a sentence: no address is known.
 */
int star_place(const struct link *l, const struct weightd_plan *plan, bool is_load,
	       struct meet_place *ret);

/*
 * Connects all, until the deadline. The caller sets all but `meet`. -EPIPE: one was lost, -ETIMEDOUT, what `check` returned;
 * -EPROTOTYPE, -EINVAL: another node has another plan, or a later step; those in the later step wait for this rank to come
 * again with it. With a sentence.
 */
int star_open(struct star *s, const struct weightd_plan *plan);
/* The word of a rank that meets others for a star. */
bool star_has_sent(const struct meet_word *word);
/* NULL members are fine; it can be opened again. */
void star_close(struct star *s);

/* All bytes, to or from a node: one of the two is node 0. -EPIPE, -ETIMEDOUT, what `check` returned; with a sentence. */
int star_send(struct star *s, uint32_t node, const void *data, uint64_t size);
int star_receive(struct star *s, uint32_t node, void *data, uint64_t size);
