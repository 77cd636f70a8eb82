/*
 * The setting of tests of averages and reshards: a simulated world in which all nodes have a version
 * to contribute, losses, and assertions about the outcome.
 */
#pragma once

#include "scene.h"
#include "sim_average.h"

/* Nodes 0 and 1 may coordinate, and each has a version of its own. */
struct sim *scene_world(unsigned n, enum policy policy);
/* Requests an average at node 0. */
void scene_begin(struct sim *s, char ret_sync[SYNC_ID_SIZE]);
/* Records the content that each node serves. */
void scene_note(const struct sim *s, uint64_t ret_had[]);

/* Kinds of losses. */
enum blow {
	BLOW_KILL,
	BLOW_SILENCE, /* the agent is silent, while its kernel answers */
	BLOW_HANG, /* all its jobs hang */
	BLOW_ENGINE, /* its engine is killed */
	BLOW_SOURCE,
	BLOW_SINK,
	N_BLOWS,
};

extern const char *const BLOWS[];

struct loss {
	/* Type of the message that triggers it, one to or from the victim if that is not node 0. */
	const char *type;
	enum blow blow;
	unsigned victim;
	uint64_t at_ns; /* time when it happened; 0: not yet */
};

/* Set as sim::on_message, with the loss as sim::userdata. */
bool strike_at(struct sim *s, unsigned from, unsigned to, const json_t *message);
void recover(struct sim *s, unsigned victim);

void assert_ends(struct sim *s, const char *outcome, uint64_t within);
void average_and_wait(struct sim *s, const char *outcome);
/* The served mean is that of the contents in `had` of these nodes; a bit for each. */
void assert_mean_of(struct sim *s, const uint64_t *had, unsigned nodes);
void assert_untouched(const struct sim *s, const uint64_t had[]);
void assert_converges(struct sim *s);
/* All nodes train and average, whatever happened before. */
void assert_well(struct sim *s);
