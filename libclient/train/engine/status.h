/*
 * The status of a rank: what it does, for people that look at the job from outside
 *
 * A phase costs a clock and a word when it begins, and a wait that is over before it began costs nothing. The words are in the
 * job (struct control_status): nothing in a step reads them.
 */
#pragma once

#include "libclient/train/plan/control.h"

/* A thread of the rank. NULL stands for one that no reader looks at. */
struct status_lane {
	_Atomic uint64_t *word; /* its activity, in the job */
	_Atomic uint64_t spent_ns[CONTROL_DONE + 1]; /* in each phase, since the last complete step */
};

struct status {
	struct control_status *words;
	struct status_lane main, thread;
	uint64_t thread_waited_ns; /* of `thread`, when this rank began to wait for its sums */
	uint64_t sums_waited_ns; /* part of SUMMING in which the thread waited for other ranks */
};

/* A rank that is opened: it updates until the first status_enter(). The loss of its predecessor remains. */
void status_init(struct status *s, struct control_status *words);

void status_enter(struct status_lane *lane, enum control_phase phase);
/* Returns the phase before, to be entered after the wait. */
enum control_phase status_wait(struct status_lane *lane, enum control_topic topic, uint32_t rank);

/* The time in which the other thread waits for ranks is time in which this rank waits for them. */
void status_begin_sums(struct status *s);
void status_end_sums(struct status *s);

void status_set_loss(struct status *s, double loss);
/* The rank goes on behind a step of its predecessor, or of a checkpoint. */
void status_set_step(struct status *s, uint64_t step);
/* Publishes the times of a step that is complete, and begins to compute. */
void status_complete(struct status *s, uint64_t step);
